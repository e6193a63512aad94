"""Gather: everything that a decision looks at, from what is already known. Asks nobody, waits for nothing."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prefleet_runtime.contract import DEFAULT_EXPORTER_PORT, InvalidPolicyError, RuntimePolicy

from prefleet_operator.adapters.kube import RESOURCES_BY_KIND
from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, PodTarget
from prefleet_operator.adapters.watch import Identity, Store, Watcher
from prefleet_operator.api import PrefillPolicySpec, Role
from prefleet_operator.app.policies import PolicyRecord
from prefleet_operator.app.records import MAX_DIGITS, AutoscalerRecord, ChildRecord, PodRecord
from prefleet_operator.app.workqueue import Key
from prefleet_operator.core.native_policy import FleetPolicy, NativePolicy, as_run
from prefleet_operator.core.observed import Missing, PodTrouble, PodView, Reading, RouterView, Sample
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.situation import LivePolicy, Situation
from prefleet_operator.core.sizing.state import SizingState
from prefleet_operator.core.sizing.turn import SizingView, with_replicas
from prefleet_operator.engines import engine_for
from prefleet_operator.render import (
    ACTUATOR_KINDS,
    live_config_map_name,
    made_of,
    router_object_name,
    router_warnings,
)

OVERDUE_S = 60
"""How long after its grace a pod may still be there: its node is slow. Later than that its node is taken for lost."""


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
    """What the watchers keep of the fleets' objects, by kind. `unserved`: kinds that this cluster does not know.
    `autoscalers`: everybody's, by what they scale."""

    pods: Store[PodRecord] = field(default_factory=Store)
    children: dict[str, Store[ChildRecord]] = field(
        default_factory=lambda: {kind: Store() for kind in RESOURCES_BY_KIND}
    )
    autoscalers: dict[str, Store[AutoscalerRecord]] = field(
        default_factory=lambda: {kind: Store() for kind in ACTUATOR_KINDS}
    )
    unserved: set[str] = field(default_factory=set)
    attached: dict[Key, AttachedPods] = field(default_factory=dict)

    def set_served(self, kind: str, served: bool) -> None:
        """Keep in mind whether the API server knows the kind."""
        (self.unserved.discard if served else self.unserved.add)(kind)

    def fleet_pods(self, namespace: str, fleet: str) -> tuple[PodRecord, ...]:
        """The pods of a fleet, each with its role: those that it attaches, or those that the operator made."""
        attached = self.attached.get((namespace, fleet))
        if attached is None:
            return self.made_pods(namespace, fleet)
        return tuple(
            replace(pod, role=role)
            for role, store in attached.stores.items()
            for pod in sorted(store.everything(namespace), key=lambda pod: pod.identity.name)
            if not pod.made_for
        )

    def made_pods(self, namespace: str, fleet: str) -> tuple[PodRecord, ...]:
        """The pods of roles that the operator made for a fleet."""
        return tuple(pod for pod in self.pods.of(namespace, fleet) if pod.role is not None)

    def router(self, namespace: str, fleet: str) -> RouterView | None:
        """The router of a fleet, if it has one."""
        found = self.children["Deployment"].get(namespace, router_object_name(fleet))
        if found is None or found.identity.fleet != fleet:
            return None
        troubles = (
            PodTrouble(pod.trouble.reason, f"pod {pod.identity.name}: {pod.trouble.told}")
            for pod in self.pods.of(namespace, fleet)
            if pod.routes and pod.trouble is not None and not pod.terminating
        )
        return RouterView(found.ready_pods, found.stuck, found.wanted_pods, found.refused, next(troubles, None))

    def troubled_workers(self, namespace: str, fleet: str) -> dict[str, PodTrouble]:
        """By group, what ails one of its workers. They serve nothing and have no role, but their leader waits for
        them."""
        workers = (pod for pod in self.pods.of(namespace, fleet) if pod.role is None and pod.group)
        return {
            pod.group: PodTrouble(pod.trouble.reason, f"its worker {pod.identity.name}: {pod.trouble.told}")
            for pod in sorted(workers, key=lambda pod: pod.identity.name, reverse=True)
            if pod.trouble is not None and not pod.terminating
        }

    def troubles(self, key: Key, pods: Iterable[PodRecord], now: float) -> dict[str, PodTrouble]:
        """By name, why some of these pods of a fleet will not become ready by waiting: they say so, or a worker does.

        One that no node takes is in no trouble while others of the fleet end: it waits for their accelerators.
        """
        workers = self.troubled_workers(*key)
        room = any(_makes_room(pod, now) for pod in self.pods.of(*key))
        found = {pod.identity.name: pod.trouble or workers.get(pod.group) for pod in pods if not pod.ready}
        return {
            name: trouble
            for name, trouble in found.items()
            if trouble is not None and not (room and trouble.reason is Reason.UNSCHEDULABLE)
        }

    def workloads(self, key: Key) -> tuple[ChildRecord, ...]:
        """What makes a fleet's pods."""
        return tuple(
            workload for kind in ("Deployment", "LeaderWorkerSet") for workload in self.children[kind].of(*key)
        )

    def other_autoscalers(self, kind: str, workload: Identity) -> list[str]:
        """Kind and name of each that scales a workload and that is somebody else's."""
        return [
            f"{made} {found.identity.name}"
            for made, store in self.autoscalers.items()
            for found in store.of(workload.namespace, workload.name)
            if found.independent and found.target_kind == kind
        ]

    def knows_attached(self, namespace: str) -> bool:
        """Whether all pods that the policies of a namespace attach have been listed."""
        return all(attached.known for (where, _), attached in self.attached.items() if where == namespace)


