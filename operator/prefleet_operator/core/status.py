"""What the operator says of a fleet: conditions from what was observed, merged into the status that stands.

Every condition is a `Verdict` by one small function over the same `Facts`; a verdict is a status, a reason
and one sentence with the numbers and what to do. `merge_conditions` gives verdicts their times:
`lastTransitionTime` changes only with the status, and a sentence whose numbers are noise is replaced only
when its words change, so that a status is written when a state has changed and not otherwise.

PolicyActive is the proof that a setting works: every ready pod reports the effective generation. A pod that
reports another one makes it Unknown (Propagating) for `PROPAGATION_S` and False after that; a pod that
cannot be read makes it Unknown for as long as that lasts, since silence proves nothing.

Left out: when to write, and to whom.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from prefleet_operator.api import (
    Condition,
    ConditionStatus,
    ConditionType,
    EffectiveStatus,
    Move,
    PodColumns,
    PrefillPolicySpec,
    PrefillPolicyStatus,
    Role,
    RoleStatus,
    RouterType,
)
from prefleet_operator.core.observed import Missing, PodView, RouterView, Sample, Stale
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.tuning import format_time, parse_time

PROPAGATION_S = 120
"""How long a generation may be on its way before PolicyActive turns False: a kubelet takes up to 90."""

KUBELET_REFRESH_S = 90
ATTACHED_PROPAGATION_S = 180
"""The same for pods that nobody annotates: the kubelet's time, and a scrape of Prometheus by which it is seen."""

HISTORY_LENGTH = 10

_POD_SUFFIX = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{6,10}-[bcdfghjklmnpqrstvwxz2456789]{5}\b")
"""Of a Deployment's pods: the hash of the template and the pod's own. Kubernetes uses no vowels there."""

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition without its times. `noisy`: the numbers in the sentence move without meaning anything."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str
    noisy: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What the conditions about pods rest on. `stuck`: by role, why its rollout makes no progress; `refused`: why the
    cluster refuses to make its pods."""

    spec: PrefillPolicySpec
    pods: tuple[PodView, ...]
    generation: int
    changed_at_s: int | None
    now: float
    stuck: Mapping[Role, str] = field(default_factory=dict)
    router: RouterView | None = None
    refused: Mapping[Role, str] = field(default_factory=dict)

    def ready_pods(self, role: Role | None = None) -> tuple[PodView, ...]:
        """Pods that serve, of one role or of all that the spec asks for."""
        roles = self.spec.role_names()
        return tuple(
            pod
            for pod in self.pods
            if pod.ready and not pod.terminating and (pod.role is role if role else pod.role in roles)
        )

    def is_told(self, pod: PodView) -> bool:
        """Whether the pod is told the policy at all: a decode pod of an engine that is told at its start is not."""
        return not self.spec.engine.told_at_start or pod.role is not Role.DECODE

    def follows(self, pod: PodView) -> bool:
        """Whether the pod runs what it is to run."""
        return not self.is_told(pod) or reports(pod, self.generation)

    def found_pods(self, role: Role) -> tuple[PodView, ...]:
        """Pods of a role that are there to stay, ready or not."""
        return tuple(pod for pod in self.pods if pod.role is role and not pod.terminating)

    @property
    def propagation_s(self) -> int:
        """How long a generation may be on its way."""
        return PROPAGATION_S if self.spec.attach is None else ATTACHED_PROPAGATION_S


def reports(pod: PodView, generation: int) -> bool:
    """Whether the pod's runtime freshly says that it runs `generation`."""
    reading = pod.reported_generation
    return isinstance(reading, Sample) and reading.value == generation


def judge_ready(facts: Facts) -> Verdict:
    """Ready: every role, and the router if there is one, has the ready pods that the spec asks for.

    A role that is sized is ready with its minReplicas: that it grows is no fault, however long its pods load. With
    fewer it is not, whoever has scaled it below them; a HorizontalPodAutoscaler leaves one that was scaled to 0 there.
    """
    least = {role: bounds.min_replicas for role, bounds in facts.spec.sized_roles().items()}
    wanted = {role: max(spec.replicas, least.get(role, 0)) for role, spec in facts.spec.roles().items()}
    ready = count_ready(wanted, facts.pods, facts.stuck, facts.refused, least)
    if ready.status is not TRUE or facts.spec.router.type is RouterType.NONE:
        return ready
    router = replace(facts.router or RouterView(), wanted=facts.spec.router.replicas)
    return _count_router(router, wanted, ready)


