"""What the operator says of a fleet: conditions from what was observed, merged into the status that stands.

Every condition is a `Verdict` by one small function over the same `Facts`; a verdict is a status, a reason
and one sentence with the numbers and what to do. `merge_conditions` gives verdicts their times:
`lastTransitionTime` changes only with the status, and a sentence whose numbers are noise is replaced only
when its words change, so that a status is written when a state has changed and not otherwise.

Left out: the verdicts themselves (`ready`, `policy_active`, `started`, `attached`, `measured`, `health`, `scaling`);
when to write, and to whom.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
)
from prefleet_operator.core.observed import PodView, RouterView, Sample, Stale
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.tuning import format_time, parse_time

PROPAGATION_S = 120
"""How long a generation may be on its way before PolicyActive turns False: a kubelet takes up to 90."""

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
