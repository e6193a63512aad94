"""Where the name of each curve can stand, and which point of the curve a short line leads to from there.

Greedy, one curve after the other: of places above or below some points of the curve, to their left or right, nearer or
further, the one that covers least of all curves, whose point has the fewest other curves around, and that is nearest;
the earlier along the curve among equals. A curve for which all places meet labels that stand already goes without (the
key names it too).

Left out: the best arrangement of all labels together. Coordinates are those of the drawing, y downwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

Point = tuple[float, float]

LETTER = 7.7
"""Width of a letter on average at 12 px, of a wide bold sans-serif: rather too much than too little."""

_HEIGHT = 14.0
_OFFS = (4.0, 16.0, 32.0)
_STEP = 5.0
_TRIES = 20
_AROUND = 10.0
_COVERED = 3
"""How much worse a point of a curve under a label is than one beside the label's point, or than 4 px of distance."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """`left` < `right`, `top` < `bottom`."""

    left: float
    top: float
    right: float
    bottom: float

    def holds(self, point: Point) -> bool:
        return self.left < point[0] < self.right and self.top < point[1] < self.bottom

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


@dataclass(frozen=True, slots=True)
class Label:
    """A name's box, the corner of it where its line begins, and the point of the curve where that ends."""

    box: Rectangle
    corner: Point
    point: Point


def place_labels(names: Sequence[str], curves: Sequence[Sequence[Point]], frame: Rectangle) -> list[Label | None]:
    """The label of each curve, or None where it has no place within the frame."""
    dense = [list(_dense(curve)) for curve in curves]
    placed: list[Label | None] = []
    for number, name in enumerate(names):
        standing = [label.box for label in placed if label is not None]
        own, others = dense[number], [point for curve in dense[:number] + dense[number + 1 :] for point in curve]
        free = [
            label
            for label in _candidates(own, LETTER * len(name))
            if frame.encloses(label.box) and not any(label.box.meets(box) for box in standing)
        ]
        placed.append(min(free, key=partial(_cost, own, others), default=None))
    return placed


def _cost(own: Sequence[Point], others: Sequence[Point], label: Label) -> float:
    covered = sum(map(label.box.holds, own)) + sum(map(label.box.holds, others))
    beside = sum(math.dist(label.point, other) < _AROUND for other in others)
    return _COVERED * covered + beside + math.dist(label.corner, label.point) / 4


def _candidates(curve: Sequence[Point], width: float) -> Iterator[Label]:
    for x, y in curve[:: max(1, len(curve) // _TRIES)]:
        for off in _OFFS:
            for beside in (x + off, x - off):
                for level in (y - off, y + off):
                    left = beside if beside > x else beside - width
                    top = level if level > y else level - _HEIGHT
                    yield Label(Rectangle(left, top, left + width, top + _HEIGHT), (beside, level), (x, y))


def _dense(curve: Sequence[Point]) -> Iterator[Point]:
    """Points along the curve, at most `_STEP` apart."""
    for (x0, y0), (x1, y1) in pairwise(curve):
        parts = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / _STEP))
        for part in range(parts):
            yield x0 + (x1 - x0) * part / parts, y0 + (y1 - y0) * part / parts
