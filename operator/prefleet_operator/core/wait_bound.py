"""How long requests of the long lane wait at most, where an engine shows the waits of all requests together.

The bound. Of n requests a share p is short, so (1 - p) n are long. Let v be the q-quantile of the longs' waits: the
shortest wait such that a share q of the longs waited v or less. Then fewer than q (1 - p) n longs waited less than v,
and at most all p n shorts, together fewer than

    p n + q (1 - p) n = (1 - (1 - q)(1 - p)) n.

So the quantile of all waits at 1 - (1 - q)(1 - p), before which at least that many lie, is v or more: whichever waits
were the shorts' and whichever the longs'. It is reached when every short waited less than every late long, as under
strict short-first; under promotion, or first come first served, it may lie far above.

Both numbers are read from buckets, towards the safe side: p counts the whole bucket in which the threshold lies, and
the quantile is the upper edge of its bucket. The sample is taken as it is, as the estimate from labelled waits takes
it (`survival`): what the bound does not allow for is the sampling error, and that lengths and waits are of the same
window but not to the request the same ones.

Left out: requests that still wait. The engine shows no oldest wait, so whether the tail is known cannot be said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from prefleet_operator.api import EngineType
from prefleet_operator.core.histogram import buckets, share_span
from prefleet_operator.core.observed import HistogramSnapshot
from prefleet_operator.core.survival import samples_needed

LATE_CLOCKS: Final = frozenset({EngineType.VLLM_ASCEND})
"""Engines whose queue time begins only when the engine core reads its socket, up to one step after the arrival."""


@dataclass(frozen=True, slots=True)
class WaitBound:
    """A quantile of long waits is `wait_s` at most; infinite where the engine's last bucket does not hold it.

    `longs`: at least so many of the waits were of long requests. `coarse`: it is the engine's first bucket, below
    which nothing is told apart.
    """

    wait_s: float
    longs: float
    coarse: bool


def bound_wait(waits: HistogramSnapshot, lengths: HistogramSnapshot, threshold: int, q: float) -> WaitBound | None:
    """The bound of quantile `q` of long waits, or None where fewer than `samples_needed` of them were seen."""
    if lengths.total == 0 or waits.total == 0:
        return None
    p = most_short(lengths, threshold)
    longs = (1 - p) * waits.total
    if longs < samples_needed(q):
        return None
    wait_s = _upper_edge(waits, 1 - (1 - q) * (1 - p))
    return WaitBound(wait_s, longs, coarse=bool(waits.bounds) and wait_s == waits.bounds[0])


def most_short(lengths: HistogramSnapshot, threshold: int) -> float:
    """The greatest share of requests that may be of `threshold` tokens or fewer."""
    return share_span(lengths, threshold)[1]


def _upper_edge(waits: HistogramSnapshot, q: float) -> float:
    """The upper edge of the bucket that holds quantile `q`."""
    # What rounding takes from the sum below must not move the quantile into the next bucket but one.
    rank, below = q * waits.total * (1 - 1e-12), 0.0
    for _, upper, count in buckets(waits):
        below += count
        if count > 0 and below >= rank:
            return upper
    return math.inf
