"""Where the name of each curve can stand, close to the curve and off the others.

Greedy, one curve after the other: of places along the curve, a little above or below it and to its left or right, the
one that covers the least of all curves and has the fewest others around, and meets no label that stands already; the
earlier along the curve among equals. A curve for which there is none goes without (the key names it too).

Left out: the best arrangement of all labels together. Coordinates are those of the drawing, y downwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]

LETTER = 7.7
"""Width of a letter on average at 12 px, of a wide bold sans-serif: rather too much than too little."""

_HEIGHT = 14.0
_OFF = 4.0
_STEP = 4.0
_AROUND = 10.0
_COVERED = 3
"""How much worse a point of a curve under a label or beside its point is than one near the label."""
_TRIES = 40


@dataclass(frozen=True, slots=True)
class Rectangle:
    """`left` < `right`, `top` < `bottom`."""

    left: float
    top: float
    right: float
    bottom: float

    def holds(self, point: Point) -> bool:
        return self.left < point[0] < self.right and self.top < point[1] < self.bottom

    def widened(self, by: float) -> Rectangle:
        return Rectangle(self.left - by, self.top - by, self.right + by, self.bottom + by)

    def encloses(self, other: Rectangle) -> bool:
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )

    def meets(self, other: Rectangle) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def place_labels(names: Sequence[str], curves: Sequence[Sequence[Point]], frame: Rectangle) -> list[Rectangle | None]:
    """The box of each name, or None where it has no place within the frame."""
    dense = [list(_dense(curve)) for curve in curves]
    placed: list[Rectangle | None] = []
    for number, name in enumerate(names):
        standing = [box for box in placed if box is not None]
        own, others = dense[number], [point for curve in dense[:number] + dense[number + 1 :] for point in curve]
        free = [
            (point, box)
            for point, box in _candidates(own, LETTER * len(name))
            if frame.encloses(box) and not any(box.meets(other) for other in standing)
        ]
        placed.append(min(free, key=lambda place: _cost(own, others, *place))[1] if free else None)
    return placed


def _cost(own: Sequence[Point], others: Sequence[Point], point: Point, box: Rectangle) -> int:
    """How much of the curves a label covers, and how near others come to it and its point, so that it may be theirs."""
    near = sum(map(box.widened(_AROUND).holds, others))
    beside = sum(math.dist(point, other) < _AROUND for other in others)
    return _COVERED * sum(map(box.holds, [*own, *others])) + near + _COVERED * beside


def _candidates(curve: Sequence[Point], width: float) -> Iterator[tuple[Point, Rectangle]]:
    for x, y in curve[:: max(1, len(curve) // _TRIES)]:
        for left in (x + _OFF, x - _OFF - width):
            for top in (y - _OFF - _HEIGHT, y + _OFF):
                yield (x, y), Rectangle(left, top, left + width, top + _HEIGHT)


def _dense(curve: Sequence[Point]) -> Iterator[Point]:
    """Points along the curve, at most `_STEP` apart."""
    for (x0, y0), (x1, y1) in pairwise(curve):
        parts = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / _STEP))
        for part in range(parts):
            yield x0 + (x1 - x0) * part / parts, y0 + (y1 - y0) * part / parts
