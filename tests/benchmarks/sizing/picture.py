"""The picture: replicas by time, a panel for each scenario, a line for each scaler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.sizing.rows import CLAIRVOYANT, KEDA, OURS, USUAL, Row
from tests.benchmarks.sizing.scenarios import PODS, SCENARIOS, first_replicas

COLOURS = {OURS: "#1f6f8b", USUAL: "#b3541e", KEDA: "#8a8f3c", CLAIRVOYANT: "#222222"}
POINTS = 400


def draw(rows: Sequence[Row], path: Path) -> None:
    """`rows`: one of each scaler and scenario."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(row.scenario for row in rows))
    figure, grid = plt.subplots(len(names), 1, figsize=(10, 2.3 * len(names)), squeeze=False, layout="constrained")
    for (axes,), name in zip(grid, names, strict=True):
        scenario = SCENARIOS[name]
        times = [scenario.hours * step / POINTS for step in range(POINTS + 1)]
        axes.plot(times, [PODS * scenario.load(hour * 3600) for hour in times], color="#cccccc", label="request rate")
        for row in (row for row in rows if row.scenario == name):
            first = row.moves[0][1] if row.moves else first_replicas(scenario)
            hours = [0.0, *(move[0] / 3600 for move in row.moves), scenario.hours]
            pods = [first, *(move[2] for move in row.moves)]
            label = f"{row.scaler}: {row.attainment:.1%}, {row.accelerator_hours:.0f} h"
            axes.step(hours, [*pods, pods[-1]], where="post", color=COLOURS[row.scaler], linewidth=1.1, label=label)
        axes.set_xlim(0, scenario.hours)
        axes.set_title(name, fontsize=10, loc="left")
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.suptitle("Pods by hour; beside each scaler its SLO attainment and its accelerator hours", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, facecolor="white")
    plt.close(figure)