def _makes_room(pod: PodRecord, now: float) -> bool:
    """Whether a pod is about to give back what its node gave it. One whose node is lost may never do."""
    return not pod.routes and pod.ends_by_s is not None and now < pod.ends_by_s + OVERDUE_S


def gather(
    policy: PolicyRecord,
    spec: PrefillPolicySpec,
    cluster: Cluster,
    reading: FleetReading,
    sources: tuple[str, ...],
    now: float,
    sizing: SizingState | None = None,
) -> Situation:
    """The situation of one fleet. `sizing`: what this process knows of the last decision on its sizes."""
    pods = cluster.fleet_pods(policy.namespace, policy.name)
    troubles = cluster.troubles(policy.key, pods, now)
    stuck, refused = _faults(cluster.workloads(policy.key))
    config_map = live_config_map(policy, spec, cluster)
    others = other_autoscalers(policy, spec, cluster)
    spec = with_replicas(spec, live_replicas(policy, spec, cluster, others))
    return Situation(
        spec=spec,
        generation=policy.generation,
        status=policy.status,
        live=None if config_map is None else read_live(config_map),
        metrics=reading.metrics,
        pods=tuple(_view(pod, _generation(pod, spec, reading), troubles) for pod in pods),
        pod_generations={pod.identity.name: pod.generation for pod in pods},
        stuck=stuck,
        untaken={
            each.role: each.untaken_since_s
            for each in cluster.workloads(policy.key)
            if each.role and each.untaken_since_s
        },
        refused=refused,
        sources=sources,
        router=cluster.router(*policy.key),
        warnings=(*engine_for(spec).warnings(spec), *router_warnings(spec)),
        sizing=SizingView(
            live=live_replicas(policy, spec, cluster, spec.sized_roles()),
            loads=reading.loads,
            state=sizing,
            made_of={role: made_of(spec, role, policy.upgrade) for role in spec.sized_roles()},
            others=others,
        ),
        missed_since_s=reading.missed_since_s,
    )


def other_autoscalers(policy: PolicyRecord, spec: PrefillPolicySpec, cluster: Cluster) -> dict[Role, str]:
    """By role, the autoscalers of somebody else's that set the replicas of its workload."""
    found = {
        role: cluster.other_autoscalers(kind, workload.identity)
        for role in spec.roles()
        for kind in [_workload_kind(spec, role)]
        for workload in cluster.children[kind].of(*policy.key)
        if workload.role is role and workload.ours
    }
    return {role: " and ".join(names) for role, names in found.items() if names}


def _workload_kind(spec: PrefillPolicySpec, role: Role) -> str:
    return "LeaderWorkerSet" if spec.roles()[role].nodes_per_replica > 1 else "Deployment"


