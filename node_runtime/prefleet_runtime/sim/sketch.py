"""Quantiles of what a long replay measures, in memory that does not grow with it.

Values go into buckets of equal ratio: bucket i holds (g^(i-1), g^i] with g = (1 + e) / (1 - e), and answers with a
value that is off by at most e = `RELATIVE_ERROR` of itself, whatever the distribution. Source: Masson, Rim and Lee,
"DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees", VLDB 2019. What is not above
`LEAST` counts as 0, so the buckets are bounded by the range of the values: some 1,600 from a microsecond to a year.

Left out: negative values, which neither waits nor lengths have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

RELATIVE_ERROR = 0.01
LEAST = 1e-6

_RATIO = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_PER_LOG = 1 / math.log(_RATIO)
_MIDDLE = 2 / (1 + _RATIO)


class Sketch:
    """A growing set of numbers, 0 or more."""

    __slots__ = ("_buckets", "count", "greatest", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.greatest = 0.0
        self._buckets: dict[int | None, int] = {}

    def add(self, value: float) -> None:
        """One more value. Raises ValueError below 0."""
        if value < 0:
            raise ValueError(f"{value} is below 0")
        index = math.ceil(math.log(value) * _PER_LOG) if value > LEAST else None
        self._buckets[index] = self._buckets.get(index, 0) + 1
        self.count += 1
        self.total += value
        if value > self.greatest:
            self.greatest = value

    def merge(self, other: Sketch) -> None:
        """Add all values of another."""
        for index, count in other._buckets.items():
            self._buckets[index] = self._buckets.get(index, 0) + count
        self.count += other.count
        self.total += other.total
        self.greatest = max(self.greatest, other.greatest)

    @property
    def mean(self) -> float:
        """NaN of nothing."""
        return self.total / self.count if self.count else math.nan

    def quantile(self, q: float) -> float:
        """The value at rank ceil(q n), within the error; NaN of nothing."""
        rank = max(1, math.ceil(q * self.count))
        for value, upto in self.cumulative():
            if upto >= rank:
                return value
        return math.nan

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Values in ascending order, each with how many are at most that."""
        upto = 0
        for index in sorted(self._buckets, key=lambda index: -math.inf if index is None else index):
            upto += self._buckets[index]
            yield (0.0 if index is None else min(self.greatest, _MIDDLE * _RATIO**index)), upto
