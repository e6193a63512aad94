"""Charts as shapes at their places: what the template writes as SVG, one element each.

A chart has one x axis, and panels above each other with one y axis in common. All are `WIDTH` wide: drawn so small, a
page of 420 px shows their text at 12 px or more, and a wide page two of them side by side, larger. Names of
styles are CSS classes; no colour is set here.

A curve is broken where a value is NaN; points nearer than `NEAR` to the last one drawn are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from prefleet_operator.replay.report.labels import LETTER, Label, Point, Rectangle, place_labels
from prefleet_operator.replay.report.scale import Scale

WIDTH = 384
LEFT, RIGHT = 52, 24
ROW = 16
GAP = 16
NEAR = 0.4
X_TICKS, Y_TICKS = 7, 5
SWATCH = 26


@dataclass(frozen=True, slots=True)
class Axis:
    """`label` names what is measured, with its unit unless `tell`, which writes a tick, gives that."""

    scale: Scale
    label: str
    tell: Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through points (x, y); `filled` down to the axis."""

    name: str
    style: str
    points: Sequence[Point]
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """From `low` to `high` on the x axis, `height` on the y axis."""

    low: float
    high: float
    height: float
    style: str


@dataclass(frozen=True, slots=True)
class Mark:
    """An upright line at a value of the x axis."""

    value: float
    label: str
    style: str


@dataclass(frozen=True, slots=True)
class Panel:
    """`title` and `note` stand in the upper corners; `levels`: values of the y axis, and the styles of their lines."""

    curves: Sequence[Curve] = ()
    bars: Sequence[Bar] = ()
    levels: Sequence[tuple[float, str]] = ()
    title: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """`marks` are upright lines at values of the x axis, each with its label above the panels."""

    x: Axis
    y: Axis
    panels: Sequence[Panel]
    marks: Sequence[Mark] = ()
    panel_height: int = 200


@dataclass(frozen=True, slots=True)
class Line:
    kind: ClassVar[str] = "line"
    x1: float
    y1: float
    x2: float
    y2: float
    style: str


@dataclass(frozen=True, slots=True)
class Text:
    """`y` is the base line; `anchor` is SVG's: start, middle or end."""

    kind: ClassVar[str] = "text"
    x: float
    y: float
    anchor: str
    text: str
    style: str = "told"


@dataclass(frozen=True, slots=True)
class Outline:
    """`points` as SVG writes them; a polygon if `closed`."""

    kind: ClassVar[str] = "outline"
    points: str
    closed: bool
    style: str


@dataclass(frozen=True, slots=True)
class Box:
    kind: ClassVar[str] = "box"
    x: float
    y: float
    width: float
    height: float
    style: str


