"""Gather: everything that a decision looks at, from what is already known. Asks nobody, waits for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from prefleet_runtime.contract import DEFAULT_EXPORTER_PORT, InvalidPolicyError, RuntimePolicy

from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, PodTarget
from prefleet_operator.adapters.watch import Store, Watcher
from prefleet_operator.api import PrefillPolicySpec, Role
from prefleet_operator.app.policies import PolicyRecord
from prefleet_operator.app.records import MAX_DIGITS, ChildRecord, PodRecord
from prefleet_operator.app.workqueue import Key
from prefleet_operator.core.observed import Missing, PodView
from prefleet_operator.core.plan import LivePolicy, Situation
from prefleet_operator.render import live_config_map_name


@dataclass(frozen=True, slots=True)
class AttachedPods:
    """The pods that one policy attaches, by role."""

    stores: Mapping[Role, Store[PodRecord]]
    watchers: tuple[Watcher[PodRecord], ...]

    @property
    def refused(self) -> str | None:
        """Why the API server does not tell of them, if it refuses to."""
        return next((watcher.refused for watcher in self.watchers if watcher.refused is not None), None)

    @property
    def known(self) -> bool:
        """Whether they have been listed, or cannot be."""
        return self.refused is not None or all(watcher.synced.is_set() for watcher in self.watchers)


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the watchers keep of the fleets' objects, by kind."""

    pods: Store[PodRecord] = field(default_factory=Store)
    children: dict[str, Store[ChildRecord]] = field(
        default_factory=lambda: {kind: Store() for kind in ("ConfigMap", "Deployment", "Service")}
    )
    attached: dict[Key, AttachedPods] = field(default_factory=dict)

    def fleet_pods(self, namespace: str, fleet: str) -> tuple[PodRecord, ...]:
        """The pods of a fleet, each with its role: those that it attaches, or those that the operator made."""
        attached = self.attached.get((namespace, fleet))
        if attached is None:
            return tuple(pod for pod in self.pods.of(namespace, fleet) if pod.role is not None)
        return tuple(
            replace(pod, role=role)
            for role, store in attached.stores.items()
            for pod in sorted(store.everything(namespace), key=lambda pod: pod.identity.name)
            if not pod.made_for
        )

    def knows_attached(self, namespace: str) -> bool:
        """Whether all pods that the policies of a namespace attach have been listed."""
        return all(attached.known for (where, _), attached in self.attached.items() if where == namespace)


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
    config_map = live_config_map(policy, spec, cluster)
    return Situation(
        spec=spec,
        generation=policy.generation,
        status=policy.status,
        live=None if config_map is None else read_live(config_map),
        metrics=reading.metrics,
        pods=tuple(_view(pod, reading) for pod in pods),
        pod_generations={pod.identity.name: pod.generation for pod in pods},
        stuck={d.role: d.stuck for d in deployments if d.role is not None and d.stuck is not None},
        sources=sources,
    )


def live_config_map(policy: PolicyRecord, spec: PrefillPolicySpec, cluster: Cluster) -> ChildRecord | None:
    """The fleet's policy ConfigMap; one of that name that is another fleet's is none."""
    found = cluster.children["ConfigMap"].get(policy.namespace, live_config_map_name(policy.name, spec))
    return found if found is not None and found.identity.fleet == policy.name else None


def read_live(config_map: ChildRecord) -> LivePolicy:
    """What the policy ConfigMap says; content that no pod would run either is no policy."""
    try:
        policy = RuntimePolicy.from_json(config_map.policy)
    except InvalidPolicyError:
        policy = None
    if policy is not None and policy.generation >= 10**MAX_DIGITS:
        policy = None
    known = (0 if policy is None else policy.generation, config_map.annotated_generation or 0)
    return LivePolicy(policy=policy, generation=max(known), ours=config_map.owns_policy)


def query(policy: PolicyRecord, spec: PrefillPolicySpec, cluster: Cluster) -> FleetQuery:
    """What a metrics source is asked for one fleet: its ready pods."""
    pods = cluster.fleet_pods(policy.namespace, policy.name)
    ports = {role: attached.metrics_port for role, attached in spec.attached_roles().items()}
    return FleetQuery(
        namespace=policy.namespace,
        name=policy.name,
        pods=tuple(
            PodTarget(pod.identity.name, pod.role, pod.ip, ports.get(pod.role, DEFAULT_EXPORTER_PORT))
            for pod in pods
            if pod.role is not None and pod.ready and not pod.terminating
        ),
        window_s=spec.tuning.window_s,
        length=spec.scheduling.length,
    )


def _view(pod: PodRecord, reading: FleetReading) -> PodView:
    assert pod.role is not None
    return PodView(
        name=pod.identity.name,
        role=pod.role,
        ip=pod.ip,
        ready=pod.ready,
        terminating=pod.terminating,
        ready_since_s=pod.ready_since_s,
        reported_generation=reading.generations.get(pod.identity.name, Missing("it has not been asked yet.")),
    )
