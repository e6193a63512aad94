"""A comparison as tables for people and as a document for machines. Seconds; lengths in tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prefleet_runtime.sim.fleet import FleetShape
from prefleet_runtime.sim.replay import LaneFigures, Replay, Targets
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from prefleet_operator.replay.setting import Scheduling
from prefleet_operator.replay.study import TraceStudy

BOUND = "clairvoyant bound"
MOST_COLUMNS = 1000
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Comparison:
    """Replays of one trace, the first being the one that others are compared with.

    `split_tokens` divides the lanes of the figures; `load` is the part of the fleet's capacity that arrived. `strict`:
    strict short-first, without promotion, for a report; the same object as in `replays` if that was asked for anyway.
    """

    trace: str
    format: str
    study: TraceStudy
    split_tokens: int
    load: float
    capacity: float
    targets: Targets
    scheduling: Scheduling
    shape: FleetShape
    replays: Sequence[Replay]
    strict: Replay | None = None


def name_of(replay: Replay) -> str:
    """How a policy is called in tables."""
    return BOUND if replay.policy is None else str(replay.policy.policy)


@dataclass(frozen=True)
class Grid:
    """A table as text: a row for each replay, which begins with the policy's name. Headings may have several lines."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def grids(comparison: Comparison) -> list[Grid]:
    """A table for each lane, and one of what was served."""
    split = f"{comparison.split_tokens:,} prompt tokens"
    targets = comparison.targets
    short = _Lane(
        f"short requests, at most {split}", lambda replay: replay.short, f"TTFT\n<= {targets.short_ttft_s:g} s"
    )
    long = _Lane(f"long requests, above {split}", lambda replay: replay.long, f"wait\n<= {targets.long_wait_s:g} s")
    return [*(_lane_grid(lane, comparison.replays) for lane in (short, long)), _service_grid(comparison.replays)]


def print_comparison(console: Console, comparison: Comparison) -> None:
    """All tables."""
    for grid in grids(comparison):
        table = new_table(grid.title, grid.headings)
        for row in grid.rows:
            table.add_row(*row)
        print_table(console, table)


@dataclass(frozen=True)
class _Lane:
    title: str
    of: Callable[[Replay], LaneFigures]
    promise: str


def _lane_grid(lane: _Lane, replays: Sequence[Replay]) -> Grid:
    headings = [f"TTFT\nP{_percent(q)}" for q in QUANTILES] + ["wait\nP95", "wait\nmax", lane.promise]
    rows = []
    for replay in replays:
        figures = lane.of(replay)
        cells = [seconds(figures.ttft.quantile(q)) for q in QUANTILES]
        cells += [seconds(figures.wait.quantile(0.95)), seconds(_greatest(figures)), share(figures.attainment)]
        rows.append((name_of(replay), *cells))
    return Grid(lane.title, tuple(headings), tuple(rows))


def _service_grid(replays: Sequence[Replay]) -> Grid:
    headings = ("served", "tokens/s", "promoted", "degraded", "preempted", "cached")
    rows = []
    for replay in replays:
        counts = [replay.requests, round(replay.tokens_per_s), replay.promotions, replay.degradations]
        cached = replay.cached_tokens / replay.prompt_tokens if replay.prompt_tokens else math.nan
        cells = [f"{count:,}" for count in (*counts, replay.preemptions)]
        rows.append((name_of(replay), *cells, share(cached)))
    return Grid("all", headings, tuple(rows))


def print_table(console: Console, table: Table) -> None:
    """In full, also where the terminal is narrower (or no terminal, and taken for 80 columns): no figure is cut."""
    table.width = table.__rich_measure__(console, console.options.update(max_width=MOST_COLUMNS)).maximum
    console.print(table, crop=False, no_wrap=True, overflow="ignore")


def new_table(title: str, headings: Sequence[str], first: str = "policy") -> Table:
    """One with a first column of names and others of numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def document(comparison: Comparison) -> dict[str, Any]:
    """The same figures, JSON-ready: what could not be measured is null."""
    study = comparison.study
    figures: dict[str, Any] = finite(
        {
            "trace": trace_figures(comparison.trace, comparison.format, study),
            "split_tokens": comparison.split_tokens,
            "load": comparison.load,
            "capacity_requests_per_s": comparison.capacity,
            "slo": slo_figures(comparison.targets),
            "replays": [_replay(replay) for replay in comparison.replays],
        }
    )
    return figures


def trace_figures(name: str, format: str, study: TraceStudy) -> dict[str, Any]:
    """What a trace is."""
    return {
        "name": name,
        "format": format,
        "requests": study.requests,
        "span_s": study.span_s,
        "prompt_tokens": study.prompt_tokens,
        "output_tokens": study.output_tokens,
    }


def slo_figures(targets: Targets) -> dict[str, float]:
    """What was promised."""
    return {"short_ttft_s": targets.short_ttft_s, "long_queue_wait_s": targets.long_wait_s}


def _replay(replay: Replay) -> dict[str, Any]:
    return {
        "policy": name_of(replay),
        "settings": None if replay.policy is None else replay.policy.model_dump(mode="json"),
        "requests": replay.requests,
        "refused": replay.refused,
        "lasted_s": replay.lasted_s,
        "tokens_per_s": replay.tokens_per_s,
        "promotions": replay.promotions,
        "degradations": replay.degradations,
        "preemptions": replay.preemptions,
        "cached_tokens": replay.cached_tokens,
        "short": lane_figures(replay.short),
        "long": lane_figures(replay.long),
    }


def lane_figures(lane: LaneFigures) -> dict[str, Any]:
    """What one lane met."""
    sketches = {"ttft_s": lane.ttft, "wait_s": lane.wait, "latency_s": lane.latency}
    figures: dict[str, Any] = {"requests": lane.ttft.count, "attainment": lane.attainment}
    for name, sketch in sketches.items():
        quantiles = {f"p{_percent(q)}": sketch.quantile(q) for q in QUANTILES}
        figures[name] = {**quantiles, "mean": sketch.mean, "max": sketch.greatest if sketch.count else math.nan}
    figures["longest_waits"] = {"bin_s": lane.timeline.width_s, "longest_s": lane.timeline.longest_s}
    return figures


def _percent(q: float) -> int:
    return round(100 * q)


def _greatest(lane: LaneFigures) -> float:
    return lane.wait.greatest if lane.wait.count else math.nan


def seconds(value: float) -> str:
    """Three digits that count, whatever the magnitude."""
    if math.isnan(value):
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def share(value: float) -> str:
    """A part of 1 as a percentage."""
    return "-" if math.isnan(value) else f"{value:.1%}"


def finite(value: Any) -> Any:
    """NaN is no JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value
