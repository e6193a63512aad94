"""Decide about one fleet with all that is known of it: what is to be done, and the objects that should exist.

The operator carries it out; `prefleet diff` shows it. Asks nobody and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prefleet_operator.adapters.kube import Object
from prefleet_operator.adapters.metrics_source import FleetReading
from prefleet_operator.api import PrefillPolicySpec, Role
from prefleet_operator.app.gather import Cluster, gather, live_config_map
from prefleet_operator.app.policies import PolicyRecord
from prefleet_operator.app.rollouts import Leaving, count_roles, find_leaving, tell_paused
from prefleet_operator.core.deletion_cost import CostedPod, deletion_costs, falling_roles, late_roles
from prefleet_operator.core.differences import Difference
from prefleet_operator.core.plan import Plan, make_plan
from prefleet_operator.core.restarts import Outdated, Restart, outdated_sentence, say_outdated, say_rollout
from prefleet_operator.core.rollout import next_gates, tell_rollout
from prefleet_operator.core.sizing.state import SizingState
from prefleet_operator.core.sizing.turn import with_replicas
from prefleet_operator.render import (
    ROUTER,
    TEMPLATE_FIELDS,
    UPGRADE_ANNOTATION,
    InstallationDefaults,
    PolicyObject,
    Revision,
    Settled,
    release_replicas,
    render_fleet,
    router_object_name,
    settle_revisions,
    with_gates,
    withdraw_actuators,
)


@dataclass(frozen=True, slots=True)
class Installation:
    """What the installation brings to every decision. `sources`: the names of its metrics sources; `release`: of the
    operator."""

    defaults: InstallationDefaults
    sources: tuple[str, ...]
    release: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The plan, the objects in the order in which they are applied, the roles of which pods are replaced, and the
    sentence of those whose pods wait for an upgrade, "" if none do. `costs`: by pod, what its deletion is to cost.
    `leaving`: the roles that the spec has no more."""

    plan: Plan
    objects: tuple[Object, ...]
    restarts: tuple[Restart, ...]
    waits: str = ""
    costs: Mapping[str, int] = field(default_factory=dict)
    leaving: Leaving = field(default_factory=Leaving)

    @property
    def sizes(self) -> Mapping[Role, int]:
        """The replicas that the operator is to set."""
        return self.plan.sizes


def decide(
    policy: PolicyRecord,
    spec: PrefillPolicySpec,
    cluster: Cluster,
    reading: FleetReading,
    installation: Installation,
    now: float,
    sizing: SizingState | None = None,
) -> Decision:
    """The decision about one fleet. `sizing`: what this process knows of the last decision on its sizes.

    Raises:
        InvalidSpecError: what schema and CEL cannot see is wrong with the spec.
    """
    situation = gather(policy, spec, cluster, reading, installation.sources, now, sizing)
    plan = make_plan(situation, now)
    spec = plan.spec
    target = PolicyObject(policy.name, policy.namespace, policy.uid or None)
    live = live_config_map(policy, spec, cluster)
    kept = live is not None and live.kept
    others = situation.sizing.others
    rendered = withdraw_actuators(render_fleet(target, spec, plan.policy, installation.defaults, kept), others)

    def remembered(kind: str, name: str) -> Revision | None:
        record = cluster.children[kind].get(policy.namespace, name)
        return None if record is None or record.identity.fleet != policy.name else record.revision

    def undigested(kind: str, name: str) -> bool:
        record = cluster.children[kind].get(policy.namespace, name)
        return record is not None and record.identity.fleet == policy.name and not record.template

    release = installation.release
    objects, workloads = settle_revisions(rendered, spec, plan.policy, release, policy.upgrade, remembered, undigested)
    outdated = [Outdated(each.role, each.now.release, each.outdated) for each in workloads]
    waits = outdated_sentence(outdated, release, UPGRADE_ANNOTATION)
    pods = count_roles(policy, _steered(plan, situation.sizing.live), cluster, workloads, now)
    gates = next_gates(pods)
    leaving = find_leaving(policy, cluster, pods, now)
    told = tell_rollout(pods, gates, late={*situation.stuck, *situation.refused})
    rollout = " ".join(filter(None, (told, tell_paused(policy, cluster, gates), leaving.told)))
    return Decision(
        plan=say_rollout(say_outdated(plan, policy.status, waits), policy.status, rollout),
        waits=waits,
        objects=tuple(
            with_gates(release_replicas(objects, _counted(policy, spec, cluster, objects, others)), gates, pods)
        ),
        restarts=tuple(
            Restart(each.role, _count_pods(policy, cluster, each.role), _changes(policy, cluster, each))
            for each in workloads
        ),
        costs=_costs(policy, plan, cluster, reading, now),
        leaving=leaving,
    )


