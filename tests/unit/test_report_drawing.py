"""The report's drawing: axes, ticks, labels, and shapes at their places."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from prefleet_operator.replay.report.chart import (
    WIDTH,
    Axis,
    Bar,
    Box,
    Chart,
    Curve,
    Line,
    Mark,
    Outline,
    Panel,
    Text,
    draw,
    segments,
)
from prefleet_operator.replay.report.labels import Rectangle, place_labels
from prefleet_operator.replay.report.scale import Linear, Log, Scale, linear_scale, log_scale, round_above, round_below

FRAME = Rectangle(0, 0, 100, 100)


@pytest.mark.parametrize(
    ("scale", "most", "expected"),
    [
        pytest.param(Linear(0, 1), 5, [0, 0.2, 0.4, 0.6, 0.8, 1.0], id="a share in fifths"),
        pytest.param(Linear(0, 20), 2, [0, 10, 20], id="few ticks on a low strip"),
        pytest.param(Linear(3, 9), 3, [4, 6, 8], id="only ticks between the ends"),
        pytest.param(Log(0.2, 10), 7, [0.2, 0.5, 1, 2, 5, 10], id="fine ticks where they fit"),
        pytest.param(Log(0.001, 1), 5, [0.001, 0.01, 0.1, 1], id="powers of ten where the fine ones do not"),
        pytest.param(Log(1e-4, 1e6), 4, [1e-4, 1e-1, 1e2, 1e5], id="every third power of ten over many"),
        pytest.param(Log(2, 50), 3, [2, 5, 10, 20, 50], id="the fine ones where there is one power of ten"),
    ],
)
def test_ticks_are_round(scale: Scale, most: int, expected: list[float]) -> None:
    assert scale.ticks(most) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scale", "value", "place"),
    [
        (Linear(0, 10), 5, 0.5),
        (Linear(0, 10), -3, 0),
        (Linear(0, 10), math.inf, 1),
        (Log(0.1, 10), 1, 0.5),
        (Log(0.1, 10), 0, 0),
        (Log(0.1, 10), -1, 0),
        (Log(0.1, 10), 1e9, 1),
        (Log(0.1, 10), math.inf, 1),
    ],
)
def test_a_place_is_within_the_ends(scale: Scale, value: float, place: float) -> None:
    assert scale.place(value) == pytest.approx(place)


@pytest.mark.parametrize("scale", [Linear(0, 10), Log(0.1, 10)], ids=["linear", "log"])
def test_nan_has_no_place(scale: Scale) -> None:
    assert math.isnan(scale.place(math.nan))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([], Log(0.5, 2), id="nothing"),
        pytest.param([0.0, math.nan, math.inf], Log(0.5, 2), id="nothing that a log axis could show"),
        pytest.param([3.0], Log(2, 5), id="one value"),
        pytest.param([5.0], Log(2, 10), id="one round value"),
        pytest.param([0.03, 0, 70], Log(0.02, 100), id="two values and zero"),
    ],
)
def test_a_log_axis_has_round_ends_around_its_values(values: list[float], expected: Log) -> None:
    scale = log_scale(values)
    assert (scale.low, scale.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("values", "high"), [([], 1), ([0.0], 1), ([math.nan], 1), ([17.4], 20), ([20.0], 20), ([20.1], 40)]
)
def test_a_linear_axis_begins_at_zero(values: list[float], high: float) -> None:
    scale = linear_scale(values, steps=2)
    assert (scale.low, scale.high) == pytest.approx((0, high))


def test_round_numbers_enclose_any_number() -> None:
    rng = Random(1)
    for value in [*(10 ** rng.uniform(-9, 9) for _ in range(500)), *(10.0**exponent for exponent in range(-9, 10))]:
        assert round_below(value) <= value * (1 + 1e-6)
        assert round_above(value) >= value * (1 - 1e-6)
        assert round_above(value) / round_below(value) < 2.6


def chart(*curves: Curve, scale: Scale = Linear(0, 10), marks: tuple[Mark, ...] = (), panels: int = 1) -> Chart:
    axis = Axis(scale, "seconds", lambda value: f"{value:g}")
    return Chart(axis, Axis(Linear(0, 1), "share", lambda value: f"{value:g}"), [Panel(curves)] * panels, marks)


def test_a_curve_breaks_at_nan_and_a_lone_point_is_a_dot() -> None:
    points = [(0, 0), (5, 1), (6, math.nan), (7, 0.5), (math.nan, 0.5), (9, 0), (10, 1)]
    curve = Curve("fcfs", "s0", points)
    assert segments(chart(curve), curve, FRAME) == [
        [(0, 100), (50, 0)],
        [(70, 50), (70, 50)],
        [(90, 100), (100, 0)],
    ]


def test_points_too_near_to_be_seen_apart_are_left_out() -> None:
    curve = Curve("fcfs", "s0", [(number / 1000, 0.5) for number in range(10_001)])
    [segment] = segments(chart(curve), curve, FRAME)
    assert len(segment) < 300
    assert all(right[0] - left[0] > 0.4 for left, right in pairwise(segment))


@pytest.mark.parametrize("points", [[], [(math.nan, math.nan)]], ids=["no point", "no number"])
def test_a_curve_of_nothing_draws_nothing(points: list[tuple[float, float]]) -> None:
    shapes = draw(chart(Curve("fcfs", "s0", points, filled=True))).shapes
    assert not any(isinstance(shape, Outline) for shape in shapes)


def test_a_filled_curve_has_its_foot_on_the_axis() -> None:
    drawing = draw(chart(Curve("fcfs", "s0", [(0, 1), (10, 1)], filled=True)))
    area, line = [shape for shape in drawing.shapes if isinstance(shape, Outline)]
    assert (area.closed, line.closed) == (True, False)
    corners = [tuple(map(float, point.split(","))) for point in area.points.split()]
    assert len(corners) == 4
    assert corners[0][1] == corners[1][1] < corners[2][1] == corners[3][1]


def test_a_bar_stands_on_the_axis_at_its_place() -> None:
    axis = Axis(Log(1, 100), "tokens", str)
    bars = [Bar(1, 10, 1.0, "short"), Bar(10, 100, 0.5, "long")]
    drawing = draw(Chart(axis, Axis(Linear(0, 1), "share", str), [Panel(bars=bars)]))
    short, long = [shape for shape in drawing.shapes if isinstance(shape, Box)]
    assert short.width == pytest.approx(long.width)
    assert short.height == pytest.approx(2 * long.height)
    assert short.y + short.height == pytest.approx(long.y + long.height)


def test_marks_have_rows_of_their_own_and_all_text_stays_in_the_drawing() -> None:
    names = ("W_normal 9.9 s", "wait limit 10 s", "W_slo 10 s")
    marks = tuple(Mark(value, name, "limit") for value, name in zip((9.9, 10, 5), names, strict=True))
    drawing = draw(chart(Curve("fcfs", "s0", [(0, 0), (10, 1)]), Curve("hrrn", "s1", [(0, 1), (10, 0)]), marks=marks))
    rows = [shape.y for shape in drawing.shapes if isinstance(shape, Text) and shape.text in names]
    assert len(set(rows)) == 3
    for shape in drawing.shapes:
        if isinstance(shape, Text):
            width = 7 * len(shape.text)
            left = shape.x - {"start": 0, "middle": width / 2, "end": width}[shape.anchor]
            assert left >= 0
            assert left + width <= WIDTH
            assert 0 < shape.y < drawing.height
        if isinstance(shape, Line):
            assert 0 <= min(shape.x1, shape.x2) <= max(shape.x1, shape.x2) <= WIDTH
            assert 0 <= min(shape.y1, shape.y2) <= max(shape.y1, shape.y2) <= drawing.height


def test_panels_lie_below_each_other_with_one_x_axis() -> None:
    one, three = draw(chart()), draw(chart(panels=3))
    assert three.height > one.height + 2 * 200
    told = [shape.text for shape in three.shapes if isinstance(shape, Text)]
    assert told.count("seconds") == 1


def test_labels_keep_clear_of_each_other_and_of_other_curves() -> None:
    frame = Rectangle(0, 0, 200, 100)
    rising = [(2.0 * x, 90 - 0.8 * x) for x in range(0, 101, 10)]
    flat = [(0.0, 95.0), (200.0, 95.0)]
    first, second = place_labels(["rising", "flat"], [rising, flat], frame)
    assert first is not None
    assert second is not None
    assert not first.box.meets(second.box)
    for label, curve in ((first, rising), (second, flat)):
        assert not any(label.box.holds(point) for point in [*rising, *flat])
        assert frame.encloses(label.box)
        assert label.point[1] == pytest.approx(90 - 0.4 * label.point[0] if curve is rising else 95)
        assert label.corner[0] in (label.box.left, label.box.right)
        assert label.corner[1] in (label.box.top, label.box.bottom)


@pytest.mark.parametrize(
    ("name", "curve"),
    [("a name that is far too long for it", [(0.0, 50.0), (100.0, 50.0)]), ("empty", [])],
    ids=["no room", "no curve"],
)
def test_a_name_without_a_place_is_left_out(name: str, curve: list[tuple[float, float]]) -> None:
    assert place_labels([name], [curve], FRAME) == [None]
