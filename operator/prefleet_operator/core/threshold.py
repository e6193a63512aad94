"""Which lengths count as short.

Algorithm
1. From the lengths of the window: the interval of the lower and of the upper percentile of the band (70 and
   85 unless the spec says otherwise), and the significant valleys.
2. The goal is a valley, also one outside the band. Of several, and against the band, the closed form cost =
   (1 - rho p)/(1 - rho w) at rho = 0.9 judges (p, w: the shares of requests and of work at or below the
   threshold): the valley of least cost, if that is at most `VALLEY_COST_LIMIT` times the band's best and
   below the guard. (A real trace may have a deep valley at P40 that leaves nine tenths of the work among
   the longs: it tells two kinds apart, but not short from long.) Otherwise the goal is the point of the
   band of least cost.
   With replay (`rehearsal`) the point of the band that short requests prefer takes the place of the latter, and
   a valley wins only if it costs them hardly more: overload may fill the short lane of a valley that closed
   forms like, and they do not see it.
3. The present threshold holds while it lies on the valley, or, without one, inside the band. Otherwise it
   moves towards the goal: by a factor of two at most, once per cooldown, and only on `minSamples` or more.
   The first setting is free of the factor and of the cooldown. Until it, the fleet runs FCFS.
4. Guard: if the cost at the chosen threshold exceeds `GUARD`, splitting gains too little, and the fleet
   runs FCFS; it returns below `GUARD_RETURN`. The switch keeps to the threshold's cooldown.

Invariants: a pinned threshold never moves, nothing moves without fresh lengths, and nothing is replayed for a
threshold that may stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from prefleet_operator.api import PrefillPolicySpec, SchedulingPolicy, TuningMode
from prefleet_operator.core.histogram import QuantileInterval, Shares, quantile_interval, share_span, shares_below
from prefleet_operator.core.observed import HistogramSnapshot, Missing, Reading, Sample, Stale
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.rehearsal import THRESHOLDS, ReplayScore, cheapest, price, search, span_of, spread
from prefleet_operator.core.tuning import Band, Finding, TunerMemory, format_time
from prefleet_operator.core.valley import Valley, find_valleys

LOAD = 0.9
GUARD = 0.75
GUARD_RETURN = 0.70
VALLEY_COST_LIMIT = 1.4
"""Two clear kinds cost up to 1.3 times the band's best at 60% longs; the valley of a trace that is none, 1.5."""
MAX_STEP = 2
COARSE_SHARE = 0.1
"""A bucket that holds more of the requests than this leaves the share of shorts inside it open."""


@dataclass(frozen=True, slots=True)
class LengthStudy:
    """What the lengths of one window say: the band, the valley if one wins, and the goal in tokens.

    `rehearsed`: why replay prefers the goal, where it was asked.
    """

    lengths: HistogramSnapshot
    percentiles: tuple[int, int]
    low: QuantileInterval
    high: QuantileInterval
    valley: Valley | None
    goal: int
    rehearsed: str = ""

    @property
    def band(self) -> Band:
        """The band as status shows it."""
        return Band(_tokens(self.low.low), _tokens(_finite(self.high.high, self.lengths)), int(self.lengths.total))

    @property
    def valley_floor(self) -> int | None:
        """The valley in tokens."""
        return None if self.valley is None else _tokens(self.valley.floor)

    def shares(self, threshold: float) -> Shares:
        """The shares of requests and work at or below a threshold."""
        return shares_below(self.lengths, threshold)

    def keeps(self, threshold: int) -> bool:
        """Whether a threshold may stay: on the valley, or without one inside the band."""
        if self.valley is not None:
            return self.valley.low <= threshold <= self.valley.high
        return self.in_band(threshold)

    def in_band(self, threshold: int) -> bool:
        """Whether a threshold may lie between the two percentiles."""
        return self.low.low <= threshold <= self.high.high

    def describe(self) -> str:
        """The numbers, as the beginning of a sentence."""
        low, high = self.percentiles
        spans = f"P{low} is {_span(self.low)} and P{high} is {_span(self.high)} tokens"
        band = f"{spans} (n={self.lengths.total:,.0f})"
        if self.valley is None:
            return f"{band}; lengths have no valley worth splitting at{self.rehearsed}"
        height = f"{self.valley.height:.0%} of the lower peak"
        return f"{band}; lengths have a valley at {self.valley_floor:,} ({height}){self.rehearsed}"


@dataclass(frozen=True, slots=True)
class ThresholdOutcome:
    """The advised policy and threshold with the evidence, and the memory that goes with them."""

    memory: TunerMemory
    finding: Finding
    study: LengthStudy | None = None


