"""The normal wait of long requests, from waits that ended and the oldest that has not.

A quantile of the completed waits alone is too short while requests still wait: those cut short by the end
of the window may wait longer yet. With one oldest wait and no list of the others, a Kaplan-Meier estimate
would move by less than one rank; what the oldest wait can tell is whether the tail is known at all. So the
estimate is the quantile of the completed waits, and its tail is labelled unknown where a request already
waits longer than that or where the quantile lies beyond the last bucket. Unknown is a value: then the
estimate is a lower limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from prefleet_operator.core.histogram import quantile_interval
from prefleet_operator.core.observed import HistogramSnapshot


@dataclass(frozen=True, slots=True)
class WaitEstimate:
    """A quantile of waits in seconds; a lower limit only, unless `tail_known`."""

    wait_s: float
    samples: int
    tail_known: bool


def samples_needed(q: float) -> int:
    """The sample whose longest wait exceeds quantile `q` with 95% confidence: 59 for P95, 29 for P90."""
    return math.ceil(math.log(0.05) / math.log(q))


def estimate_wait(waits: HistogramSnapshot, q: float, oldest_waiting_s: float = 0.0) -> WaitEstimate | None:
    """The quantile `q` of completed waits, or None where fewer than `samples_needed` were seen."""
    if waits.total < samples_needed(q):
        return None
    interval = quantile_interval(waits, q)
    beyond_buckets = math.isinf(interval.point)
    wait_s = waits.bounds[-1] if beyond_buckets else interval.point
    return WaitEstimate(wait_s, int(waits.total), not beyond_buckets and oldest_waiting_s <= wait_s)