def count_ready(
    wanted: Mapping[Role, int],
    pods: Sequence[PodView],
    stuck: Mapping[Role, str],
    denied: Mapping[Role, str],
    least: Mapping[Role, int] | None = None,
) -> Verdict:
    """Ready, for so many wanted pods by role. What the cluster or a pod itself says of the fault comes first. `least`:
    by role, how many do while others start."""
    there = [pod for pod in pods if pod.role in wanted and not pod.terminating]
    ready = {role: min(sum(pod.ready and pod.role is role for pod in there), wanted[role]) for role in wanted}
    missing = [role for role in wanted if ready[role] < wanted[role]]
    if not sum(wanted.values()):
        message = "The spec asks for 0 pods, so nothing is served: set replicas to 1 or more to serve."
        return _ready(FALSE, Reason.NO_PODS_WANTED, message)
    counts = "Ready pods: " + ", ".join(f"{ready[role]} of {wanted[role]} {role.value}" for role in missing)
    parts = "All pods are ready: " + ", ".join(f"{ready[role]} {role.value}" for role in wanted)
    troubled = [pod for pod in there if pod.trouble is not None]
    held = next((role for role in wanted if role in stuck), None)
    without = next((role for role in missing if role in denied), None)
    if without is not None:
        message = f"{counts}; the cluster refuses to make more: {denied[without].rstrip('.')}."
        return _ready(FALSE, Reason.PODS_REFUSED, message)
    if missing and troubled:
        return _ready(FALSE, trouble_reason(troubled), f"{counts}; {tell_trouble(troubled)}.")
    if held is not None:
        message = (
            f"The rollout of {held.value} makes no progress ({stuck[held].rstrip('.')}); "
            f"{ready[held]} of {wanted[held]} pods serve: look at the events and logs of those that are not ready."
        )
        return _ready(FALSE, Reason.ROLLOUT_STUCK, message)
    if missing and all(ready[role] >= (least or {}).get(role, wanted[role]) for role in missing):
        return _ready(TRUE, Reason.SCALING, f"{counts}, which is minReplicas or more; the others start.")
    if missing:
        return _ready(FALSE, Reason.PODS_NOT_READY, f"{counts}; a pod is ready once its engine has loaded its model.")
    if troubled:
        message = f"{parts}; but none takes the place of an old one: {tell_trouble(troubled)}."
        return _ready(TRUE, trouble_reason(troubled), message)
    return _ready(TRUE, Reason.PODS_READY, f"{parts}.")


def _ready(status: ConditionStatus, reason: Reason, message: str) -> Verdict:
    return Verdict(ConditionType.READY, status, reason, message)


def trouble_reason(troubled: Sequence[PodView]) -> Reason:
    """The reason of the first of the pods, which is in trouble."""
    trouble = troubled[0].trouble
    assert trouble is not None
    return trouble.reason


def tell_trouble(troubled: Sequence[PodView]) -> str:
    """What ails the first of the pods, and how many others are in trouble too."""
    first, more = troubled[0], len(troubled) - 1
    told = f"pod {first.name}: {first.trouble.told if first.trouble else ''}"
    return told if not more else f"{told} (and {more} more {'pod' if more == 1 else 'pods'} in trouble)"


def _count_router(router: RouterView, behind: Mapping[Role, int], ready: Verdict) -> Verdict:
    """The pods of all roles are ready; so must those be through which clients reach them.

    What the cluster or a pod itself says of the fault comes first, as for the pods of roles, and names the reason.
    """
    serving = ", ".join(f"{replicas} {role.value}" for role, replicas in behind.items())
    if router.ready < router.wanted:
        reason, why = _why_no_router(router)
        message = (
            f"The router has {router.ready} of {router.wanted} pods ready{why}, "
            f"though {serving} pods serve behind it: look at the events and logs of the router's pods."
        )
        return _ready(FALSE, reason, message)
    if router.stuck:
        message = (
            f"The rollout of the router makes no progress ({router.stuck.rstrip('.')}); "
            f"{router.ready} of {router.wanted} pods serve: look at the events and logs of those that are not ready."
        )
        return _ready(FALSE, Reason.ROLLOUT_STUCK, message)
    if ready.reason is not Reason.PODS_READY:
        return ready
    told = f"All pods are ready: {serving}, {router.wanted} router"
    if router.trouble:
        message = f"{told}; but no new router takes the place of an old one: {router.trouble.told}."
        return _ready(TRUE, router.trouble.reason, message)
    return replace(ready, message=f"{told}.")


def _why_no_router(router: RouterView) -> tuple[Reason, str]:
    if router.refused:
        return Reason.PODS_REFUSED, f"; the cluster refuses to make more ({router.refused.rstrip('.')})"
    if router.trouble:
        return router.trouble.reason, f" ({router.trouble.told})"
    if router.stuck:
        return Reason.ROLLOUT_STUCK, f" and its rollout makes no progress ({router.stuck.rstrip('.')})"
    return Reason.ROUTER_NOT_READY, ""


