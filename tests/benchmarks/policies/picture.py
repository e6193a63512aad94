"""The picture: for each node, step costs and half, how short and long TTFT P95 changed by policy and load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.policies.cases import CONTENDERS, FCFS, LOADS, SUSTAINED
from tests.benchmarks.policies.rows import VIRTUAL, Row
from tests.benchmarks.policies.tables import NAMES, percent, short_name

METRICS = {"short_ttft_p95": "short TTFT P95", "long_ttft_p95": "long TTFT P95"}
COLOURS = ("#1f6f8b", "#f7f7f5", "#b3541e")
"""Sooner than FCFS, the same, later."""
FULL_COLOUR_AT = 8.0
"""Times sooner or later."""

Place = tuple[str, str, str]


def draw(rows: Sequence[Row], path: Path) -> None:
    """A grid of panels; each cell is the change against FCFS, `?` where the row is inconclusive."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [row for row in rows if row.policy != FCFS and row.metric in METRICS]
    places = list(dict.fromkeys((row.half, row.node, row.costs) for row in shown))
    if not places:
        return
    heights = [len(_policies(shown, place)) for place in places]
    figure, grid = plt.subplots(
        len(places),
        len(METRICS),
        figsize=(11.5, 0.8 + 0.3 * sum(heights) + 0.8 * len(places)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for line, place in zip(grid, places, strict=True):
        for axes, metric in zip(line, METRICS, strict=True):
            _panel(axes, [row for row in shown if row.metric == metric], place, METRICS[metric])
        line[-1].set_yticklabels([])
    figure.suptitle("Change of the time to the first token against stock FCFS (blue: sooner, brown: later)")
    figure.supxlabel(f"{NAMES}; ?: inconclusive, the machine drifted", fontsize=8.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, facecolor="white")
    plt.close(figure)


def _panel(axes: Any, rows: Sequence[Row], place: Place, title: str) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    policies = _policies(rows, place)
    found = {(row.policy, row.load): row for row in rows if (row.half, row.node, row.costs) == place}
    shades = [[_shade(found.get((policy, load))) for load in LOADS] for policy in policies]
    colours = LinearSegmentedColormap.from_list("change", COLOURS)
    axes.imshow(shades, cmap=colours, vmin=-1, vmax=1, aspect="auto")
    for line, policy in enumerate(policies):
        for column, load in enumerate(LOADS):
            colour = "white" if abs(shades[line][column]) > 0.55 else "#222222"
            text = _text(found.get((policy, load)))
            axes.text(column, line, text, ha="center", va="center", fontsize=8.5, color=colour)
    half, node, costs = place
    kind = f"{costs} step costs" if half == VIRTUAL else "wall clock"
    axes.set_title(f"{title}: {node} node, {kind}", fontsize=10)
    axes.set_xticks(range(len(LOADS)), [_load_name(load) for load in LOADS])
    axes.set_yticks(range(len(policies)), [short_name(policy) for policy in policies])
    axes.tick_params(length=0, labelsize=8.5)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _policies(rows: Sequence[Row], place: Place) -> list[str]:
    present = {row.policy for row in rows if (row.half, row.node, row.costs) == place}
    return [contender.name for contender in CONTENDERS if contender.name in present]


def _load_name(load: str) -> str:
    return f"{SUSTAINED[load]:.0%} load" if load in SUSTAINED else load


def _shade(row: Row | None) -> float:
    """-1 for `FULL_COLOUR_AT` times sooner, 1 for as much later; NaN, which is not painted, without a row."""
    if row is None:
        return math.nan
    return max(-1.0, min(1.0, math.log(row.ratio) / math.log(FULL_COLOUR_AT)))


def _text(row: Row | None) -> str:
    return "" if row is None else percent(row.ratio) + ("" if row.conclusive else "?")
