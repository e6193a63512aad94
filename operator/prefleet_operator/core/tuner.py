"""The tuner: (metrics, spec, memory, now) -> (decision, memory).

Order: the threshold first (`threshold.py`), the wait limit second (`wait.py`). What the two advise becomes
effective in mode Auto under ShortRequestFirst, the one policy with values to tune. In mode Advise it is only
reported, whatever the policy, and what would move is remembered as if it had; the fleet runs what the spec
says, or FCFS where that is ShortRequestFirst without a threshold. In mode Off, in mode Auto under another
policy, and where the engine cannot run ShortRequestFirst, nothing is computed beyond the band, and the memory
stays as it is.

Where the window can be replayed, both ask replay (`rehearsal.py`): thresholds are compared at the wait limit that
the spec pins, or at the highest one that keeps the SLO; limits are compared at the threshold decided before.

Invariants: pure; a pinned value never moves; missing or stale metrics move nothing; the same inputs give
the same decision, so a restart that recalls the memory changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from prefleet_operator.api import PrefillPolicySpec, SchedulingPolicy, StageType, TuningMode, format_duration
from prefleet_operator.core.observed import FleetMetrics, Missing
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.rehearsal import ReplayFunction
from prefleet_operator.core.stage_times import is_pinned, stage_times
from prefleet_operator.core.threshold import LengthStudy, ThresholdOutcome, decide_threshold, study_lengths
from prefleet_operator.core.tuning import Finding, TunerMemory, TuningDecision, TuningMove
from prefleet_operator.core.wait import Rehearse, WaitOutcome, ceiling_s, decide_wait, pinned_wait

FCFS = SchedulingPolicy.FCFS


def decide(
    metrics: FleetMetrics,
    spec: PrefillPolicySpec,
    memory: TunerMemory,
    now: float,
    replay: ReplayFunction | None = None,
) -> tuple[TuningDecision, TunerMemory]:
    """One decision. `now` in Unix seconds; `metrics` over the window of the spec; `replay`: tries settings on it."""
    mode, policy = spec.tuning.mode, spec.scheduling.policy
    if mode is TuningMode.OFF:
        return _untuned(metrics, spec, Reason.TUNING_OFF, "spec.tuning.mode is Off"), memory
    if not spec.engine.can.tunes or (mode is TuningMode.AUTO and not policy.has_threshold):
        return _untuned(metrics, spec, Reason.NOTHING_TO_TUNE, _nothing_to_tune(spec)), memory
    pinned_s = spec.scheduling.long_max_wait_s
    wait_s = ceiling_s(spec) if pinned_s is None else pinned_s
    rehearse = None if replay is None else (lambda tokens: replay(tokens, wait_s))
    threshold = decide_threshold(metrics.lengths, spec, _pinned_threshold(spec), memory, now, rehearse)
    wait = _decide_wait(_of_one_setting(metrics, memory, threshold.memory), spec, threshold.memory, now, replay)
    decision = _effective(spec, threshold, wait)
    if mode is TuningMode.AUTO:
        decision = replace(decision, moves=_moves(spec, memory, decision))
    return decision, wait.memory


def _nothing_to_tune(spec: PrefillPolicySpec) -> str:
    told = f"spec.scheduling.policy is {spec.scheduling.policy.value}, which has nothing to tune"
    stage = spec.scheduling.stage
    if spec.engine.can.tunes or stage.type is not StageType.TPT or is_pinned(stage):
        return told
    times = stage_times(spec)
    return (
        f"{told}; by slo.interTokenGap {spec.slo.inter_token_gap} a prefill counts {times.prefill_ms} ms and a decode "
        f"{times.decode_ms} ms of TPT, so at most {times.prefills_in_a_row} prefills come before a decode step"
    )


def _untuned(metrics: FleetMetrics, spec: PrefillPolicySpec, reason: Reason, told: str) -> TuningDecision:
    policy, threshold, wait_s = _as_pinned(spec)
    study = None if reason is Reason.TUNING_OFF else study_lengths(metrics.lengths, spec)
    evidence = told if study is None else f"{told}; {study.describe()}"
    return TuningDecision(
        policy=policy,
        threshold=threshold,
        long_max_wait_s=wait_s,
        advised_policy=policy,
        threshold_finding=Finding(threshold, reason, evidence),
        wait_finding=Finding(wait_s, reason, told),
        band=None if study is None else study.band,
        valley=_valley(study),
    )


def _decide_wait(
    metrics: FleetMetrics, spec: PrefillPolicySpec, memory: TunerMemory, now: float, replay: ReplayFunction | None
) -> WaitOutcome:
    pinned_s, rehearse = spec.scheduling.long_max_wait_s, _with_threshold(replay, memory)
    if spec.tuning.mode is TuningMode.ADVISE:
        policy, _, running_s = _as_pinned(spec)
        return decide_wait(metrics, spec, running_s if policy.has_threshold else None, memory, now, rehearse)
    if pinned_s is not None:
        return pinned_wait(pinned_s, memory)
    running = None if memory.policy is FCFS else memory.long_max_wait_s
    return decide_wait(metrics, spec, running, memory, now, rehearse)


def _of_one_setting(metrics: FleetMetrics, before: TunerMemory, after: TunerMemory) -> FleetMetrics:
    """Without the waits of all requests together, where this decision changes under what they would be judged.

    Waits by lane are of the lanes that were; these would be taken for waits under the new setting.
    """
    if (before.policy, before.threshold) == (after.policy, after.threshold) or isinstance(metrics.waits, Missing):
        return metrics
    told = Missing("the waits of the window were measured under another setting")
    return replace(
        metrics, waits=told, long_waits=told if isinstance(metrics.long_waits, Missing) else metrics.long_waits
    )


def _with_threshold(replay: ReplayFunction | None, memory: TunerMemory) -> Rehearse | None:
    """Replay with the threshold at hand; under FCFS no request waits as a long one, whatever the limit."""
    if replay is None or memory.threshold is None or memory.policy is FCFS:
        return None
    return partial(replay, memory.threshold)


def _effective(spec: PrefillPolicySpec, threshold: ThresholdOutcome, wait: WaitOutcome) -> TuningDecision:
    advised = wait.memory
    policy, tokens, wait_s = advised.policy or FCFS, advised.threshold, advised.long_max_wait_s
    if spec.tuning.mode is TuningMode.ADVISE:
        policy, tokens, wait_s = _as_pinned(spec)
    return TuningDecision(
        policy=policy,
        threshold=tokens if policy.has_threshold else None,
        long_max_wait_s=wait_s if policy.has_threshold else 0.0,
        advised_policy=advised.policy or FCFS,
        threshold_finding=threshold.finding,
        wait_finding=wait.finding,
        band=None if threshold.study is None else threshold.study.band,
        valley=_valley(threshold.study),
        capacity_limited=wait.capacity_limited,
        normal_wait_s=wait.normal_s,
    )


def _pinned_threshold(spec: PrefillPolicySpec) -> int | None:
    """The threshold that the tuner must leave alone; in Advise mode it advises against the pinned one too."""
    return None if spec.tuning.mode is TuningMode.ADVISE else spec.scheduling.threshold


def _as_pinned(spec: PrefillPolicySpec) -> tuple[SchedulingPolicy, int | None, float]:
    """What runs on the spec alone: its policy with its pins, or FCFS where a threshold is needed and not pinned."""
    scheduling = spec.scheduling
    if not scheduling.policy.has_threshold:
        return scheduling.policy, None, 0.0
    if scheduling.threshold is None:
        return FCFS, None, 0.0
    return scheduling.policy, scheduling.threshold, scheduling.long_max_wait_s or 0.0


def _valley(study: LengthStudy | None) -> int | None:
    return None if study is None else study.valley_floor


def _moves(spec: PrefillPolicySpec, before: TunerMemory, decision: TuningDecision) -> tuple[TuningMove, ...]:
    """What the tuner, not the user, has changed of what the fleet runs since the last decision.

    A fleet that runs FCFS before and after runs no threshold and no limit, whatever is remembered of them: a change of
    that reaches no engine.
    """
    if not (before.policy or FCFS).has_threshold and not decision.policy.has_threshold:
        return ()
    moves: list[TuningMove] = []
    threshold, wait = decision.threshold_finding, decision.wait_finding

    def note(name: str, old: str, new: str, finding: Finding) -> None:
        if old != new:
            moves.append(TuningMove(name, old, new, finding.reason, finding.message))

    if spec.scheduling.threshold is None:
        note("policy", (before.policy or FCFS).value, decision.policy.value, threshold)
        note("threshold", _text(before.threshold), _text(threshold.value), threshold)
    if spec.scheduling.long_max_wait is None:
        note("longMaxWait", format_duration(before.long_max_wait_s), format_duration(wait.value or 0.0), wait)
    return tuple(moves)


def _text(tokens: float | None) -> str:
    return "none" if tokens is None else f"{int(tokens)}"
