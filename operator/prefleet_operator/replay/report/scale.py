"""Axes: where a value lies between two ends, and where the ticks are.

A place is a number from 0 (the low end) to 1; what lies beyond an end is drawn there. NaN has no place and stays NaN.
Ends and ticks are round: 1, 2 or 5 times a power of ten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

_ROUND = (1, 2, 5, 10)
_SLACK = 1e-9
"""Room for the rounding of floats."""


class Scale(Protocol):
    """What both kinds of axis can do."""

    def place(self, value: float) -> float: ...
    def ticks(self, most: int) -> list[float]: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """From `low` to `high`, which is above it."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """0 to 1; NaN of NaN."""
        return _within((value - self.low) / (self.high - self.low))

    def ticks(self, most: int) -> list[float]:
        """At most `most` + 1 values at equal steps."""
        step = round_above((self.high - self.low) / most)
        first, last = math.ceil(self.low / step - _SLACK), math.floor(self.high / step + _SLACK)
        return [step * number for number in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Log:
    """From `low`, above 0, to `high`, above that. What is 0 or less lies at the low end."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """0 to 1; NaN of NaN."""
        if value <= self.low:
            return 0.0
        return _within(math.log(value / self.low) / math.log(self.high / self.low))

    def ticks(self, most: int) -> list[float]:
        """At most `most` values: 1, 2, 5, 10 and so on; else every power of ten, or every second, and so on.

        Where there is only one power of ten, the former, however many.
        """
        fine = self._round_values((1, 2, 5))
        if len(fine) <= most:
            return fine
        decades = self._round_values((1,))
        return decades[:: max(1, math.ceil(len(decades) / most))] if len(decades) > 1 else fine

    def _round_values(self, factors: tuple[int, ...]) -> list[float]:
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        return [value for value in values if self.low * (1 - _SLACK) <= value <= self.high * (1 + _SLACK)]


def log_scale(values: Iterable[float]) -> Log:
    """The round ends around all values above 0; around 1 if there are none."""
    positive = [value for value in values if 0 < value < math.inf]
    low, high = round_below(min(positive, default=1.0)), round_above(max(positive, default=1.0))
    return Log(low, high) if low < high else Log(round_below(low / 2), round_above(high * 2))


def linear_scale(values: Iterable[float], steps: int) -> Linear:
    """From 0 to the first of some `steps` round steps that is above all values; to 1 if none is above 0."""
    greatest = max((value for value in values if 0 < value < math.inf), default=1.0)
    step = round_above(greatest / steps)
    return Linear(0.0, step * math.ceil(greatest / step - _SLACK))


def round_above(value: float) -> float:
    """The least round number that is at least `value`, which is above 0."""
    decade = 10.0 ** math.floor(math.log10(value))
    return next(factor * decade for factor in _ROUND if factor * decade >= value * (1 - _SLACK))


def round_below(value: float) -> float:
    """The greatest round number that is at most `value`, which is above 0."""
    decade = 10.0 ** math.floor(math.log10(value))
    return next(factor * decade for factor in reversed(_ROUND) if factor * decade <= value * (1 + _SLACK))


def _within(place: float) -> float:
    return place if math.isnan(place) else min(1.0, max(0.0, place))