def judge_policy_active(facts: Facts) -> Verdict:
    """PolicyActive: every ready pod reports the effective generation."""
    pods = facts.ready_pods()
    if not pods:
        message = f"No pod is ready, so none can report generation {facts.generation}."
        return Verdict(ConditionType.POLICY_ACTIVE, UNKNOWN, Reason.NO_READY_PODS, message)
    behind = [pod for pod in pods if not reports(pod, facts.generation)]
    if not behind:
        message = f"All {len(pods)} ready pods report generation {facts.generation}."
        return Verdict(ConditionType.POLICY_ACTIVE, TRUE, Reason.GENERATION_REPORTED, message)
    count = f"{len(pods) - len(behind)} of {len(pods)} ready pods report generation {facts.generation}"
    overdue = [pod for pod in behind if facts.now >= _due(facts, pod)]
    if not overdue:
        message = f"{count}; {_how_the_others_follow(facts)}."
        return Verdict(ConditionType.POLICY_ACTIVE, UNKNOWN, Reason.PROPAGATING, message)
    wrong = [pod for pod in overdue if isinstance(pod.reported_generation, Sample)]
    if wrong:
        message = f"{count}; {_names(wrong)} still report another: {_where_to_look(facts)}."
        return Verdict(ConditionType.POLICY_ACTIVE, FALSE, Reason.GENERATION_NOT_REPORTED, message)
    message = f"{count}; nothing fresh is known of {_names(overdue)}: {_why_silent(overdue[0])}"
    return Verdict(ConditionType.POLICY_ACTIVE, UNKNOWN, Reason.GENERATION_UNKNOWN, message, noisy=True)


def _due(facts: Facts, pod: PodView) -> float:
    """When the pod must have reported: counted from the change, or from its turning ready if that is later."""
    return max(facts.changed_at_s or 0, pod.ready_since_s or 0) + facts.propagation_s


def _how_the_others_follow(facts: Facts) -> str:
    if facts.spec.attach is None:
        return f"the others have {facts.propagation_s} seconds from the change to follow"
    return (
        f"the files of attached pods follow a change within {KUBELET_REFRESH_S} seconds, "
        f"and the others have {facts.propagation_s} to report it"
    )


def _where_to_look(facts: Facts) -> str:
    if facts.spec.attach is None:
        return "look in their logs for a refused policy file"
    return "see that they mount the policy ConfigMap, without subPath, and look in their logs for a refused policy file"


def _names(pods: Sequence[PodView], limit: int = 3) -> str:
    names = ", ".join(pod.name for pod in pods[:limit])
    return names if len(pods) <= limit else f"{names} and {len(pods) - limit} more"


def _why_silent(pod: PodView) -> str:
    match pod.reported_generation:
        case Missing(reason=why):
            return why
        case Stale(why=why) if why:
            return why
    return "its last report is stale."


def role_statuses(facts: Facts) -> list[RoleStatus]:
    """`.status.roles`: per role, how many pods are wanted, ready, and ready with the effective generation.

    Of pods that somebody else makes, those found are those wanted."""
    wanted = {role: spec.replicas for role, spec in facts.spec.roles().items()}
    wanted |= {role: len(facts.found_pods(role)) for role in facts.spec.attached_roles()}
    return [_role_status(facts, role, desired) for role, desired in wanted.items()]


def _role_status(facts: Facts, role: Role, desired: int) -> RoleStatus:
    pods = facts.ready_pods(role)
    reported = [p.reported_generation.value for p in pods if isinstance(p.reported_generation, Sample | Stale)]
    return RoleStatus(
        name=role,
        desired=desired,
        ready=len(pods),
        active=sum(facts.follows(pod) for pod in pods),
        reported_generation=min(reported, default=None),
    )


def find_condition(conditions: Sequence[Condition], kind: ConditionType) -> Condition | None:
    """The condition of that type, if the status has it."""
    return next((condition for condition in conditions if condition.type is kind), None)


def merge_conditions(
    previous: Sequence[Condition], verdicts: Sequence[Verdict], generation: int, now: float
) -> list[Condition]:
    """The conditions after `verdicts`, in the order of ConditionType; those not judged stay as they are."""
    merged = {condition.type: condition for condition in previous}
    for verdict in verdicts:
        merged[verdict.type] = _merge(merged.get(verdict.type), verdict, generation, now)
    return [merged[kind] for kind in ConditionType if kind in merged]


def _merge(old: Condition | None, verdict: Verdict, generation: int, now: float) -> Condition:
    kept = old is not None and old.status is verdict.status
    same_words = old is not None and old.reason == verdict.reason and wording(old.message) == wording(verdict.message)
    return Condition(
        type=verdict.type,
        status=verdict.status,
        reason=verdict.reason.value,
        message=old.message if old is not None and verdict.noisy and same_words else verdict.message,
        last_transition_time=old.last_transition_time if old is not None and kept else format_time(now),
        observed_generation=generation,
    )


