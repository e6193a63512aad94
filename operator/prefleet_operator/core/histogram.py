"""What a histogram of lengths or waits says, and how surely.

A bucket holds the observations in (lower, upper]; inside a bucket the mass is taken as even in the
logarithm, which is exact for the runtime's buckets of a quarter octave and fair for an engine's coarse
1-2-5 ones. The answer to "what is P70" is therefore an interval: the ranks that the sample leaves open
(binomial, two-sided 95%) and the edges of the buckets that hold them, both counted; the point inside it is
the interpolated one.

All functions are pure; none of them answers for an empty histogram (the caller asks `total` first).
Left out: lengths are taken as work in proportion to their tokens; attention's square is ignored.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from prefleet_operator.core.observed import HistogramSnapshot

CONFIDENCE_Z = 1.96
"""Two-sided 95% of the normal approximation to the binomial."""


@dataclass(frozen=True, slots=True)
class QuantileInterval:
    """Where a quantile lies: `low` < it <= `high` with 95% confidence, best guess `point`.

    `high` and `point` are infinite where the quantile lies beyond the last bound.
    """

    low: float
    point: float
    high: float


@dataclass(frozen=True, slots=True)
class Shares:
    """Of requests not longer than a threshold: their share of requests `p`, and of work `w`."""

    p: float
    w: float

    def cost(self, load: float) -> float:
        """(1 - load p) / (1 - load w): mean wait with two lanes against one queue, at that load."""
        return (1 - load * self.p) / (1 - load * self.w)


def quantile_interval(histogram: HistogramSnapshot, q: float) -> QuantileInterval:
    """The interval of quantile `q` (0..1), bucket edges and binomial rank both counted."""
    n = histogram.total
    rank, spread = q * n, CONFIDENCE_Z * math.sqrt(n * q * (1 - q))
    low, _ = _bucket_at(histogram, max(0.0, rank - spread))
    _, high = _bucket_at(histogram, min(n, rank + spread))
    return QuantileInterval(low, quantile(histogram, q), high)


def quantile(histogram: HistogramSnapshot, q: float) -> float:
    """The interpolated quantile `q` (0..1); infinite beyond the last bound."""
    target, below = q * histogram.total, 0.0
    for lower, upper, count in buckets(histogram):
        if count > 0 and below + count >= target:
            return _interpolate(lower, upper, (target - below) / count)
        below += count
    return math.inf


def shares_below(histogram: HistogramSnapshot, threshold: float) -> Shares:
    """The shares of requests and of work at or below `threshold`."""
    requests = work = requests_below = work_below = 0.0
    for lower, upper, count in closed_buckets(histogram):
        bucket_work = count * mean_between(lower, upper)
        requests, work = requests + count, work + bucket_work
        fraction = _fraction_below(lower, upper, threshold)
        requests_below += count * fraction
        work_below += count * fraction * mean_between(lower, min(upper, max(threshold, lower)))
    return Shares(requests_below / requests, min(1.0, work_below / work))


def share_span(histogram: HistogramSnapshot, threshold: float) -> tuple[float, float]:
    """The least and the greatest share of observations that may lie at or below `threshold`, by the buckets alone."""
    least = sum(count for _, upper, count in buckets(histogram) if upper <= threshold)
    most = sum(count for lower, _, count in buckets(histogram) if lower < threshold)
    return least / histogram.total, most / histogram.total


def count_above(histogram: HistogramSnapshot, value: float) -> float:
    """Observations that are surely above `value`: those of buckets that begin at or above it."""
    return sum(count for lower, _, count in buckets(histogram) if lower >= value)


def buckets(histogram: HistogramSnapshot) -> Iterator[tuple[float, float, float]]:
    """(lower, upper, count) of every bucket, rising; the first begins at 0, the last ends at infinity."""
    edges = (0.0, *histogram.bounds, math.inf)
    return zip(edges, edges[1:], histogram.counts, strict=False)


def closed_buckets(histogram: HistogramSnapshot) -> Iterator[tuple[float, float, float]]:
    """The same with ends that have logarithms: the outermost buckets are taken as one octave wide."""
    for lower, upper, count in buckets(histogram):
        yield (lower or upper / 2, upper if math.isfinite(upper) else lower * 2, count)


def nearest_bound(histogram: HistogramSnapshot, value: float) -> float:
    """The bucket bound closest to `value` in ratio: there the shares are counted, not interpolated."""
    bounds = histogram.bounds
    at = bisect_left(bounds, value)
    around = [bound for bound in bounds[max(0, at - 1) : at + 1] if bound > 0]
    return min(around, key=lambda bound: abs(math.log(bound / value)), default=value)


def _bucket_at(histogram: HistogramSnapshot, rank: float) -> tuple[float, float]:
    """The edges of the bucket that holds the observation of that rank (0..total)."""
    below, edges = 0.0, (0.0, histogram.bounds[0] if histogram.bounds else math.inf)
    for lower, upper, count in buckets(histogram):
        if count > 0:
            edges = (lower, upper)
            below += count
            if below >= rank:
                break
    return edges


def _interpolate(lower: float, upper: float, fraction: float) -> float:
    if math.isinf(upper):
        return math.inf
    if lower <= 0:
        return upper * fraction
    return float(lower * (upper / lower) ** min(1.0, max(0.0, fraction)))


def _fraction_below(lower: float, upper: float, threshold: float) -> float:
    if threshold >= upper:
        return 1.0
    if threshold <= lower:
        return 0.0
    return math.log(threshold / lower) / math.log(upper / lower)


def mean_between(lower: float, upper: float) -> float:
    """Mean of a mass even in the logarithm between the two."""
    return lower if upper <= lower else (upper - lower) / math.log(upper / lower)
