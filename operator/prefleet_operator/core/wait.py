"""How long a long request may wait before it is promoted.

Algorithm
1. W_normal is the `waitQuantile` of the long waits that replay finds with promotion off. Without replay it is
   that of all long waits of the window: while requests are promoted it stands for strict short-first only if
   the share of aged longs is at most 0.25; above that it is unknown. So it is on too few waits (59 for P95, 29
   for P90). Where the engine shows the waits of all requests together, an upper bound stands for it
   (`wait_bound`), and is called one wherever it is told. A bound proves no want of capacity: where it leaves no
   range, the limit is 0.9 W_slo and nothing is said of capacity.
2. The limit lies in [max(1.5 W_normal, 0.5 W_slo), 0.9 W_slo], at the point that replay prefers (`rehearsal`),
   of `WAITS` of them; without replay at the one that `bias` names: 0 the low end (for long requests), 1 the high
   end. Where that is empty, tuning cannot keep W_slo: the limit is 0.9
   W_slo and the fleet is limited by its capacity, until 1.25 times as much would leave a range. By rule 4 no limit
   would move before either: so a fleet at the edge does not flap.
3. A fleet starts without promotion. The first known W_normal ends that; so does, at once and whatever is
   known, a long request that has waited longer than W_slo: then the limit is 0.9 W_slo. Waits of all requests
   together never end it so: the one beyond W_slo may have been short.
4. Later moves need a difference of more than 25% and keep to the cooldown, and to a whole window after the last move
   of the threshold: until then the waits are those of other requests. But a limit above 0.9 W_slo (the user has
   lowered it) is cut at once.

Invariants: a pinned limit never moves; nothing moves on missing or stale waits except by the cut of 4 and
by a fresh oldest wait of 3, or by replay; without a threshold in force, or one that replay can try, nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from prefleet_operator.api import PrefillPolicySpec, format_duration
from prefleet_operator.core.histogram import count_above
from prefleet_operator.core.observed import FleetMetrics, HistogramSnapshot, Missing, Reading, Sample, Stale
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.rehearsal import WAITS, ReplayScore, prefer_wait, span_of, spread
from prefleet_operator.core.survival import estimate_wait, samples_needed
from prefleet_operator.core.tuning import Finding, TunerMemory, format_time
from prefleet_operator.core.wait_bound import LATE_CLOCKS, bound_wait, most_short

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
    """The advised limit with its evidence, and the memory that goes with it. `normal_s`: W_normal in seconds, None
    where it is not known or only bounded."""

    memory: TunerMemory
    finding: Finding
    capacity_limited: bool = False
    normal_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Normal:
    """W_normal in seconds with the numbers behind it; `bound`: it is that at most."""

    wait_s: float
    told: str
    bound: bool = False


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
    if rehearse is not None:
        normal = _rehearsed_wait(spec, rehearse)
    else:
        normal = _normal_wait(metrics, spec, running_s or 0.0, spec.scheduling.threshold or memory.threshold)
    if isinstance(normal, Finding):
        return _hold(memory, normal.reason, normal.message)
    outcome = _approach(_find_goal(normal, spec, memory.capacity_limited, rehearse), spec, memory, now)
    return replace(outcome, normal_s=None if normal.bound else normal.wait_s)


def pinned_wait(pinned_s: float, memory: TunerMemory) -> WaitOutcome:
    """The outcome for a limit that the spec gives."""
    told = (
        f"spec.scheduling.longMaxWait pins {_s(pinned_s)}"
        if pinned_s
        else "spec.scheduling.longMaxWait pins no promotion"
    )
    pinned = replace(memory, long_max_wait_s=pinned_s, capacity_limited=False)
    return WaitOutcome(pinned, Finding(pinned_s, Reason.PINNED, told))


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
    elif (held_until := _held_until(memory, spec)) > now:
        told = f"{goal.told}; the limit {_s(present)} is off by {_s(limit_s)} and may move again at "
        outcome = _hold(memory, settled or Reason.COOLING_DOWN, told + format_time(held_until), suffix="")
    else:
        told = f"{goal.told}; the limit moves from {_s(present)} to {_s(limit_s)}"
        outcome = _set(memory, limit_s, now, settled or Reason.WAIT_FROM_LONG_WAITS, told)
    return replace(outcome, capacity_limited=goal.capacity_limited)


def _held_until(memory: TunerMemory, spec: PrefillPolicySpec) -> float:
    """When the cooldown is over, and the window holds no wait from under another threshold."""
    moves = (
        (memory.wait_moved_at_s, spec.tuning.cooldown_s),
        (memory.threshold_moved_at_s, spec.tuning.window_s),
    )
    return max((at_s + hold_s for at_s, hold_s in moves if at_s is not None), default=-math.inf)


def _find_goal(normal: _Normal, spec: PrefillPolicySpec, was_short: bool, rehearse: Rehearse | None) -> _Goal:
    """Rule 2: the point of the range that replay prefers, or that `bias` names. `was_short`: capacity was until now."""
    slo_s, ceiling = spec.slo.long_queue_wait_s, ceiling_s(spec)
    floor = max(NORMAL_FACTOR * normal.wait_s, SLO_FLOOR * slo_s)
    if floor > ceiling:
        told = f"{normal.told}, and 1.5 times that exceeds {_s(ceiling)}, 0.9 of slo.longQueueWait"
        if normal.bound:
            return _Goal(ceiling, f"{told}, the highest limit that keeps it", capacity_limited=False)
        return _Goal(ceiling, f"{told}: capacity is short", capacity_limited=True)
    enough = ceiling / (1 + HYSTERESIS)
    if was_short and not normal.bound and NORMAL_FACTOR * normal.wait_s > enough:
        told = f"{normal.told}, and 1.5 times that is not yet below {_s(enough)}, at which capacity would suffice again"
        return _Goal(ceiling, told, capacity_limited=True)
    told = f"{normal.told}, so the limit may lie in {_s(floor)} to {_s(ceiling)}"
    limit_s = round(floor + spec.tuning.bias * (ceiling - floor), 3)
    if rehearse is not None:
        scores = {limit_s: rehearse(limit_s) for limit_s in (round(at_s, 3) for at_s in spread(floor, ceiling, WAITS))}
        limit_s = prefer_wait(scores, spec.tuning.bias, limit_s)
        late = f"{scores[limit_s].late_share:.1%} of longs late"
        told = f"{told}, where replay prefers {_s(limit_s)} ({span_of(scores)}; {late})"
    return _Goal(limit_s, told, capacity_limited=False)


def _rehearsed_wait(spec: PrefillPolicySpec, rehearse: Rehearse) -> _Normal | Finding:
    """W_normal as replay finds it, or why it is unknown; every replayed request ends, so its tail is known."""
    strict, quantile = rehearse(0.0), spec.tuning.wait_quantile
    needed = samples_needed(_QUANTILES[quantile])
    if strict.long_waits < needed:
        return Finding(None, Reason.LEARNING_WAITS, f"{strict.long_waits:,} long waits in replay, of {needed} needed")
    wait_s = strict.long_wait_s(quantile)
    told = f"in replay without promotion {quantile} of {strict.long_waits:,} long waits is {_s(wait_s)}"
    return _Normal(wait_s, told)


def _normal_wait(
    metrics: FleetMetrics, spec: PrefillPolicySpec, running_s: float, threshold: int | None
) -> _Normal | Finding:
    """W_normal, or why it is unknown: from the waits of long requests, or from those of all requests together."""
    lanes = not isinstance(metrics.long_waits, Missing)
    match metrics.long_waits if lanes or isinstance(metrics.waits, Missing) else metrics.waits:
        case Missing(clause=why):
            return Finding(None, Reason.METRICS_MISSING, f"long waits are not measured: {why}")
        case Stale(at_s=at_s):
            return Finding(None, Reason.METRICS_STALE, f"long waits were last measured at {format_time(at_s)}")
        case Sample(value=waits):
            if running_s > 0 and spec.scheduling.aged_share > MAX_SHARE:
                return Finding(None, Reason.LEARNING_WAITS, _shortened(spec))
            if lanes:
                return _estimate(waits, _oldest(metrics.oldest_long_wait_s), spec)
            return _bound(waits, metrics.lengths, threshold, spec)


def _shortened(spec: PrefillPolicySpec) -> str:
    """Why the waits of the window tell nothing of those under strict short-first."""
    if spec.engine.told_at_start:
        return f"W_normal is unknown: promotion shortens long waits, and {spec.engine.type.value} bounds it by no share"
    share = spec.scheduling.aged_share
    return f"W_normal is unknown: with agedShare {share:g} above {MAX_SHARE:g} promotion shortens long waits"


def _estimate(waits: HistogramSnapshot, oldest_s: float, spec: PrefillPolicySpec) -> _Normal | Finding:
    quantile = spec.tuning.wait_quantile
    estimate = estimate_wait(waits, _QUANTILES[quantile], oldest_s)
    if estimate is None:
        needed = samples_needed(_QUANTILES[quantile])
        told = f"{waits.total:,.0f} long waits in {spec.tuning.window}, of {needed} needed"
        return Finding(None, Reason.LEARNING_WAITS, told)
    least = "" if estimate.tail_known else " at least, its tail is unknown"
    return _Normal(estimate.wait_s, f"{quantile} of {estimate.samples:,} long waits is {_s(estimate.wait_s)}{least}")


def _bound(
    waits: HistogramSnapshot, lengths: Reading[HistogramSnapshot], threshold: int | None, spec: PrefillPolicySpec
) -> _Normal | Finding:
    """The most that W_normal may be, or why not even that is known."""
    if not isinstance(lengths, Sample) or threshold is None:
        return Finding(None, Reason.METRICS_MISSING, "without fresh lengths it is not known how many waits are long")
    quantile, engine = spec.tuning.wait_quantile, spec.engine.type
    q = _QUANTILES[quantile]
    bound = bound_wait(waits, lengths.value, threshold, q)
    if bound is None:
        longs = waits.total * (1 - most_short(lengths.value, threshold)) if lengths.value.total else 0.0
        told = f"of {waits.total:,.0f} waits in {spec.tuning.window} {longs:,.0f} or more were long"
        return Finding(None, Reason.LEARNING_WAITS, f"{told}, of {samples_needed(q)} needed")
    if math.isinf(bound.wait_s):
        last = _s(waits.bounds[-1]) if waits.bounds else "0s"
        told = f"{quantile} of long waits may lie beyond {last}, the last bucket of {engine.value}"
        return Finding(None, Reason.LEARNING_WAITS, told)
    told = f"{quantile} of long waits is at most {_s(bound.wait_s)}, an upper bound since {engine.value} shows no lanes"
    about = [f"of {waits.total:,.0f} waits {bound.longs:,.0f} or more were long"]
    if bound.coarse:
        about.append("its buckets tell nothing shorter apart")
    if engine in LATE_CLOCKS:
        about.append("its clock misses up to one step")
    return _Normal(bound.wait_s, f"{told} ({'; '.join(about)})", bound=True)


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
    short = reason is Reason.CAPACITY_LIMITED
    moved = replace(memory, long_max_wait_s=limit_s, wait_moved_at_s=int(now), capacity_limited=short)
    return WaitOutcome(moved, Finding(limit_s, reason, told))


def _hold(memory: TunerMemory, reason: Reason, told: str, suffix: str | None = None) -> WaitOutcome:
    present = memory.long_max_wait_s
    if suffix is None:
        suffix = f"; the limit {_s(present)} holds" if present else "; longs are not promoted yet"
    held = replace(memory, capacity_limited=reason is Reason.CAPACITY_LIMITED)
    return WaitOutcome(held, Finding(present, reason, told + suffix))


def ceiling_s(spec: PrefillPolicySpec) -> float:
    """The greatest limit that still leaves room to keep slo.longQueueWait, in seconds."""
    return round(SLO_CEILING * spec.slo.long_queue_wait_s, 3)


_s = format_duration