def wording(message: str) -> str:
    """A sentence without its numbers and without what a cluster makes up for the names of pods: equal for two sentences
    that differ in nothing else."""
    return re.sub(r"\d[\d.,]*(?:e[+-]\d+)?", "#", _POD_SUFFIX.sub("-#", message))


def changed_at(status: PrefillPolicyStatus, effective: EffectiveStatus) -> int | None:
    """When the effective generation began, by the history; None if the history does not know."""
    times = [parse_time(move.at) for move in status.history if move.generation == effective.generation]
    return max(times, default=None)


def record_move(history: Sequence[Move], move: Move) -> list[Move]:
    """The history with one more move: the latest `HISTORY_LENGTH`, oldest first."""
    return [*history, move][-HISTORY_LENGTH:]


def is_trouble(condition: Condition) -> bool:
    """Whether a condition is not as it should be. That metrics are not known yet is no trouble."""
    if condition.type in _GOOD:
        return condition.status is not TRUE
    if condition.type in _BAD:
        return condition.status is TRUE
    unmeasured = condition.type is ConditionType.METRICS_AVAILABLE and condition.status is FALSE
    return unmeasured or condition.reason in NOT_SCALED


_GOOD = (ConditionType.ACCEPTED, ConditionType.READY, ConditionType.POLICY_ACTIVE)
_BAD = (ConditionType.CAPACITY_LIMITED, ConditionType.DEGRADED)

NOT_SCALED = (Reason.NOT_FOLLOWED, Reason.SCALED_BY_ANOTHER)
"""Reasons of ScalingActive that are faults: waiting alone mends neither."""


def headline(conditions: Sequence[Condition]) -> str | None:
    """The reason of the first condition, in the order of ConditionType, that is not as it should be; else Ready's.

    What is wrong goes before what is not known: a source that fails tells nothing of the generations either.
    """
    ready = find_condition(conditions, ConditionType.READY)
    troubled = [condition for condition in conditions if is_trouble(condition)]
    known = [condition for condition in troubled if condition.status is not UNKNOWN]
    return next((condition.reason for condition in known + troubled), None if ready is None else ready.reason)


def refused(
    status: PrefillPolicyStatus, generation: int, reason: Reason, message: str, now: float
) -> PrefillPolicyStatus:
    """The status of a fleet whose spec cannot be carried out: what runs keeps running, and Accepted says why.

    A spec that is wrong, or that the API server refuses, is not accepted; whether one is that the operator
    itself failed over is unknown.
    """
    outcome = UNKNOWN if reason is Reason.RECONCILE_FAILED else FALSE
    verdict = Verdict(ConditionType.ACCEPTED, outcome, reason, message, noisy=True)
    conditions = merge_conditions(status.conditions, [verdict], generation, now)
    update = {"conditions": conditions, "observed_generation": generation, "reason": headline(conditions)}
    return status.model_copy(update=update)


def still_ready(
    status: PrefillPolicyStatus,
    pods: Sequence[PodView],
    stuck: Mapping[Role, str],
    denied: Mapping[Role, str],
    now: float,
    router: RouterView | None = None,
) -> PrefillPolicyStatus:
    """The status of a fleet whose present spec is not carried out, with its pods counted anew.

    They are held against what the last spec that was accepted asked for.
    """
    wanted = {role.name: role.desired for role in status.roles}
    verdict = count_ready(wanted, pods, stuck, denied)
    if verdict.status is TRUE and router is not None:
        verdict = _count_router(router, wanted, verdict)
    return recounted(status, pods, wanted, verdict, now)


def recounted(
    status: PrefillPolicyStatus, pods: Sequence[PodView], wanted: Mapping[Role, int], verdict: Verdict, now: float
) -> PrefillPolicyStatus:
    """The status with its roles counted anew and that verdict of Ready, if it ever had any.

    Ready's observedGeneration goes on to name the last spec that was accepted. Nobody measures such a fleet, so all
    else stays as it was last known.
    """
    before = find_condition(status.conditions, ConditionType.READY)
    if before is None or not status.roles:
        return status
    roles = [_recount(role, wanted[role.name], pods) for role in status.roles]
    return status.model_copy(
        update={
            "conditions": merge_conditions(status.conditions, [verdict], before.observed_generation, now),
            "roles": roles,
            "pods": PodColumns.of(roles),
        }
    )


def _recount(role: RoleStatus, desired: int, pods: Sequence[PodView]) -> RoleStatus:
    ready = sum(pod.ready and not pod.terminating and pod.role is role.name for pod in pods)
    return role.model_copy(update={"desired": desired, "ready": ready, "active": min(role.active, ready)})
