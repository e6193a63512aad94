"""From the runtime's series of each pod to the readings of a fleet: the same for every source.

A source gathers for each pod what it can: increases over the window of counters and cumulative buckets, and
the present values of gauges. Here they become a fleet's metrics: buckets of its prefill (or mixed) pods are
added, the oldest wait is the highest. A value that is no finite number counts as not shown,
and a histogram that holds one too.

A labelled series does not exist before its first event. So a lane that a pod does not show has seen nothing if
the pod shows another lane or has had no request at all; otherwise it is missing, and never zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading
from prefleet_operator.api import LengthMeasure
from prefleet_operator.core.observed import FleetMetrics, HistogramSnapshot, Missing, Reading, Sample, Stale

T = TypeVar("T")

LENGTHS = {
    LengthMeasure.PROMPT: "prefleet_request_prompt_tokens_bucket",
    LengthMeasure.UNCACHED: "prefleet_request_uncached_tokens_bucket",
}
LONG_WAITS = "prefleet_queue_wait_seconds_bucket"
"""Read for the lane long alone."""
WAIT_COUNTS = "prefleet_queue_wait_seconds_count"
PROMOTION_WAITS = "prefleet_promotion_wait_seconds_bucket"
PROMOTIONS = "prefleet_promotions_total"
DEGRADATIONS = "prefleet_degradations_total"
OLDEST_WAITS = "prefleet_oldest_wait_seconds"
GENERATION = "prefleet_policy_generation"
UNFINISHED = "prefleet_unfinished_requests"
LONG_LANE = "long"

Key = tuple[str, str | float]
"""A series of one pod: its name, and its bucket bound, its lane or ""."""

Series = Mapping[Key, float]


@dataclass(frozen=True, slots=True)
class PodMetrics:
    """What one pod shows; None where it shows nothing. Histograms are increases by cumulative bound.

    `all_waits`: queue waits of all requests together, which an engine shows that knows no lanes. `unfinished`: requests
    in its engine.
    """

    lengths: HistogramSnapshot | None = None
    long_waits: HistogramSnapshot | None = None
    promotion_waits: HistogramSnapshot | None = None
    promotions: float | None = None
    degradations: float | None = None
    oldest_long_wait_s: float | None = None
    generation: int | None = None
    all_waits: HistogramSnapshot | None = None
    unfinished: float | None = None


def to_pod_metrics(series: Series, length: LengthMeasure) -> PodMetrics:
    """Sort one pod's series, dropping what is not finite."""
    finite = {key: value for key, value in series.items() if math.isfinite(value)}
    lengths = to_histogram(series, LENGTHS[length])
    idle = lengths is not None and lengths.total == 0
    long_waits = to_histogram(series, LONG_WAITS)
    if not _has(series, LONG_WAITS) and (idle or _has(finite, WAIT_COUNTS)):
        long_waits = HistogramSnapshot((), (0.0,))
    oldest_s = finite.get((OLDEST_WAITS, LONG_LANE))
    if oldest_s is None and _has(finite, OLDEST_WAITS) and (OLDEST_WAITS, LONG_LANE) not in series:
        oldest_s = 0.0
    generation = finite.get((GENERATION, ""))
    return PodMetrics(
        lengths=lengths,
        long_waits=long_waits,
        promotion_waits=to_histogram(finite, PROMOTION_WAITS),
        promotions=finite.get((PROMOTIONS, "")),
        degradations=finite.get((DEGRADATIONS, "")),
        oldest_long_wait_s=oldest_s,
        generation=None if generation is None else int(generation),
        unfinished=finite.get((UNFINISHED, "")),
    )


def assemble(query: FleetQuery, pods: Mapping[str, Reading[PodMetrics]]) -> FleetReading:
    """The fleet's readings from those of its pods, by pod name; a pod that is not there was not found."""
    found = find_pods(query, pods)
    prefills = [(pod.name, found[pod.name]) for pod in query.pods if pod.prefills]
    return FleetReading(
        metrics=_fleet_metrics(prefills, LENGTHS[query.length]),
        generations={
            name: combine([(name, reading)], GENERATION, lambda pod: pod.generation, max)
            for name, reading in found.items()
        },
        pod_loads={
            name: combine([(name, reading)], UNFINISHED, lambda pod: pod.unfinished, max)
            for name, reading in found.items()
        },
    )


