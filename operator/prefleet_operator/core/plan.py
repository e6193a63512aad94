"""The decision about one fleet: (what it is, what was observed, now) -> what is to be done and said. Pure.

    1. memory   what the tuner remembers: from status, or adopted from the live ConfigMap where status is behind
                it (lost, or the operator ended between two writes) and the ConfigMap is of our own making
    2. tune     what the fleet is to run
    3. size     how many pods its sized roles are to have; tuner and sizing never act on one signal (`tune_or_scale`)
    4. policies the same content keeps the live generation, another content gets the next one
    5. status   conditions, roles, evidence and history as they will be once the ConfigMap is applied
    6. events   one for each move, each new number of pods, and each condition whose status changed

Generations never go back: the next one lies above what the ConfigMap and the status say, so either may be lost.
The same input gives the same plan, so a plan may be carried out twice, or half.

Left out: rendering objects and carrying the plan out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from prefleet_operator.api import (
    Actuator,
    ConditionType,
    EffectiveStatus,
    Move,
    PodColumns,
    PrefillPolicySpec,
    PrefillPolicyStatus,
    Role,
    SizingStatus,
    format_duration,
)
from prefleet_operator.core.attached import judge_attached_ready
from prefleet_operator.core.events import Event, condition_events
from prefleet_operator.core.health import judge_capacity, judge_degraded
from prefleet_operator.core.measured import is_brief_gap, judge_metrics, pass_over
from prefleet_operator.core.native_policy import FleetPolicy, NativePolicy, as_run
from prefleet_operator.core.observed import FleetMetrics, PodView, RouterView
from prefleet_operator.core.policy_active import judge_policy_active
from prefleet_operator.core.ready import judge_ready
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.restart_budget import within_budget
from prefleet_operator.core.runtime_policy import to_fleet_policy, to_scheduling_policy
from prefleet_operator.core.scaling import judge_growth, judge_room, judge_scaling, scale_events, tell_others
from prefleet_operator.core.sizing.state import SizingState, tell
from prefleet_operator.core.sizing.turn import Sizer, SizingView, with_replicas
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
from prefleet_operator.core.tuning import TunerMemory, TuningDecision, format_time, recall, settle, to_status

UNTAKEN_S = 60
"""How long a controller may take to notice an object: it usually takes less than one second."""


@dataclass(frozen=True, slots=True)
class LivePolicy:
    """What the ConfigMap says now. `policy` is None where its content cannot be read.

    `generation`: the highest that its content or annotation carries, so that not even garbage turns it back.
    `ours`: the operator wrote the present content, and nobody else has touched it.
    """

    policy: FleetPolicy | None
    generation: int
    ours: bool = True


@dataclass(frozen=True, slots=True)
class Situation:
    """All that one decision looks at.

    `spec`: with the live replicas of roles whose number somebody else's autoscaler sets (`sizing.others`).
    `stuck`: by role, why its rollout makes no progress; `refused`: why the cluster refuses to make its pods; `untaken`:
    since when its pods wait for a controller to take notice. `warnings`: what the engine has to say of the spec.
    `sizing`: what the sizes of a fleet that is autoscaled rest on. `missed_since_s`: when the first reading in a row
    was taken that had no lengths.
    """

    spec: PrefillPolicySpec
    generation: int
    status: PrefillPolicyStatus
    live: LivePolicy | None
    metrics: FleetMetrics
    pods: tuple[PodView, ...] = ()
    pod_generations: Mapping[str, int | None] = field(default_factory=dict)
    stuck: Mapping[Role, str] = field(default_factory=dict)
    untaken: Mapping[Role, float] = field(default_factory=dict)
    refused: Mapping[Role, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ("PodScrape",)
    warnings: tuple[str, ...] = ()
    router: RouterView | None = None
    sizing: SizingView = field(default_factory=SizingView)
    missed_since_s: float | None = None


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
    policy = _next_policy(situation, to_fleet_policy(decision, spec, 0))
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


def describe_effective(policy: FleetPolicy) -> EffectiveStatus:
    """The live policy in the resource's own words."""
    split = policy.policy.has_threshold
    return EffectiveStatus(
        policy=to_scheduling_policy(policy.policy),
        threshold=policy.threshold if split else None,
        long_max_wait=format_duration(policy.long_max_wait_ms / 1000) if split else None,
        generation=policy.generation,
    )


