"""The report: what its pictures show of a comparison, and a page that stands alone, is well-formed and legible."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from prefleet_operator.replay.report import render_page
from prefleet_operator.replay.report.chart import Text
from prefleet_operator.replay.report.figures import (
    LONG,
    Figure,
    corners,
    make_figures,
    reached,
    survival,
    survival_figure,
    tell_seconds,
    tell_tokens,
    timeline_figure,
    w_normal_s,
)
from prefleet_runtime.sim.replay import Timeline
from prefleet_runtime.sim.sketch import Sketch

from tests.support.comparisons import make_comparison, make_replay

WAITS = [0.01 * number for number in range(1, 101)]
LATE = [2.0 + 0.1 * number for number in range(100)]
REPLAYS = [
    make_replay("fcfs", [5 * wait for wait in WAITS], LATE),
    make_replay("short_request_first", WAITS, [2 * wait for wait in LATE]),
    make_replay(None, WAITS, LATE),
]
COMPARISON = make_comparison(REPLAYS, strict=make_replay("short_request_first", WAITS, [3 * wait for wait in LATE]))
COMMAND = "prefleet replay mix --html report.html"


def sketch(*values: float) -> Sketch:
    made = Sketch()
    for value in values:
        made.add(value)
    return made


def near(points: Iterator[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(pytest.approx(x, rel=0.02), pytest.approx(y)) for x, y in points]


def texts(figure: Figure) -> list[str]:
    assert figure.drawing is not None
    return [shape.text for shape in figure.drawing.shapes if isinstance(shape, Text)]


def test_survival_steps_down_by_the_share_of_each_wait() -> None:
    points = list(survival(sketch(0, 0, 1, 4), least=0.001))
    assert near(iter(points)) == [(0, 1), (0, 1), (0, 0.5), (1, 0.5), (1, 0.25), (4, 0.25), (4, 0.001)]


def test_survival_ends_where_the_axis_does() -> None:
    points = list(survival(sketch(*(1.1**number for number in range(50))), least=0.1))
    assert points[-1][1] == 0.1
    assert all(left[1] >= right[1] >= 0.1 for left, right in pairwise(points))
    assert points[-1][0] < 1.1**47


def test_one_request_is_a_step() -> None:
    assert near(survival(sketch(2), least=0.1)) == [(0, 1), (2, 1), (2, 0.1)]
    assert near(reached(sketch(2))) == [(2, 0), (2, 1), (math.inf, 1)]


def test_a_timeline_has_two_corners_for_each_bin() -> None:
    line = Timeline()
    line.add(0.5, 3.0)
    line.add(2.5, 1.0)
    assert list(corners(line, second=2.0)) == [(0, 3), (0.5, 3), (0.5, 0), (1, 0), (1, 1), (1.5, 1)]
    assert list(corners(Timeline(), second=1.0)) == []


def test_w_normal_is_the_p95_of_strict_short_first_and_unknown_without_it() -> None:
    # 3 x (2.0 + 0.1 x 94) of LATE's hundred, the 95th
    assert w_normal_s(COMPARISON) == pytest.approx(34.2, rel=0.01)
    assert math.isnan(w_normal_s(make_comparison(REPLAYS)))


def test_the_survival_figure_names_the_three_waits_and_the_curves() -> None:
    told = texts(survival_figure(COMPARISON))
    normal = tell_seconds(w_normal_s(COMPARISON))
    assert {f"W_normal {normal}", "wait limit 5 s", "W_slo 8 s"} <= set(told)
    assert {"fcfs", "short_request_first", "without promotion", "clairvoyant bound"} <= set(told)


def test_the_bounds_endless_waits_do_not_flatten_the_strips() -> None:
    replays = [make_replay("fcfs", [1.0], [9.0]), make_replay(None, [1.0], [4000.0])]
    told = texts(timeline_figure(make_comparison(replays), LONG))
    assert "longest 4,000 s" in told
    assert {"0 s", "10 s", "20 s"} <= set(told)


def test_strict_short_first_that_was_asked_for_is_drawn_once() -> None:
    told = texts(survival_figure(make_comparison(REPLAYS, strict=REPLAYS[1])))
    assert "without promotion" not in told
    assert any(text.startswith("W_normal") for text in told)


@pytest.mark.parametrize(
    ("short", "long", "drawn"),
    [
        pytest.param(WAITS, LATE, 6, id="both lanes"),
        pytest.param(WAITS, [], 3, id="no long request"),
        pytest.param([], LATE, 4, id="no short request"),
        pytest.param([1.0], [2.0], 6, id="one request each"),
        pytest.param([0.0], [0.0], 6, id="nobody waits"),
        pytest.param([], [], 1, id="every request was refused"),
    ],
)
def test_an_empty_lane_is_a_sentence_and_not_a_picture(short: list[float], long: list[float], drawn: int) -> None:
    replays = [make_replay("fcfs", short, long), make_replay("short_request_first", short, long)]
    comparison = make_comparison(replays, strict=make_replay("short_request_first", short, long))
    figures = make_figures(comparison)
    assert len(figures) == 6
    assert sum(figure.drawing is not None for figure in figures) == drawn
    assert all(figure.caption.endswith(".") for figure in figures)
    page = render_page(comparison, COMMAND)
    assert page.count("<svg") == drawn
    assert not re.search(r"\bnan\b|\binf\b", page)


def test_no_request_of_a_policy_leaves_its_strip_empty() -> None:
    replays = [make_replay("fcfs", WAITS, LATE), make_replay("hrrn")]
    assert sum(figure.drawing is not None for figure in make_figures(make_comparison(replays))) == 6


@pytest.mark.parametrize(
    ("value", "told"),
    [(0, "0 s"), (0.005, "5 ms"), (1, "1 s"), (12.34, "12.3 s"), (4321, "4,321 s"), (math.nan, "unknown")],
)
def test_times_are_told_with_their_unit(value: float, told: str) -> None:
    assert tell_seconds(value) == told


@pytest.mark.parametrize(("value", "told"), [(500, "500"), (1000, "1k"), (20_000, "20k"), (1e6, "1M")])
def test_lengths_are_told_short(value: float, told: str) -> None:
    assert tell_tokens(value) == told


class Tags(HTMLParser):
    """What a browser would open, with each start tag's attributes."""

    VOID = ("meta",)

    def __init__(self, page: str) -> None:
        super().__init__()
        self.opened: list[tuple[str, dict[str, str | None]]] = []
        self.unclosed: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.unclosed.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.unclosed.pop() == tag


