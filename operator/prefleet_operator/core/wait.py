"""How long a long request may wait before it is promoted.

Algorithm
1. W_normal is the `waitQuantile` of the long waits that replay finds with promotion off. Without replay it is
   that of all long waits of the window: while requests are promoted it stands for strict short-first only if
   the share of aged longs is at most 0.25; above that it is unknown. So it is on too few waits (59 for P95, 29
   for P90).
2. The limit lies in [max(1.5 W_normal, 0.5 W_slo), 0.9 W_slo], at the point that replay prefers (`rehearsal`),
   of `WAITS` of them; without replay at the one that `bias` names: 0 the low end (for long requests), 1 the high
   end. Where that is empty, tuning cannot keep W_slo: the limit is 0.9
   W_slo and the fleet is limited by its capacity.
3. A fleet starts without promotion. The first known W_normal ends that; so does, at once and whatever is
   known, a long request that has waited longer than W_slo: then the limit is 0.9 W_slo.
4. Later moves need a difference of more than 25% and keep to the cooldown, but a limit above 0.9 W_slo (the
   user has lowered it) is cut at once.

Invariants: a pinned limit never moves; nothing moves on missing or stale waits except by the cut of 4 and
by a fresh oldest wait of 3, or by replay; without a threshold in force, or one that replay can try, nothing moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from prefleet_operator.api import PrefillPolicySpec, format_duration
from prefleet_operator.core.histogram import count_above
from prefleet_operator.core.observed import FleetMetrics, HistogramSnapshot, Missing, Reading, Sample, Stale
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.rehearsal import WAITS, ReplayScore, prefer_wait, span_of, spread
from prefleet_operator.core.survival import WaitEstimate, estimate_wait, samples_needed
from prefleet_operator.core.threshold import cools_down
from prefleet_operator.core.tuning import Finding, TunerMemory, format_time

NORMAL_FACTOR = 1.5
SLO_FLOOR = 0.5
SLO_CEILING = 0.9
HYSTERESIS = 0.25
MAX_SHARE = 0.25
_QUANTILES = {"P90": 0.90, "P95": 0.95}

Rehearse = Callable[[float], ReplayScore]
"""Replays the window with the threshold at hand and this limit in seconds."""


@dataclass(frozen=True, slots=True)
class WaitOutcome:
    """The advised limit with its evidence, and the memory that goes with it."""

    memory: TunerMemory
    finding: Finding
    capacity_limited: bool = False


@dataclass(frozen=True, slots=True)
class _Goal:
    """Where the limit should be, in seconds, and the numbers behind it."""

    limit_s: float
    told: str
    capacity_limited: bool


def decide_wait(
    metrics: FleetMetrics,
    spec: PrefillPolicySpec,
    running_s: float | None,
    memory: TunerMemory,
    now: float,
    rehearse: Rehearse | None = None,
) -> WaitOutcome:
    """Rules 3 and 4 for a limit that is not pinned.

    `running_s`: the limit under which the waits were measured (0: none), or None where the fleet runs a policy
    without a threshold. `rehearse`: replays the window, where there is a threshold to replay it with.
    """
    present, ceiling = memory.long_max_wait_s, ceiling_s(spec)
    if present > ceiling:
        told = f"the limit {_s(present)} lies above 0.9 of slo.longQueueWait and is cut to {_s(ceiling)}"
        return _set(memory, ceiling, now, Reason.SLO_LOWERED, told)
    if running_s is None and rehearse is None:
        return _hold(memory, Reason.LEARNING_WAITS, "while no threshold is in force, no request waits as a long one")
    slo_s = spec.slo.long_queue_wait_s
    if present == 0 and (worst_s := _wait_beyond(metrics, slo_s)) is not None:
        told = f"a long request waited {_s(worst_s)} or more, above slo.longQueueWait {_s(slo_s)}"
        return _set(memory, ceiling, now, Reason.LONG_WAIT_BEYOND_SLO, f"{told}; promotion begins at {_s(ceiling)}")
    estimate = _normal_wait(metrics, spec, running_s or 0.0) if rehearse is None else _rehearsed_wait(spec, rehearse)
    if isinstance(estimate, Finding):
        return _hold(memory, estimate.reason, estimate.message)
    return _approach(_find_goal(estimate, spec, rehearse), spec, memory, now)


def pinned_wait(pinned_s: float, memory: TunerMemory) -> WaitOutcome:
    """The outcome for a limit that the spec gives."""
    told = (
        f"spec.scheduling.longMaxWait pins {_s(pinned_s)}"
        if pinned_s
        else "spec.scheduling.longMaxWait pins no promotion"
    )
    return WaitOutcome(replace(memory, long_max_wait_s=pinned_s), Finding(pinned_s, Reason.PINNED, told))


def _approach(goal: _Goal, spec: PrefillPolicySpec, memory: TunerMemory, now: float) -> WaitOutcome:
    """Move to the goal, unless the difference is small or the last move is young."""
    present, limit_s = memory.long_max_wait_s, goal.limit_s
    settled = Reason.CAPACITY_LIMITED if goal.capacity_limited else None
    if present == 0:
        told = f"{goal.told}; promotion begins at {_s(limit_s)}"
        outcome = _set(memory, limit_s, now, settled or Reason.WAIT_FROM_LONG_WAITS, told)
    elif abs(limit_s - present) <= HYSTERESIS * present:
        near = "" if limit_s == present else f" is within 25% of {_s(limit_s)} and"
        told = f"{goal.told}; the limit {_s(present)}{near} holds"
        outcome = _hold(memory, settled or Reason.WITHIN_HYSTERESIS, told, suffix="")
    elif cools_down(memory.wait_moved_at_s, spec, now):
        until = format_time((memory.wait_moved_at_s or 0) + spec.tuning.cooldown_s)
        told = f"{goal.told}; the limit {_s(present)} is off by {_s(limit_s)} and may move again at {until}"
        outcome = _hold(memory, settled or Reason.COOLING_DOWN, told, suffix="")
    else:
        told = f"{goal.told}; the limit moves from {_s(present)} to {_s(limit_s)}"
        outcome = _set(memory, limit_s, now, settled or Reason.WAIT_FROM_LONG_WAITS, told)
    return replace(outcome, capacity_limited=goal.capacity_limited)


def _find_goal(estimate: WaitEstimate, spec: PrefillPolicySpec, rehearse: Rehearse | None) -> _Goal:
    """Rule 2: the point of the range that replay prefers, or that `bias` names."""
    slo_s, ceiling = spec.slo.long_queue_wait_s, ceiling_s(spec)
    floor = max(NORMAL_FACTOR * estimate.wait_s, SLO_FLOOR * slo_s)
    least = "" if estimate.tail_known else " at least, its tail is unknown"
    normal = f"{spec.tuning.wait_quantile} of {estimate.samples:,} long waits is {_s(estimate.wait_s)}{least}"
    normal = normal if rehearse is None else f"in replay without promotion {normal}"
    if floor > ceiling:
        told = f"{normal}, and 1.5 times that exceeds {_s(ceiling)}, 0.9 of slo.longQueueWait: capacity is short"
        return _Goal(ceiling, told, capacity_limited=True)
    told = f"{normal}, so the limit may lie in {_s(floor)} to {_s(ceiling)}"
    limit_s = round(floor + spec.tuning.bias * (ceiling - floor), 3)
    if rehearse is not None:
        scores = {limit_s: rehearse(limit_s) for limit_s in (round(at_s, 3) for at_s in spread(floor, ceiling, WAITS))}
        limit_s = prefer_wait(scores, spec.tuning.bias, limit_s)
        late = f"{scores[limit_s].late_share:.1%} of longs late"
        told = f"{told}, where replay prefers {_s(limit_s)} ({span_of(scores)}; {late})"
    return _Goal(limit_s, told, capacity_limited=False)


def _rehearsed_wait(spec: PrefillPolicySpec, rehearse: Rehearse) -> WaitEstimate | Finding:
    """W_normal as replay finds it, or why it is unknown; every replayed request ends, so its tail is known."""
    strict, quantile = rehearse(0.0), spec.tuning.wait_quantile
    needed = samples_needed(_QUANTILES[quantile])
    if strict.long_waits < needed:
        return Finding(None, Reason.LEARNING_WAITS, f"{strict.long_waits:,} long waits in replay, of {needed} needed")
    return WaitEstimate(strict.long_wait_s(quantile), strict.long_waits, tail_known=True)


def _normal_wait(metrics: FleetMetrics, spec: PrefillPolicySpec, running_s: float) -> WaitEstimate | Finding:
    """W_normal, or why it is unknown."""
    match metrics.long_waits:
        case Missing(clause=why):
            return Finding(None, Reason.METRICS_MISSING, f"long waits are not measured: {why}")
        case Stale(at_s=at_s):
            return Finding(None, Reason.METRICS_STALE, f"long waits were last measured at {format_time(at_s)}")
        case Sample(value=waits):
            return _estimate(waits, _oldest(metrics.oldest_long_wait_s), spec, running_s)


def _estimate(
    waits: HistogramSnapshot, oldest_s: float, spec: PrefillPolicySpec, running_s: float
) -> WaitEstimate | Finding:
    share = spec.scheduling.aged_share
    if running_s > 0 and share > MAX_SHARE:
        told = f"W_normal is unknown: with agedShare {share:g} above {MAX_SHARE:g} promotion shortens long waits"
        return Finding(None, Reason.LEARNING_WAITS, told)
    q = _QUANTILES[spec.tuning.wait_quantile]
    estimate = estimate_wait(waits, q, oldest_s)
    if estimate is None:
        told = f"{waits.total:,.0f} long waits in {spec.tuning.window}, of {samples_needed(q)} needed"
        return Finding(None, Reason.LEARNING_WAITS, told)
    return estimate


def _wait_beyond(metrics: FleetMetrics, slo_s: float) -> float | None:
    """A wait above the SLO that was surely seen, in seconds, or None."""
    oldest_s = _oldest(metrics.oldest_long_wait_s)
    if oldest_s > slo_s:
        return oldest_s
    waits = metrics.long_waits
    return slo_s if isinstance(waits, Sample) and count_above(waits.value, slo_s) >= 1 else None


def _oldest(reading: Reading[float]) -> float:
    return reading.value if isinstance(reading, Sample) else 0.0


def _set(memory: TunerMemory, limit_s: float, now: float, reason: Reason, told: str) -> WaitOutcome:
    moved = replace(memory, long_max_wait_s=limit_s, wait_moved_at_s=int(now))
    return WaitOutcome(moved, Finding(limit_s, reason, told))


def _hold(memory: TunerMemory, reason: Reason, told: str, suffix: str | None = None) -> WaitOutcome:
    present = memory.long_max_wait_s
    if suffix is None:
        suffix = f"; the limit {_s(present)} holds" if present else "; longs are not promoted yet"
    return WaitOutcome(memory, Finding(present, reason, told + suffix))


def ceiling_s(spec: PrefillPolicySpec) -> float:
    """The greatest limit that still leaves room to keep slo.longQueueWait, in seconds."""
    return round(SLO_CEILING * spec.slo.long_queue_wait_s, 3)


_s = format_duration
