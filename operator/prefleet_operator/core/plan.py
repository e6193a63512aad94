"""The decision about one fleet: (what it is, what was observed, now) -> what is to be done and said. Pure.

    1. memory   what the tuner remembers: from status, or adopted from the live ConfigMap where status is behind
                it (lost, or the operator ended between two writes) and the ConfigMap is of our own making
    2. tune     what the fleet is to run
    3. size     how many pods its sized roles are to have; tuner and sizing never act on one signal (`tune_or_scale`)
    4. policy   under which generation: the live one for the same content, the next one for another (`generation`)
    5. status   conditions, roles, evidence and history as they will be once the ConfigMap is applied
    6. events   one for each move, each new number of pods, and each condition whose status changed

The same input gives the same plan, so a plan may be carried out twice, or half.

Left out: rendering objects and carrying the plan out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from prefleet_operator.api import (
    Actuator,
    ConditionType,
    PodColumns,
    PrefillPolicySpec,
    PrefillPolicyStatus,
    Role,
    SizingStatus,
)
from prefleet_operator.core.attached import judge_attached_ready
from prefleet_operator.core.events import Event, condition_events
from prefleet_operator.core.generation import describe_effective, next_policy, tell_move
from prefleet_operator.core.health import judge_capacity, judge_degraded
from prefleet_operator.core.measured import is_brief_gap, judge_metrics, pass_over
from prefleet_operator.core.native_policy import FleetPolicy, as_run
from prefleet_operator.core.policy_active import judge_policy_active
from prefleet_operator.core.ready import judge_ready
from prefleet_operator.core.reasons import UNMEASURED, Reason
from prefleet_operator.core.restart_budget import within_budget
from prefleet_operator.core.runtime_policy import to_fleet_policy
from prefleet_operator.core.scaling import judge_growth, judge_room, judge_scaling, scale_events, tell_others
from prefleet_operator.core.situation import Situation
from prefleet_operator.core.sizing.state import SizingState, tell
from prefleet_operator.core.sizing.turn import Sizer, with_replicas
from prefleet_operator.core.started import judge_started
from prefleet_operator.core.status import (
    FALSE,
    TRUE,
    UNKNOWN,
    Facts,
    Verdict,
    changed_at,
    find_condition,
    headline,
    merge_conditions,
    record_move,
    role_statuses,
)
from prefleet_operator.core.tune_or_scale import decide_together
from prefleet_operator.core.tuner import decide
from prefleet_operator.core.tuning import TunerMemory, TuningDecision, recall, settle, to_status

UNTAKEN_S = 60
"""How long a controller may take to notice an object: it usually takes less than one second."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done. `annotate`: pods whose annotation is behind, after the ConfigMap has been applied; never
    those that somebody else makes. `spec`: with the replicas that sized roles are to have; `sizes`: those of them that
    the operator itself sets; `sizing`: None of a fleet that is not autoscaled."""

    policy: FleetPolicy
    annotate: tuple[str, ...]
    status: PrefillPolicyStatus
    events: tuple[Event, ...]
    decision: TuningDecision
    spec: PrefillPolicySpec
    sizes: Mapping[Role, int] = field(default_factory=dict)
    sizing: SizingState | None = None

    @property
    def asked(self) -> Mapping[Role, int]:
        """The replicas that each role is to have once whoever sets them has followed."""
        counts = {role: part.replicas for role, part in self.spec.roles().items()}
        return counts if self.sizing is None or self.sizes else {**counts, **self.sizing.wanted}


def make_plan(situation: Situation, now: float) -> Plan:
    """Decide about one fleet; `now` in Unix seconds."""
    before, spec = recall_memory(situation, now), as_run(situation.spec)
    decision, memory = decide(situation.metrics, spec, before, now)
    if spec.engine.told_at_start:
        decision, memory = within_budget(spec, situation.status.history, before, decision, memory, now)
    sizing, told, sizes = None, None, dict[Role, int]()
    if spec.autoscaling is not None:
        sizer = Sizer(spec, situation.generation, situation.sizing, situation.pods, now)
        decision, memory, sizing = decide_together(sizer, situation.status.autoscaling, before, decision, memory)
        counts = sizer.counts(sizing)
        situation = replace(situation, spec=with_replicas(situation.spec, counts))
        sizes = counts if spec.autoscaling.actuator is Actuator.DIRECT else sizes
        renewed = situation.status.observed_generation != situation.generation
        sizing, told = tell(sizer.compare(sizing), situation.status.autoscaling, renewed, now)
    policy = next_policy(situation, to_fleet_policy(decision, spec, 0))
    status = _next_status(situation, decision, memory, policy, told, now)
    return Plan(
        policy=policy,
        annotate=() if situation.spec.attach is not None else _pods_behind(situation, policy.generation),
        status=status,
        events=_move_events(situation.status, status)
        + (() if sizing is None else tuple(scale_events(situation.status.autoscaling, sizing)))
        + condition_events(situation.status, status)
        + _warning_events(situation),
        decision=decision,
        spec=situation.spec,
        sizes=sizes,
        sizing=sizing,
    )


def recall_memory(situation: Situation, now: float) -> TunerMemory:
    """What the tuner remembers. A status that is behind the live ConfigMap has lost the last move."""
    live, effective = situation.live, situation.status.effective
    adoptable = None if live is None or not live.ours else live.policy
    behind = adoptable is not None and (effective is None or effective.generation < adoptable.generation)
    return recall(None if behind else situation.status.tuning, adoptable, now)


def _pods_behind(situation: Situation, generation: int) -> tuple[str, ...]:
    """Of an engine that is told at its start none: there the annotation says with what a pod was started."""
    if situation.spec.engine.told_at_start:
        return ()
    annotated = situation.pod_generations
    return tuple(pod.name for pod in situation.pods if not pod.terminating and annotated.get(pod.name) != generation)


def _next_status(
    situation: Situation,
    decision: TuningDecision,
    memory: TunerMemory,
    policy: FleetPolicy,
    autoscaling: SizingStatus | None,
    now: float,
) -> PrefillPolicyStatus:
    previous, effective = situation.status, describe_effective(policy)
    lengths, missed_since_s = situation.metrics.lengths, situation.missed_since_s
    brief = is_brief_gap(lengths, missed_since_s, previous.conditions, situation.generation, now)
    tuning = settle(previous.tuning, to_status(decision, memory), brief)
    history = list(previous.history)
    if previous.effective is None or previous.effective.generation != effective.generation:
        history = record_move(history, tell_move(situation, decision, effective, now))
    status = previous.model_copy(update={"history": history, "effective": effective, "tuning": tuning})
    facts = Facts(
        spec=situation.spec,
        pods=situation.pods,
        generation=effective.generation,
        changed_at_s=changed_at(status, effective),
        now=now,
        stuck={**situation.stuck, **_never_taken(situation, now)},
        router=situation.router,
        refused=situation.refused,
    )
    verdicts: tuple[Verdict, ...] = (
        judge_accepted(situation),
        judge_ready(facts) if situation.spec.attach is None else judge_attached_ready(facts),
        judge_started(facts)
        if situation.spec.engine.told_at_start
        else judge_policy_active(facts, previous.conditions),
        judge_metrics(lengths, missed_since_s, situation.sources, facts),
        judge_tuned(decision, noisy=tuning == previous.tuning),
        *_judge_sizes(situation, facts, decision, autoscaling, tuning == previous.tuning),
        judge_degraded(situation.metrics.degradations, situation.spec, previous.conditions),
    )
    # What is not judged stays as it was: so a condition that is no more is taken out.
    lasting = [each for each in previous.conditions if autoscaling or each.type is not ConditionType.SCALING_ACTIVE]
    told_now = pass_over(verdicts, lasting) if brief else verdicts
    conditions = merge_conditions(lasting, told_now, situation.generation, now)
    roles = role_statuses(facts)
    return status.model_copy(
        update={
            "observed_generation": situation.generation,
            "reason": headline(conditions),
            "conditions": conditions,
            "roles": roles,
            "pods": PodColumns.of(roles),
            "autoscaling": autoscaling,
        }
    )


def _judge_sizes(
    situation: Situation, facts: Facts, decision: TuningDecision, told: SizingStatus | None, same_tuning: bool
) -> tuple[Verdict, ...]:
    """ScalingActive of a fleet that is autoscaled, and CapacityLimited: by the cluster, its bounds, or the tuner."""
    if told is None:
        return (judge_capacity(decision, same_tuning),)
    room = judge_growth(facts) or judge_room(told, situation.spec)
    return (
        judge_scaling(told, situation.spec, facts.now, situation.sizing.state),
        judge_capacity(decision, same_tuning, sized=True) if room is None else room,
    )


def judge_accepted(situation: Situation) -> Verdict:
    """Accepted: the spec is carried out, with what its engine has to say of it, and whose replicas are not followed."""
    others = tell_others(situation.sizing.others, situation.spec)
    message = " ".join(("The spec is valid and has been applied.", *situation.warnings, *others))
    return Verdict(ConditionType.ACCEPTED, TRUE, Reason.ACCEPTED, message)


def _never_taken(situation: Situation, now: float) -> dict[Role, str]:
    return {
        role: f"no controller has taken up its LeaderWorkerSet in {UNTAKEN_S} seconds: see whether one runs"
        for role, since_s in situation.untaken.items()
        if now - since_s >= UNTAKEN_S
    }


def judge_tuned(decision: TuningDecision, noisy: bool) -> Verdict:
    """Tuned: the values that run, or that are advised, rest on evidence or on a pin.

    `noisy`: the evidence has not changed enough to be written anew, so neither have the numbers in the message.
    """
    leading = decision.leading
    missing = leading.reason in UNMEASURED
    status = TRUE if decision.settled else UNKNOWN if missing else FALSE
    return Verdict(ConditionType.TUNED, status, leading.reason, leading.message, noisy)


def _move_events(before: PrefillPolicyStatus, after: PrefillPolicyStatus) -> tuple[Event, ...]:
    moves = [move for move in after.history if move not in before.history]
    return tuple(Event(Reason(move.reason), move.message) for move in moves)


def _warning_events(situation: Situation) -> tuple[Event, ...]:
    """One event for each sentence that Accepted does not say yet."""
    accepted = find_condition(situation.status.conditions, ConditionType.ACCEPTED)
    said = "" if accepted is None else accepted.message
    events = [Event(Reason.ENGINE_WARNING, told, warning=True) for told in situation.warnings]
    others = tell_others(situation.sizing.others, situation.spec)
    events += [Event(Reason.SCALED_BY_ANOTHER, told) for told in others]
    return tuple(event for event in events if event.message not in said)