Shape = Line | Text | Outline | Box


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes in the order in which they are painted."""

    width: int
    height: int
    shapes: Sequence[Shape]


def draw(chart: Chart) -> Drawing:
    """Lay a chart out: label of the y axis, labels of the marks, panels, x axis, key."""
    top = float(ROW + ROW * len(chart.marks) + 6)
    frames = []
    for _ in chart.panels:
        frames.append(Rectangle(LEFT, top, WIDTH - RIGHT, top + chart.panel_height))
        top += chart.panel_height + GAP
    shapes: list[Shape] = [Text(2, ROW - 4, "start", chart.y.label)]
    for panel, frame in zip(chart.panels, frames, strict=True):
        shapes += _grid(chart, frame)
        shapes += _content(chart, panel, frame)
    shapes += _marks(chart, frames)
    for panel, frame in zip(chart.panels, frames, strict=True):
        shapes += _names(chart, panel, frame)
    base = frames[-1].bottom
    shapes += _x_axis(chart, frames[-1])
    key = list(_key(chart.panels[0].curves, base + 3.4 * ROW)) if len(chart.panels) == 1 else []
    bottom = max((shape.y for shape in key if isinstance(shape, Text)), default=base + 2.2 * ROW)
    return Drawing(WIDTH, math.ceil(bottom + 8), [*shapes, *key])


def _x(chart: Chart, frame: Rectangle, value: float) -> float:
    return frame.left + chart.x.scale.place(value) * (frame.right - frame.left)


def _y(chart: Chart, frame: Rectangle, value: float) -> float:
    return frame.bottom - chart.y.scale.place(value) * (frame.bottom - frame.top)


def _grid(chart: Chart, frame: Rectangle) -> Iterator[Shape]:
    for value in chart.x.scale.ticks(X_TICKS):
        x = _x(chart, frame, value)
        yield Line(x, frame.top, x, frame.bottom, "grid")
    for value in chart.y.scale.ticks(Y_TICKS if len(chart.panels) == 1 else 2):
        y = _y(chart, frame, value)
        yield Line(frame.left, y, frame.right, y, "grid")
        yield Text(frame.left - 5, y + 4, "end", chart.y.tell(value))


def _content(chart: Chart, panel: Panel, frame: Rectangle) -> Iterator[Shape]:
    for bar in panel.bars:
        left, right, top = _x(chart, frame, bar.low), _x(chart, frame, bar.high), _y(chart, frame, bar.height)
        yield Box(left + 0.3, top, max(0.5, right - left - 0.6), frame.bottom - top, bar.style)
    for curve in panel.curves:
        for segment in segments(chart, curve, frame):
            if curve.filled:
                foot = [(segment[-1][0], frame.bottom), (segment[0][0], frame.bottom)]
                yield Outline(_points([*segment, *foot]), True, f"area {curve.style}")
            yield Outline(_points(segment), False, f"curve {curve.style}")
    for value, style in panel.levels:
        y = _y(chart, frame, value)
        yield Line(frame.left, y, frame.right, y, f"mark {style}")
    yield Line(frame.left, frame.bottom, frame.right, frame.bottom, "axis")


def _marks(chart: Chart, frames: Sequence[Rectangle]) -> Iterator[Shape]:
    """Each with its label in a row of its own, right of the line where there is room.

    The rows are in such an order that a line on its way down meets few labels; those that it meets are painted over it.
    """
    at = [(_x(chart, frames[0], mark.value), mark) for mark in chart.marks]
    tight = [(x, mark) for x, mark in at if x + 5 + LETTER * len(mark.label) > WIDTH]
    roomy = [place for place in at if place not in tight]
    rows = [*sorted(tight, key=lambda place: -place[0]), *sorted(roomy, key=lambda place: place[0])]
    for number, (x, mark) in enumerate(rows):
        yield Line(x, ROW * (number + 2) - 12, x, frames[-1].bottom, f"mark {mark.style}")
    for number, (x, mark) in enumerate(rows):
        anchor, offset = ("end", -5) if (x, mark) in tight else ("start", 5)
        yield Text(x + offset, ROW * (number + 2) - 2, anchor, mark.label, f"named {mark.style}")


def _names(chart: Chart, panel: Panel, frame: Rectangle) -> Iterator[Shape]:
    """What stands within a panel: its corners' texts, the names of its curves."""
    if panel.title:
        yield Text(frame.left + 5, frame.top + 13, "start", panel.title, "named")
    if panel.note:
        yield Text(frame.right - 4, frame.top + 13, "end", panel.note, "note")
    if len(chart.panels) > 1 or len(panel.curves) < 2:
        return
    lines = [[point for segment in segments(chart, curve, frame) for point in segment] for curve in panel.curves]
    for curve, label in zip(panel.curves, place_labels([c.name for c in panel.curves], lines, frame), strict=True):
        if label is not None:
            yield Line(*label.corner, *label.point, f"leader {curve.style}")
            yield _label_text(curve, label)


def _label_text(curve: Curve, label: Label) -> Text:
    """Beginning, or ending, where its line does: the box may be wider than the text."""
    anchor = "start" if label.corner[0] == label.box.left else "end"
    return Text(label.corner[0], label.box.bottom - 3, anchor, curve.name, f"named {curve.style}")


def _x_axis(chart: Chart, frame: Rectangle) -> Iterator[Shape]:
    for value in chart.x.scale.ticks(X_TICKS):
        x = _x(chart, frame, value)
        yield Line(x, frame.bottom, x, frame.bottom + 4, "axis")
        yield Text(x, frame.bottom + ROW, "middle", chart.x.tell(value))
    yield Text((frame.left + frame.right) / 2, frame.bottom + 2.1 * ROW, "middle", chart.x.label)


def _key(curves: Sequence[Curve], top: float) -> Iterator[Shape]:
    """A swatch and a name for each curve, two in a row."""
    for number, curve in enumerate(curves):
        x, y = 4 + number % 2 * WIDTH / 2, top + number // 2 * ROW
        yield Line(x, y - 4, x + SWATCH, y - 4, f"curve {curve.style}")
        yield Text(x + SWATCH + 6, y, "start", curve.name)


def segments(chart: Chart, curve: Curve, frame: Rectangle) -> list[list[Point]]:
    """The curve in the drawing's coordinates, in pieces between its NaNs; a lone point twice, to be seen as a dot."""
    pieces: list[list[Point]] = [[]]
    for value in curve.points:
        x, y = _x(chart, frame, value[0]), _y(chart, frame, value[1])
        if math.isnan(x + y):
            pieces.append([])
        elif not pieces[-1] or math.dist(pieces[-1][-1], (x, y)) > NEAR:
            pieces[-1].append((x, y))
    return [piece * 2 if len(piece) == 1 else piece for piece in pieces if piece]


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
