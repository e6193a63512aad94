"""The picture: replicas by time, a panel for each scenario, a line for each scaler, and the work asked, in pods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.sizing.clairvoyant import smooth, work_by_minute
from tests.benchmarks.sizing.rows import CLAIRVOYANT, KEDA, OURS, USUAL, Row
from tests.benchmarks.sizing.scenarios import SCENARIOS, first_replicas

COLOURS = {OURS: "#1f6f8b", USUAL: "#b3541e", KEDA: "#8a8f3c", CLAIRVOYANT: "#222222"}
WIDTHS = {OURS: 2.0, USUAL: 0.5, KEDA: 0.5, CLAIRVOYANT: 1.3}
BACK_TO_FRONT = (USUAL, KEDA, CLAIRVOYANT, OURS)
SMOOTHED_MINUTES = 5


def draw(rows: Sequence[Row], path: Path) -> None:
    """`rows`: one of each scaler and scenario."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys(row.scenario for row in rows))
    figure, grid = plt.subplots(len(names), 1, figsize=(12, 2.6 * len(names)), squeeze=False, layout="constrained")
    for (axes,), name in zip(grid, names, strict=True):
        scenario = SCENARIOS[name]
        found = {row.scaler: row for row in rows if row.scenario == name}
        work, _ = work_by_minute(scenario, found[OURS].seeds[0])
        minutes = [minute / 60 for minute in range(len(work))]
        axes.fill_between(minutes, smooth(work, SMOOTHED_MINUTES), color="#dddddd", label="work asked, in busy pods")
        for row in (found[scaler] for scaler in BACK_TO_FRONT):
            first = row.moves[0][1] if row.moves else first_replicas(scenario)
            hours = [0.0, *(move[0] / 3600 for move in row.moves), scenario.hours]
            pods = [first, *(move[2] for move in row.moves)]
            label = f"{row.scaler}: {row.attainment:.1%}, {row.accelerator_hours:.0f} h"
            style = {"color": COLOURS[row.scaler], "linewidth": WIDTHS[row.scaler]}
            axes.step(hours, [*pods, pods[-1]], where="post", label=label, **style)
        axes.set_xlim(0, scenario.hours)
        axes.set_ylim(0)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(name, fontsize=10, loc="left")
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.suptitle(
        "Pods by hour (first seed); beside each scaler its SLO attainment and accelerator hours (all seeds)",
        fontsize=10,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, facecolor="white")
    plt.close(figure)