def _next_policy(situation: Situation, wanted: FleetPolicy) -> FleetPolicy:
    """`wanted` under the highest generation known if the ConfigMap says just that, else under the next one.

    The ConfigMap of an engine that is told at its start is read by no pod. Where it is gone or spoilt, and the status
    knows that nothing else is wanted, the generation stays: the next one would replace every pod for nothing. One that
    can be read is believed, since a status does not tell all that an engine is told, nor of a spec that was refused.
    """
    live, effective = situation.live, situation.status.effective
    known = max(0 if live is None else live.generation, 0 if effective is None else effective.generation)
    unchanged = live is not None and live.policy == _numbered(wanted, known)
    lost = live is None or live.policy is None or not live.ours
    if lost and isinstance(wanted, NativePolicy) and _is_carried_out(situation):
        unchanged = describe_effective(_numbered(wanted, known)) == effective
    return _numbered(wanted, known if unchanged else known + 1)


def _is_carried_out(situation: Situation) -> bool:
    """Whether the status is of this very spec, applied."""
    accepted = find_condition(situation.status.conditions, ConditionType.ACCEPTED)
    known = accepted is not None and accepted.status is TRUE
    return known and situation.status.observed_generation == situation.generation


def _numbered(policy: FleetPolicy, generation: int) -> FleetPolicy:
    return policy.model_copy(update={"generation": generation})


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
        history = record_move(history, _move(situation, decision, effective, now))
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
    missing = leading.reason in (Reason.METRICS_MISSING, Reason.METRICS_STALE)
    status = TRUE if decision.settled else UNKNOWN if missing else FALSE
    return Verdict(ConditionType.TUNED, status, leading.reason, leading.message, noisy)


def _move(situation: Situation, decision: TuningDecision, effective: EffectiveStatus, now: float) -> Move:
    reason, message = _why(situation, decision, effective)
    return Move(
        at=format_time(now),
        generation=effective.generation,
        policy=effective.policy,
        threshold=effective.threshold,
        long_max_wait=effective.long_max_wait,
        reason=reason.value,
        message=message,
    )


def _why(situation: Situation, decision: TuningDecision, effective: EffectiveStatus) -> tuple[Reason, str]:
    """Why this generation is another than the last one in status.

    What the tuner has moved goes before what else has happened to the ConfigMap: under another name it would not count
    as the restart that it may be (`restart_budget`), nor be told.
    """
    setting, live, known = describe_setting(effective), situation.live, situation.status.effective
    if live is None and known is None:
        return Reason.FLEET_CREATED, f"The fleet starts with {setting}."
    if live is not None and live.ours and live.generation == effective.generation:
        return Reason.ADOPTED, f"The status did not know what the policy ConfigMap says: {setting} is adopted."
    drift = _drift(live, setting)
    if decision.moves:
        told = " ".join(dict.fromkeys(move.message for move in decision.moves))
        return decision.moves[0].reason, f"{told}. {drift}" if drift else told
    if live is None and situation.status.observed_generation != situation.generation:
        return Reason.SPEC_CHANGED, f"The spec changed; a policy ConfigMap is written with {setting}."
    if drift:
        return Reason.DRIFT_CORRECTED, drift
    return Reason.SPEC_CHANGED, f"The spec changed; the fleet runs {setting}."


def _drift(live: LivePolicy | None, setting: str) -> str:
    """What somebody else has done to the ConfigMap; "" if nothing."""
    if live is None:
        return f"The policy ConfigMap was deleted; it is there again with {setting}."
    return "" if live.ours else f"The policy ConfigMap was changed by someone else; it is {setting} again."


def describe_setting(effective: EffectiveStatus) -> str:
    """The setting in a few words."""
    if not effective.policy.has_threshold:
        return effective.policy.value
    return f"{effective.policy.value} with threshold {effective.threshold} and longMaxWait {effective.long_max_wait}"


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