def decide_threshold(
    lengths: Reading[HistogramSnapshot],
    spec: PrefillPolicySpec,
    pinned: int | None,
    memory: TunerMemory,
    now: float,
    rehearse: Callable[[int], ReplayScore] | None = None,
) -> ThresholdOutcome:
    """Rules 1 and 2. `pinned`: the threshold that must not move, if any; `rehearse`: replays the window with one."""
    study = study_lengths(lengths, spec)
    if pinned is not None:
        return _pinned(pinned, study, lengths, memory)
    if study is None:
        return _unmeasured(lengths, spec, memory)
    if rehearse is not None and not (memory.threshold and study.keeps(memory.threshold)):
        study = _rehearsed(study, spec, memory.threshold, rehearse)
    moved, reason, told = _move(study, spec, memory, now)
    guarded, spread_told = _guard(study, spec, memory, moved, now)
    reason = Reason.NO_LENGTH_SPREAD if guarded.policy is SchedulingPolicy.FCFS else reason
    message = f"{study.describe()}; {told}{spread_told}"
    return ThresholdOutcome(guarded, Finding(guarded.threshold, reason, message), study)


def study_lengths(lengths: Reading[HistogramSnapshot], spec: PrefillPolicySpec) -> LengthStudy | None:
    """The study of fresh lengths, or None where there are none or too few."""
    if not isinstance(lengths, Sample) or lengths.value.total < spec.tuning.min_samples:
        return None
    histogram, band = lengths.value, spec.tuning.band
    low, high = quantile_interval(histogram, band.low / 100), quantile_interval(histogram, band.high / 100)
    best = _best_in_band(histogram, low, high)
    valley = _worthy_valley(histogram, best)
    goal = best if valley is None else valley.floor
    return LengthStudy(histogram, (band.low, band.high), low, high, valley, max(1, _tokens(goal)))


def _rehearsed(
    study: LengthStudy, spec: PrefillPolicySpec, present: int | None, rehearse: Callable[[int], ReplayScore]
) -> LengthStudy:
    """With the goal that replay prefers: of those that split enough, the best of the band, or the valley."""
    if present is not None and study.in_band(present):
        tried = {present: rehearse(present)}
    else:
        tried = search([at for at in _points(study) if study.shares(at).cost(LOAD) <= GUARD], rehearse)
    if not tried:
        return study
    best = cheapest(tried)
    told = f"of {len(tried)} thresholds in the band replay prefers {best:,} ({span_of(tried)})"
    if study.valley is None:
        return replace(study, goal=best, rehearsed=f"; {told}")
    at_valley = rehearse(study.goal)
    if at_valley.cost_s <= tried[best].cost_s * price(spec.tuning.bias):
        return replace(study, rehearsed=f"; replay agrees (mean short TTFT {at_valley.cost_s:.3f} s)")
    told = f"; replay rejects the valley at {study.goal:,} (mean short TTFT {at_valley.cost_s:.3f} s): {told}"
    return replace(study, valley=None, goal=best, rehearsed=told)


def _points(study: LengthStudy) -> list[int]:
    low, high = (max(1.0, _finite(end.point, study.lengths)) for end in (study.low, study.high))
    return sorted({_tokens(at) for at in spread(low, high, THRESHOLDS)})


def _best_in_band(histogram: HistogramSnapshot, low: QuantileInterval, high: QuantileInterval) -> float:
    """The point of least cost surely inside the band, at a bucket bound if there is one."""
    start, end = (low.high, high.low) if low.high <= high.low else (low.point, high.point)
    start, end = _finite(start, histogram), _finite(end, histogram)
    inside = [bound for bound in histogram.bounds if start <= bound <= end]
    return min(inside or [start, math.sqrt(start * end), end], key=lambda at: _cost(histogram, at))


def _worthy_valley(histogram: HistogramSnapshot, best_in_band: float) -> Valley | None:
    limit = min(GUARD, VALLEY_COST_LIMIT * _cost(histogram, best_in_band))
    worthy = [valley for valley in find_valleys(histogram) if _cost(histogram, valley.floor) <= limit]
    return min(worthy, key=lambda valley: _cost(histogram, valley.floor), default=None)


def _cost(histogram: HistogramSnapshot, threshold: float) -> float:
    return shares_below(histogram, threshold).cost(LOAD)


def _pinned(
    pinned: int, study: LengthStudy | None, lengths: Reading[HistogramSnapshot], memory: TunerMemory
) -> ThresholdOutcome:
    memory = replace(memory, policy=SchedulingPolicy.SHORT_REQUEST_FIRST, threshold=pinned)
    told = f"spec.scheduling.threshold pins {pinned:,} tokens"
    if study is not None:
        told = f"{told}; {study.describe()}; {_describe_split(study, pinned)}"
    elif isinstance(lengths, Missing):
        told = f"{told}; lengths are not measured: {lengths.clause}"
    return ThresholdOutcome(memory, Finding(pinned, Reason.PINNED, told), study)