def live_replicas(
    policy: PolicyRecord, spec: PrefillPolicySpec, cluster: Cluster, roles: Container[Role]
) -> dict[Role, int]:
    """The replicas that the workloads of these roles are to have, of those that exist.

    Of two kinds of workload, as while a role goes from one node to several, the one counts that the spec asks for, if
    it is there.
    """
    found: dict[Role, int] = {}
    for kind in ("Deployment", "LeaderWorkerSet"):
        for workload in cluster.children[kind].of(*policy.key):
            role = workload.role
            if role is None or role not in roles or not workload.ours:
                continue
            if role not in found or kind == _workload_kind(spec, role):
                found[role] = workload.wanted_pods
    return found


def live_config_map(policy: PolicyRecord, spec: PrefillPolicySpec, cluster: Cluster) -> ChildRecord | None:
    """The fleet's policy ConfigMap; one of that name that is another fleet's is none."""
    found = cluster.children["ConfigMap"].get(policy.namespace, live_config_map_name(policy.name, spec))
    return found if found is not None and found.identity.fleet == policy.name else None


def gather_pods(
    policy: PolicyRecord, cluster: Cluster, now: float
) -> tuple[tuple[PodView, ...], Mapping[Role, str], Mapping[Role, str]]:
    """The pods of a fleet that nobody measures, and by role why a rollout is stuck or its pods are refused.

    Of one whose spec says attach and is refused, those that the operator made for the last spec go on.
    """
    unasked = Missing("it has not been asked yet.")
    workloads = cluster.workloads(policy.key)
    made = any(each.role is not None for each in workloads)
    found = cluster.made_pods(*policy.key) if made else cluster.fleet_pods(*policy.key)
    troubles = cluster.troubles(policy.key, found, now)
    return tuple(_view(pod, unasked, troubles) for pod in found), *_faults(workloads)


def _faults(workloads: Sequence[ChildRecord]) -> tuple[Mapping[Role, str], Mapping[Role, str]]:
    """By role, why a rollout is stuck, and why pods are refused."""
    stuck = {each.role: each.stuck for each in workloads if each.role and each.stuck is not None}
    refused = {each.role: each.refused for each in workloads if each.role and each.refused is not None}
    return stuck, refused


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
    engine = engine_for(spec).metrics
    port = DEFAULT_EXPORTER_PORT if engine is None else engine.port
    ports = {role: attached.metrics_port for role, attached in spec.attached_roles().items()}
    return FleetQuery(
        namespace=policy.namespace,
        name=policy.name,
        pods=tuple(
            PodTarget(pod.identity.name, pod.role, pod.ip, ports.get(pod.role, port), _is_current(pod, policy, spec))
            for pod in pods
            if pod.role is not None and pod.ready and not pod.terminating
        ),
        window_s=spec.tuning.window_s,
        length=as_run(spec).scheduling.length,
        engine=engine,
        sized=bool(spec.sized_roles()),
    )


def _is_current(pod: PodRecord, policy: PolicyRecord, spec: PrefillPolicySpec) -> bool:
    """Whether it runs the policy in force, as far as its engine is told at the start and never later."""
    effective = policy.status.effective
    return not spec.engine.told_at_start or (effective is not None and pod.generation == effective.generation)


def _view(pod: PodRecord, generation: Reading[int], troubles: Mapping[str, PodTrouble]) -> PodView:
    assert pod.role is not None
    return PodView(
        name=pod.identity.name,
        role=pod.role,
        ip=pod.ip,
        ready=pod.ready,
        terminating=pod.terminating,
        ready_since_s=pod.ready_since_s,
        reported_generation=generation,
        trouble=troubles.get(pod.identity.name),
        created_s=pod.created_s,
        restarted=pod.restarted,
        template=pod.template,
    )


def _generation(pod: PodRecord, spec: PrefillPolicySpec, reading: FleetReading) -> Reading[int]:
    """What the pod's runtime reports, or what its engine was told at its start: the template says it."""
    if not spec.engine.told_at_start:
        return reading.generations.get(pod.identity.name, Missing("it has not been asked yet."))
    if pod.generation is None:
        return Missing("it was started without a policy of its own.")
    return Sample(pod.generation, pod.ready_since_s or 0.0)