def find_pods(query: FleetQuery, pods: Mapping[str, Reading[PodMetrics]]) -> dict[str, Reading[PodMetrics]]:
    """A reading of every pod asked for."""
    return {pod.name: pods.get(pod.name, Missing(f"pod {pod.name} was not found")) for pod in query.pods}


def merge_histograms(histograms: Sequence[HistogramSnapshot]) -> HistogramSnapshot:
    """The sum; where bounds differ, a bucket of the one counts at its upper bound in the union."""
    counts: dict[float, float] = {math.inf: 0.0}
    for histogram in histograms:
        for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
            counts[bound] = counts.get(bound, 0.0) + count
    bounds = sorted(counts)
    return HistogramSnapshot(tuple(bounds[:-1]), tuple(counts[bound] for bound in bounds))


def _fleet_metrics(pods: Sequence[tuple[str, Reading[PodMetrics]]], lengths_name: str) -> FleetMetrics:
    return FleetMetrics(
        lengths=combine(pods, lengths_name, lambda pod: pod.lengths, merge_histograms),
        long_waits=combine(pods, LONG_WAITS, lambda pod: pod.long_waits, merge_histograms),
        promotion_waits=combine(pods, PROMOTION_WAITS, lambda pod: pod.promotion_waits, merge_histograms),
        promotions=combine(pods, PROMOTIONS, lambda pod: pod.promotions, sum),
        degradations=combine(pods, DEGRADATIONS, lambda pod: pod.degradations, sum),
        oldest_long_wait_s=combine(pods, OLDEST_WAITS, lambda pod: pod.oldest_long_wait_s, max),
    )


def combine(
    pods: Sequence[tuple[str, Reading[PodMetrics]]],
    name: str,
    pick: Callable[[PodMetrics], T | None],
    merge: Callable[[Sequence[T]], T],
) -> Reading[T]:
    """One value over pods: of the fresh ones, else of the stale ones, else the first reason why not."""
    fresh = [(r.at_s, v) for _, r in pods if isinstance(r, Sample) and (v := pick(r.value)) is not None]
    if fresh:
        return Sample(merge([value for _, value in fresh]), min(at_s for at_s, _ in fresh))
    stale = [(r, v) for _, r in pods if isinstance(r, Stale) and (v := pick(r.value)) is not None]
    if stale:
        oldest = min((r for r, _ in stale), key=lambda r: r.at_s)
        return Stale(merge([value for _, value in stale]), oldest.at_s, oldest.why)
    reasons = (_reason(pod, reading, name) for pod, reading in pods)
    return Missing(next(reasons, "the fleet has no pod whose queue could be measured"))


def _reason(pod: str, reading: Reading[PodMetrics], name: str) -> str:
    if isinstance(reading, Missing):
        return reading.reason
    if isinstance(reading, Stale) and reading.why:
        return reading.why
    return f"pod {pod} shows no finite value of {name} over the window yet"


def to_histogram(series: Series, name: str) -> HistogramSnapshot | None:
    """The histogram of one pod, or None without a finite bound or with a count that is no number.

    Extrapolated increases may fall a little from bound to bound; such a bucket counts as empty.
    """
    cumulative = sorted((float(bound), value) for (key, bound), value in series.items() if key == name)
    finite = all(math.isfinite(value) for _, value in cumulative)
    if not finite or not cumulative or math.isinf(cumulative[0][0]):
        return None
    counts, below = [], 0.0
    for _, value in cumulative:
        counts.append(max(0.0, value - below))
        below = max(below, value)
    bounds = tuple(bound for bound, _ in cumulative if math.isfinite(bound))
    return HistogramSnapshot(bounds, tuple(counts) if len(counts) > len(bounds) else (*counts, 0.0))


def to_bound(text: str) -> float:
    """The bound of a bucket as a label says it. Raises ValueError for one that is no number, of which NaN is one."""
    bound = float(text)
    if math.isnan(bound):
        raise ValueError("a bucket's bound is NaN")
    return bound


def _has(series: Series, name: str) -> bool:
    return any(key == name for key, _ in series)
