"""From a comparison to the page's pictures, each with a caption that says how to read it.

In a replay every wait ends, none is cut short: so the estimate of Kaplan and Meier is just the share of the long
requests that waited longer, and that is what the survival curves show. They end at the share of one request, or at one
in a thousand.

W_normal is taken from the replay under strict short-first (`Comparison.strict`), as design and tuning define it, and is
unknown where no request is long. Where a picture would be empty its place is taken by a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from prefleet_runtime.sim.replay import LaneFigures, Replay, Timeline
from prefleet_runtime.sim.sketch import Sketch

from prefleet_operator.core.histogram import closed_buckets, shares_below
from prefleet_operator.replay.report.chart import Axis, Bar, Chart, Curve, Drawing, Mark, Panel, draw
from prefleet_operator.replay.report.labels import Point
from prefleet_operator.replay.report.scale import Linear, Log, linear_scale, log_scale
from prefleet_operator.replay.tables import Comparison, name_of

NORMAL_QUANTILE = 0.95
LEAST_SHARE = 1e-3
LONGEST_TO_LEAST = 1e3
"""Waits that are shorter than the longest by more are all drawn at the left end: what happens there decides nothing."""

STRICT = "without promotion"
HEADROOM = 1.35
"""A strip's room above its longest wait, for its title."""

SLOTS = 6
"""Styles for policies; a seventh would look like the first."""

_UNITS = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"))


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture; without a `drawing` the `caption` says why there is none."""

    name: str
    title: str
    caption: str
    drawing: Drawing | None


def make_figures(comparison: Comparison) -> list[Figure]:
    """All of them, in the page's order."""
    return [
        lengths_figure(comparison),
        survival_figure(comparison),
        *(ttft_figure(comparison, lane) for lane in LANES),
        *(timeline_figure(comparison, lane) for lane in LANES),
    ]


@dataclass(frozen=True, slots=True)
class Lane:
    """Short or long, and how to get its figures."""

    name: str
    of: Callable[[Replay], LaneFigures]


SHORT, LONG = LANES = (Lane("short", lambda replay: replay.short), Lane("long", lambda replay: replay.long))


def style_of(replay: Replay, position: int) -> str:
    """The CSS class of a policy, by its place in the comparison."""
    return "bound" if replay.policy is None else f"s{position % SLOTS}"


def w_normal_s(comparison: Comparison) -> float:
    """P95 of the long waits under strict short-first; NaN where that is not known."""
    return math.nan if comparison.strict is None else comparison.strict.long.wait.quantile(NORMAL_QUANTILE)


def lengths_figure(comparison: Comparison) -> Figure:
    """The histogram of prompt lengths, parted at the threshold."""
    lengths, split = comparison.study.lengths, comparison.split_tokens
    filled = [(low, high, count / lengths.total) for low, high, count in closed_buckets(lengths) if count]
    scale = log_scale(edge for low, high, _ in filled for edge in (low, high))
    bars = [Bar(low, high, share, "short" if high <= split else "long") for low, high, share in filled]
    marks = [Mark(comparison.scheduling.threshold, f"threshold {comparison.scheduling.threshold:,} tokens", "limit")]
    if split != comparison.scheduling.threshold:
        marks.append(Mark(split, f"lanes of the figures part at {split:,}", "slo"))
    y = linear_scale((share for _, _, share in filled), steps=4)
    axes = Axis(scale, "prompt tokens", tell_tokens), Axis(y, "share of the requests", tell_share)
    chart = Chart(*axes, [Panel(bars=bars)], marks)
    below = shares_below(lengths, split)
    caption = (
        f"Each bar is the share of the requests whose prompts have about so many tokens; those of at most {split:,} are"
        f" short: {below.p:.0%} of the requests with {below.w:.0%} of the prompt tokens."
    )
    return Figure("lengths", "Prompt lengths", caption, draw(chart))


def survival_figure(comparison: Comparison) -> Figure:
    """How long the long requests wait, with the three waits that tuning weighs."""
    title, normal_s = "How long the long requests wait", w_normal_s(comparison)
    shown = [
        (name_of(replay), style_of(replay, position), replay.long.wait)
        for position, replay in enumerate(comparison.replays)
    ]
    if comparison.strict is not None and comparison.strict not in comparison.replays:
        shown.append((STRICT, "strict", comparison.strict.long.wait))
    if not any(waits.count for _, _, waits in shown):
        return Figure("survival", title, "No request of this trace is long, so nothing is known of their waits.", None)
    marks = _wait_marks(comparison, normal_s)
    scale = log_scale([*(value for _, _, waits in shown for value, _ in waits.cumulative()), *(m.value for m in marks)])
    scale = Log(max(scale.low, scale.high / LONGEST_TO_LEAST), scale.high)
    fewest = max(1 / max(waits.count for _, _, waits in shown), LEAST_SHARE)
    least = 10.0 ** math.floor(math.log10(fewest))
    curves = [Curve(name, style, list(survival(waits, least))) for name, style, waits in shown if waits.count]
    chart = Chart(
        Axis(scale, "queue wait", tell_seconds),
        Axis(Log(least, 1.0), "share of the long requests that wait longer", tell_share),
        [Panel(curves)],
        marks,
    )
    caption = (
        "A curve is the share of the long requests that wait longer than the time below it: the further left, the"
        " better. "
    )
    caption += f"W_normal is where the curve of short_request_first {STRICT} falls below 5%, W_slo what was promised."
    return Figure("survival", title, caption, draw(chart))


