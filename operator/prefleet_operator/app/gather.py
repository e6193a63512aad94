"""Gather: everything that a decision looks at, from what is already known. Asks nobody, waits for nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from prefleet_runtime.contract import InvalidPolicyError, RuntimePolicy

from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, PodTarget
from prefleet_operator.adapters.watch import Store
from prefleet_operator.api import PrefillPolicySpec
from prefleet_operator.app.policies import PolicyRecord
from prefleet_operator.app.records import MAX_DIGITS, ChildRecord, PodRecord
from prefleet_operator.core.native_policy import FleetPolicy, NativePolicy, as_run
from prefleet_operator.core.observed import Missing, PodView, Reading, RouterView, Sample
from prefleet_operator.core.plan import LivePolicy, Situation
from prefleet_operator.engines import engine_for
from prefleet_operator.render import policy_config_map_name, router_object_name, router_warnings


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the watchers keep of the fleets' objects, by kind."""

    pods: Store[PodRecord] = field(default_factory=Store)
    children: dict[str, Store[ChildRecord]] = field(
        default_factory=lambda: {kind: Store() for kind in ("ConfigMap", "Deployment", "Service")}
    )

    def fleet_pods(self, namespace: str, fleet: str) -> tuple[PodRecord, ...]:
        """The pods of a fleet that the operator made."""
        return tuple(pod for pod in self.pods.of(namespace, fleet) if pod.role is not None)


def gather(
    policy: PolicyRecord,
    spec: PrefillPolicySpec,
    cluster: Cluster,
    reading: FleetReading,
    sources: tuple[str, ...],
) -> Situation:
    """The situation of one fleet."""
    pods = cluster.fleet_pods(policy.namespace, policy.name)
    deployments = cluster.children["Deployment"].of(policy.namespace, policy.name)
    config_map = cluster.children["ConfigMap"].get(policy.namespace, policy_config_map_name(policy.name))
    router = cluster.children["Deployment"].get(policy.namespace, router_object_name(policy.name))
    return Situation(
        spec=spec,
        generation=policy.generation,
        status=policy.status,
        live=None if config_map is None else read_live(config_map),
        metrics=reading.metrics,
        pods=tuple(_view(pod, spec, reading) for pod in pods),
        pod_generations={pod.identity.name: pod.generation for pod in pods},
        stuck={d.role: d.stuck for d in deployments if d.role is not None and d.stuck is not None},
        sources=sources,
        router=None if router is None else RouterView(router.ready_pods, router.stuck),
        warnings=(*engine_for(spec).warnings(spec), *router_warnings(spec)),
    )


def read_live(config_map: ChildRecord) -> LivePolicy:
    """What the policy ConfigMap says; content that no pod would run either is no policy."""
    policy: FleetPolicy | None
    parse = NativePolicy.from_json if config_map.native else RuntimePolicy.from_json
    try:
        policy = parse(config_map.policy)
    except InvalidPolicyError:
        policy = None
    if policy is not None and policy.generation >= 10**MAX_DIGITS:
        policy = None
    known = (0 if policy is None else policy.generation, config_map.annotated_generation or 0)
    return LivePolicy(policy=policy, generation=max(known), ours=config_map.owns_policy)


def query(policy: PolicyRecord, spec: PrefillPolicySpec, cluster: Cluster) -> FleetQuery:
    """What a metrics source is asked for one fleet: its ready pods."""
    pods = cluster.fleet_pods(policy.namespace, policy.name)
    return FleetQuery(
        namespace=policy.namespace,
        name=policy.name,
        pods=tuple(
            PodTarget(pod.identity.name, pod.role, pod.ip)
            for pod in pods
            if pod.role is not None and pod.ready and not pod.terminating
        ),
        window_s=spec.tuning.window_s,
        length=as_run(spec).scheduling.length,
    )


def _view(pod: PodRecord, spec: PrefillPolicySpec, reading: FleetReading) -> PodView:
    assert pod.role is not None
    return PodView(
        name=pod.identity.name,
        role=pod.role,
        ip=pod.ip,
        ready=pod.ready,
        terminating=pod.terminating,
        ready_since_s=pod.ready_since_s,
        reported_generation=_generation(pod, spec, reading),
    )


def _generation(pod: PodRecord, spec: PrefillPolicySpec, reading: FleetReading) -> Reading[int]:
    """What the pod's runtime reports, or what its engine was told at its start: the template says it."""
    if not spec.engine.told_at_start:
        return reading.generations.get(pod.identity.name, Missing("it has not been asked yet."))
    if pod.generation is None:
        return Missing("it was started without a policy of its own.")
    return Sample(pod.generation, pod.ready_since_s or 0.0)