PAGE = render_page(COMPARISON, COMMAND)


def parsed(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page)


def test_the_page_is_well_formed() -> None:
    assert Tags(PAGE).unclosed == []
    assert len(list(parsed(PAGE).iter("svg"))) == 6


def test_the_page_asks_for_nothing_and_runs_nothing() -> None:
    tags = Tags(PAGE)
    assert {tag for tag, _ in tags.opened}.isdisjoint({"script", "link", "img", "iframe", "object", "use", "image"})
    names = {name for _, attributes in tags.opened for name in attributes}
    assert names.isdisjoint({"src", "href", "xlink:href", "style"})
    assert not any(name.startswith("on") for name in names)
    assert "http://" not in PAGE
    assert "https://" not in PAGE
    style = parsed(PAGE).findtext(".//style") or ""
    assert "url(" not in style
    assert "@import" not in style


def test_ids_are_unique_and_every_picture_has_its_title_and_caption() -> None:
    root = parsed(PAGE)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(set(ids)) == len(ids)
    for svg in root.iter("svg"):
        assert svg.get("aria-labelledby") in ids
        assert svg.get("aria-describedby") in ids


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=y>', "a & b {{ 7*7 }}"])
def test_a_hostile_name_is_shown_and_not_obeyed(name: str) -> None:
    page = render_page(make_comparison(REPLAYS, trace=name), f"prefleet replay '{name}'")
    root = parsed(page)
    assert root.findtext(".//h1") == f"Replay of {name}"
    assert root.findtext(".//code") == f"prefleet replay '{name}'"
    assert {tag for tag, _ in Tags(page).opened}.isdisjoint({"script", "img"})


def test_the_header_says_what_was_replayed_and_the_tables_are_those_of_the_terminal() -> None:
    text = " ".join("".join(parsed(PAGE).itertext()).split())
    for part in ("1 mixed pod of llama-3.1-8b", "90% of the 4.2 requests a second", "1,000 tokens", COMMAND):
        assert part in text
    assert "short requests, at most 1,000 prompt tokens" in text
    assert re.search(r"short_request_first against fcfs: short TTFT P95 1\.4\d s instead of 5\.\d+ s \(-72%\)", text)
    assert len(list(parsed(PAGE).iter("table"))) == 3


def test_a_comparison_of_one_policy_has_nothing_to_find() -> None:
    assert "against" not in render_page(make_comparison(REPLAYS[:1]), COMMAND)


# How well it can be read: contrasts by WCAG 2.2 (1.4.3 and 1.4.11), sizes of text.


def variables(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", block))


def schemes() -> dict[str, dict[str, str]]:
    style = parsed(PAGE).findtext(".//style") or ""
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    return {"light": variables(light), "dark": variables(dark)}


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_curves_stand_out_from_their_ground(scheme: str) -> None:
    colours = schemes()[scheme]
    assert set(colours) == set(schemes()["light"])
    written = [name for name in colours if name not in ("ground", "panel", "rule", "grid", "bar-short", "bar-long")]
    assert len(written) >= 12
    for name in written:
        assert contrast(colours[name], colours["ground"]) >= 4.5, name
    assert contrast(colours["text"], colours["panel"]) >= 4.5
    for name in ("bar-short", "bar-long"):
        assert contrast(colours[name], colours["ground"]) >= 3, name


def test_policies_differ_by_their_dashes_too() -> None:
    style = parsed(PAGE).findtext(".//style") or ""
    dashes = dict(re.findall(r"^\.(s\d) \{[^}]*stroke-dasharray: ([\d ]+);", style, re.MULTILINE))
    assert set(dashes) == {"s1", "s2", "s3", "s4", "s5"}
    assert len(set(dashes.values())) == 5


def test_no_text_is_smaller_than_12_px() -> None:
    sizes = re.findall(r"font(?:-size)?: ([\d.]+)(px|rem|pt)", parsed(PAGE).findtext(".//style") or "")
    assert len(sizes) > 4
    for size, unit in sizes:
        assert float(size) * {"px": 1, "rem": 16, "pt": 4 / 3}[unit] >= 12


def test_without_strict_short_first_w_normal_is_said_to_be_unknown() -> None:
    assert "W_normal unknown" in render_page(make_comparison(REPLAYS), COMMAND)