def _wait_marks(comparison: Comparison, normal_s: float) -> list[Mark]:
    limit_s, slo_s = comparison.scheduling.long_max_wait_s, comparison.targets.long_wait_s
    marks = [Mark(slo_s, f"W_slo {tell_seconds(slo_s)}", "slo")]
    if limit_s > 0:
        marks.append(Mark(limit_s, f"wait limit {tell_seconds(limit_s)}", "limit"))
    if not math.isnan(normal_s):
        marks.append(Mark(normal_s, f"W_normal {tell_seconds(normal_s)}", "normal"))
    return marks


def survival(waits: Sketch, least: float) -> Iterator[Point]:
    """Corners (wait, share that waits longer) of the steps from 1 down to `least`."""
    share = 1.0
    yield 0.0, share
    for wait_s, upto in waits.cumulative():
        yield wait_s, share
        share = 1 - upto / waits.count
        yield wait_s, max(share, least)
        if share < least:
            return


def reached(values: Sketch) -> Iterator[Point]:
    """Corners (value, share that is at most so large) of the steps from 0 up to 1."""
    share = 0.0
    for value, upto in values.cumulative():
        yield value, share
        share = upto / values.count
        yield value, share
    yield math.inf, share


def ttft_figure(comparison: Comparison, lane: Lane) -> Figure:
    """Distributions of the time to the first token."""
    title = f"Time to first token of the {lane.name} requests"
    shown = [(position, replay, lane.of(replay).ttft) for position, replay in enumerate(comparison.replays)]
    values = [value for _, _, ttft in shown for value, _ in ttft.cumulative()]
    if not values:
        return Figure(f"ttft-{lane.name}", title, f"No request of this trace is {lane.name}.", None)
    curves = [
        Curve(name_of(replay), style_of(replay, position), list(reached(ttft)))
        for position, replay, ttft in shown
        if ttft.count
    ]
    slo_s = comparison.targets.short_ttft_s
    marks = [Mark(slo_s, f"promised {tell_seconds(slo_s)}", "slo")] if lane is SHORT else []
    chart = Chart(
        Axis(log_scale([*values, *(mark.value for mark in marks)]), "time to first token", tell_seconds),
        Axis(Linear(0.0, 1.0), f"share of the {lane.name} requests", tell_share),
        [Panel(curves)],
        marks,
    )
    caption = (
        f"A curve is the share of the {lane.name} requests that have their first token within the time below it: the"
        " further left, the better."
    )
    return Figure(f"ttft-{lane.name}", title, caption, draw(chart))


def timeline_figure(comparison: Comparison, lane: Lane) -> Figure:
    """The longest wait as time goes on, a strip for each policy."""
    title = f"Longest wait of the {lane.name} requests over time"
    lines = [lane.of(replay).timeline for replay in comparison.replays]
    if not any(line.longest_s for line in lines):
        return Figure(f"timeline-{lane.name}", title, f"No request of this trace is {lane.name}.", None)
    greatest = _longest_s(comparison, lines)
    ends_s = max(line.width_s * len(line.longest_s) for line in lines)
    second, unit = next(((size, unit) for size, unit in _UNITS if ends_s > 3 * size), (1.0, "seconds"))
    slo_s = comparison.targets.long_wait_s
    levels = [(slo_s, "slo")] if lane is LONG and slo_s <= 2 * greatest else []
    scale = linear_scale((HEADROOM * value for value in (greatest, *(level for level, _ in levels))), steps=2)
    panels = [
        Panel(
            [Curve(name_of(replay), style_of(replay, position), list(corners(line, second)), filled=True)],
            levels=levels,
            title=name_of(replay),
            note=f"longest {tell_seconds(max(line.longest_s, default=math.nan))}",
        )
        for position, (replay, line) in enumerate(zip(comparison.replays, lines, strict=True))
    ]
    chart = Chart(
        Axis(Linear(0.0, ends_s / second), f"{unit} since the first request", lambda value: f"{value:,.10g}"),
        Axis(scale, "longest wait", tell_seconds),
        panels,
        panel_height=72,
    )
    caption = (
        f"Each strip is a policy: the longest wait among the {lane.name} requests whose turn came then; all strips have"
        " one scale (the bound may leave it), and the lower the fill, the better."
    )
    if levels:
        caption += f" The line across is W_slo, {tell_seconds(slo_s)}."
    return Figure(f"timeline-{lane.name}", title, caption, draw(chart))


def _longest_s(comparison: Comparison, lines: Sequence[Timeline]) -> float:
    """What the strips' scale must show: of the policies alone, if there are any.

    The bound lets a few requests wait without end, and would flatten all others.
    """
    pairs = list(zip(comparison.replays, lines, strict=True))
    ruled = [wait_s for replay, line in pairs if replay.policy is not None for wait_s in line.longest_s]
    return max(ruled or [wait_s for line in lines for wait_s in line.longest_s])


def corners(line: Timeline, second: float) -> Iterator[Point]:
    """The steps of a timeline, its times in units of `second` seconds."""
    edges = [number * line.width_s / second for number in range(len(line.longest_s) + 1)]
    for (begin, end), wait_s in zip(pairwise(edges), line.longest_s, strict=True):
        yield begin, wait_s
        yield end, wait_s


def tell_seconds(value: float) -> str:
    """Three digits that count, in milliseconds below a second."""
    if math.isnan(value):
        return "unknown"
    if 0 < value < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def tell_tokens(value: float) -> str:
    """1000 as 1k, a million as 1M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def tell_share(value: float) -> str:
    """A percentage without zeros at its end."""
    return f"{100 * value:.3g}%"
