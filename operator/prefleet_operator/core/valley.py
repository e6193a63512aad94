"""Valleys of the density of log-length: where a mix of two kinds of requests falls apart.

Algorithm
1. The histogram is spread over cells of a quarter octave, even in the logarithm inside each bucket.
2. The cell counts are smoothed with the binomial kernel (1 4 6 4 1)/16; the variance of a smoothed Poisson
   count is then at most `KERNEL_POWER` times its mean. Buckets wider than a cell only lower it.
3. Against each cell stands the lower of the two highest modes on its two sides, M. The cell, S, belongs to
   a valley if M is at least `MIN_DEPTH` times S, and if the difference is significant: (M - S) /
   sqrt(KERNEL_POWER (M + S)) >= `MIN_Z`. Neighbouring cells form one valley.
4. A valley counts if at least `MIN_MASS` of the requests lie on each side of its floor: fewer are a tail,
   not a kind.

`MIN_Z` is high, since a noisy density has many places to look at: of 5,400 unimodal samples (lognormal,
exponential, uniform and log-uniform, 300 to 3,000 requests, fine and coarse buckets) none showed a valley.

The floor is the middle of the lowest cells. The valley extends over the cells that have not climbed more
than `EXTENT` of the way from the floor to the lower mode: a threshold anywhere there is on the valley.
Left out: a valley narrower than half an octave, which the smoothing hides and no threshold needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from prefleet_operator.core.histogram import closed_buckets, nearest_bound, shares_below
from prefleet_operator.core.observed import HistogramSnapshot

CELLS_PER_OCTAVE = 4
KERNEL = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
KERNEL_POWER = sum(k * k for k in KERNEL)
MIN_DEPTH = 2.0
MIN_Z = 3.5
MIN_MASS = 0.05
EXTENT = 0.25


@dataclass(frozen=True, slots=True)
class Valley:
    """One valley in tokens. `height`: that of its floor, as a share of the lower mode."""

    floor: float
    low: float
    high: float
    height: float


@dataclass(frozen=True, slots=True)
class _Grid:
    """Counts by cell of log2(length); cell i covers 2^((first + i)/4) to 2^((first + i + 1)/4)."""

    first: int
    counts: tuple[float, ...]

    def edge(self, i: int) -> float:
        return float(2 ** ((self.first + i) / CELLS_PER_OCTAVE))


def find_valleys(histogram: HistogramSnapshot) -> tuple[Valley, ...]:
    """All significant valleys, rising."""
    if histogram.total <= 0:
        return ()
    grid = _to_grid(histogram)
    density = _smooth(grid.counts)
    modes = _lower_modes(density)
    runs = _runs([_is_significant(s, m) for s, m in zip(density, modes, strict=True)])
    valleys = (_measure(histogram, grid, density, modes, run) for run in runs)
    return tuple(valley for valley in valleys if _separates(histogram, valley))


def _to_grid(histogram: HistogramSnapshot) -> _Grid:
    """Cells from the lowest filled bucket to the highest, with room for the kernel on both sides."""
    filled = [(_cell(lower), _cell(upper), count) for lower, upper, count in closed_buckets(histogram) if count > 0]
    first = math.floor(filled[0][0]) - len(KERNEL) // 2
    counts = [0.0] * (math.ceil(filled[-1][1]) + len(KERNEL) // 2 - first)
    for start, end, count in filled:
        for cell in range(math.floor(start), math.ceil(end)):
            overlap = min(end, cell + 1) - max(start, cell)
            counts[cell - first] += count * overlap / (end - start)
    return _Grid(first, tuple(counts))


def _cell(length: float) -> float:
    """Position on the grid; rounded, so that a bound meant to be 2^(k/4) is exactly k."""
    position = math.log2(length) * CELLS_PER_OCTAVE
    return float(round(position)) if abs(position - round(position)) < 0.01 else position


def _smooth(counts: Sequence[float]) -> list[float]:
    half = len(KERNEL) // 2
    padded = [0.0] * half + list(counts) + [0.0] * half
    return [sum(k * c for k, c in zip(KERNEL, padded[i:], strict=False)) for i in range(len(counts))]


def _lower_modes(density: Sequence[float]) -> list[float]:
    """For each cell the lower of the highest density on its left and on its right."""
    left = accumulate(density, max)
    right = reversed(list(accumulate(reversed(density), max)))
    return [min(pair) for pair in zip(left, right, strict=True)]


def _is_significant(floor: float, mode: float) -> bool:
    if mode < MIN_DEPTH * floor or mode <= 0:
        return False
    return (mode - floor) / math.sqrt(KERNEL_POWER * (mode + floor)) >= MIN_Z


def _runs(flags: Sequence[bool]) -> list[range]:
    """The maximal runs of true flags."""
    starts = [i for i, flag in enumerate(flags) if flag and (i == 0 or not flags[i - 1])]
    ends = [i + 1 for i, flag in enumerate(flags) if flag and (i + 1 == len(flags) or not flags[i + 1])]
    return [range(start, end) for start, end in zip(starts, ends, strict=True)]


def _measure(
    histogram: HistogramSnapshot, grid: _Grid, density: Sequence[float], modes: Sequence[float], run: range
) -> Valley:
    lowest = min(density[i] for i in run)
    mode = min(modes[i] for i in run)
    bottom = [i for i in run if density[i] <= lowest + 1e-9 * mode]
    extent = [i for i in run if density[i] <= lowest + EXTENT * (mode - lowest)]
    low, high = grid.edge(extent[0]), grid.edge(extent[-1] + 1)
    middle = math.sqrt(grid.edge(bottom[0]) * grid.edge(bottom[-1] + 1))
    bound = nearest_bound(histogram, middle)
    floor = bound if low <= bound <= high else middle
    return Valley(floor, low, high, lowest / mode)


def _separates(histogram: HistogramSnapshot, valley: Valley) -> bool:
    return MIN_MASS <= shares_below(histogram, valley.floor).p <= 1 - MIN_MASS