def _unmeasured(lengths: Reading[HistogramSnapshot], spec: PrefillPolicySpec, memory: TunerMemory) -> ThresholdOutcome:
    """Hold what is set; before the first setting that is FCFS."""
    match lengths:
        case Missing(clause=why):
            reason, told = Reason.METRICS_MISSING, f"lengths are not measured: {why}"
        case Stale(at_s=at_s):
            reason, told = Reason.METRICS_STALE, f"lengths were last measured at {format_time(at_s)}"
        case Sample(value=value):
            needed = f"{value.total:,.0f} requests in {spec.tuning.window}, of {spec.tuning.min_samples:,} needed"
            reason, told = Reason.LEARNING_LENGTHS, needed
    if memory.threshold is None:
        memory = replace(memory, policy=SchedulingPolicy.FCFS)
        advises = spec.tuning.mode is TuningMode.ADVISE
        until = "nothing is advised" if advises else "FCFS runs"
        return ThresholdOutcome(memory, Finding(None, reason, f"{told}; {until} until a threshold is known"))
    return ThresholdOutcome(
        memory, Finding(memory.threshold, reason, f"{told}; the threshold {memory.threshold:,} holds")
    )


def _move(
    study: LengthStudy, spec: PrefillPolicySpec, memory: TunerMemory, now: float
) -> tuple[TunerMemory, Reason, str]:
    """The threshold after this cycle, why, and the end of the sentence."""
    present, goal = memory.threshold, study.goal
    goal_reason = Reason.BAND_OPTIMUM if study.valley is None else Reason.VALLEY
    if present is None:
        told = f"the threshold is set to {goal:,}"
        return replace(memory, threshold=goal, threshold_moved_at_s=int(now)), goal_reason, told
    if study.keeps(present):
        reason, place = (Reason.WITHIN_BAND, "in the band") if study.valley is None else (Reason.VALLEY, "on it")
        return memory, reason, f"the threshold {present:,} lies {place}"
    if cools_down(memory.threshold_moved_at_s, spec, now):
        until = f"may move again at {format_time(_cool_at(memory.threshold_moved_at_s, spec))}"
        return memory, Reason.COOLING_DOWN, f"the threshold {present:,} is off by {goal:,} and {until}"
    step = min(max(goal, math.ceil(present / MAX_STEP)), present * MAX_STEP)
    told = f"the threshold moves from {present:,} to {step:,}"
    if step != goal:
        told += f" on its way to {goal:,} (a factor of two at most)"
    return replace(memory, threshold=step, threshold_moved_at_s=int(now)), goal_reason, told


def _guard(
    study: LengthStudy, spec: PrefillPolicySpec, before: TunerMemory, moved: TunerMemory, now: float
) -> tuple[TunerMemory, str]:
    """The policy that the spread of lengths allows, and the end of the sentence."""
    chosen = moved.threshold if moved.threshold is not None and study.keeps(moved.threshold) else study.goal
    cost = study.shares(chosen).cost(LOAD)
    held_back = before.policy is SchedulingPolicy.FCFS and before.threshold is not None
    limit = GUARD_RETURN if held_back else GUARD
    wanted = SchedulingPolicy.FCFS if cost > limit else SchedulingPolicy.SHORT_REQUEST_FIRST
    told = f": {_describe_split(study, chosen)}"
    if before.threshold is None or before.policy is None:
        return replace(moved, policy=wanted), told
    if wanted is before.policy or cools_down(before.threshold_moved_at_s, spec, now):
        return moved, told
    return replace(moved, policy=wanted, threshold_moved_at_s=int(now)), told


def _describe_split(study: LengthStudy, threshold: int) -> str:
    """What is short under a threshold; inside a coarse bucket that is a guess, and said to be one."""
    shares = study.shares(threshold)
    cost = shares.cost(LOAD)
    least, most = share_span(study.lengths, threshold)
    guessed = f" (a guess inside a bucket: {least:.0%} to {most:.0%})" if most - least > COARSE_SHARE else ""
    told = f"{shares.p:.0%} of requests{guessed} with {shares.w:.0%} of work are short, r={cost:.2f}"
    return told if cost <= GUARD else f"{told} above {GUARD}: lengths show no spread worth splitting"


def cools_down(moved_at_s: int | None, spec: PrefillPolicySpec, now: float) -> bool:
    """Whether the last move is younger than the cooldown."""
    return moved_at_s is not None and now < moved_at_s + spec.tuning.cooldown_s


def _cool_at(moved_at_s: int | None, spec: PrefillPolicySpec) -> float:
    return (moved_at_s or 0) + spec.tuning.cooldown_s


def _finite(value: float, histogram: HistogramSnapshot) -> float:
    return min(value, histogram.bounds[-1])


def _tokens(value: float) -> int:
    return math.floor(value)


def _span(interval: QuantileInterval) -> str:
    if math.isinf(interval.high):
        return f"above {interval.low:,.0f}"
    return f"{interval.low:,.0f}-{interval.high:,.0f}"