def _steered(plan: Plan, live: Mapping[Role, int]) -> PrefillPolicySpec:
    """The spec with the replicas that gates are decided on: of a sized role the fewer of those that its workload has
    and is to have.

    A gate is written before the number follows, and says in pods how many may be absent. What it allows of many would
    be all that a smaller number has.
    """
    return with_replicas(plan.spec, {role: min(count, plan.asked[role]) for role, count in live.items()})


def _costs(policy: PolicyRecord, plan: Plan, cluster: Cluster, reading: FleetReading, now: float) -> Mapping[str, int]:
    """What the pods of roles that shall become smaller say of themselves first, whoever makes them smaller."""
    deployments = cluster.children["Deployment"].of(*policy.key)
    live = {each.role: each.wanted_pods for each in deployments if each.role is not None and each.ours}
    pods = (
        CostedPod(pod.identity.name, pod.role, pod.deletion_cost)
        for pod in cluster.made_pods(*policy.key)
        if pod.role is not None and not pod.terminating
    )
    fell = {} if plan.sizing is None else {role: known.fell_at_s for role, known in plan.sizing.memory.roles.items()}
    return deletion_costs(pods, reading.pod_loads, falling_roles(plan.asked, live), late_roles(fell, now))


def _counted(
    policy: PolicyRecord,
    spec: PrefillPolicySpec,
    cluster: Cluster,
    objects: Sequence[Object],
    others: Iterable[Role],
) -> set[Role]:
    """The roles whose number is not the spec's to say, and whose workload exists, and so has a live count; one that is
    to be made starts with its own."""
    counted = {*spec.sized_roles(), *others}
    made = {(each["kind"], each["metadata"]["name"]) for each in objects if each["kind"] in TEMPLATE_FIELDS}
    return {
        record.role
        for kind, name in made
        if (record := cluster.children[kind].get(policy.namespace, name)) is not None
        and record.identity.fleet == policy.name
        and record.role in counted
    }


def _count_pods(policy: PolicyRecord, cluster: Cluster, role: str) -> int:
    """The pods of a role that are there to stay, or those of the router that serve; of groups those that lead."""
    if role == ROUTER:
        router = cluster.children["Deployment"].get(policy.namespace, router_object_name(policy.name))
        return 0 if router is None else router.ready_pods
    return sum(pod.role == role and not pod.terminating for pod in cluster.pods.of(*policy.key))


def _changes(policy: PolicyRecord, cluster: Cluster, settled: Settled) -> tuple[Difference, ...]:
    """In what the template of a role changes; where an object of another kind makes its pods until now, the kind."""
    kind, name = settled.rendered["kind"], settled.rendered["metadata"]["name"]
    if cluster.children[kind].get(policy.namespace, name) is not None:
        return settled.restart
    others = (other for other in TEMPLATE_FIELDS if other != kind)
    return tuple(
        Difference("kind", other, kind)
        for other in others
        for child in cluster.children[other].of(*policy.key)
        if child.ours and child.role == settled.role
    )
