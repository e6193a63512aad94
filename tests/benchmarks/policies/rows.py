"""From runs to rows: what a metric was under a policy and a load, and how that compares with FCFS.

Comparison is paired: a run is divided by the FCFS run of the same number (a seed of the virtual half, a round of the
wall-clock half), whose requests were the same, and the ratio of a row is the median of these.

A pair is steady if the drift probes around its two runs differ by at most `MOST_DRIFT`; virtual runs have none. A row
speaks of its steady pairs alone (of all if there is none), and is conclusive if these are at least half of its pairs
and at least `FEWEST_STEADY`. That is about drift only: how far pairs differ among themselves is the row's noise, which
whoever compares it with a limit adds.

Left out: metrics that one of the two runs lacks, or that are zero under FCFS.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from tests.benchmarks.policies.cases import FCFS
from tests.benchmarks.policies.figures import HIGHER_IS_BETTER, Figures

VIRTUAL, WALL = "virtual", "wall"
MOST_DRIFT = 1.10
FEWEST_STEADY = 3


@dataclass(frozen=True)
class Run:
    """One load under one policy. `probes_s`: what the drift probe took before and after it."""

    half: str
    node: str
    costs: str
    load: str
    policy: str
    number: int
    figures: Figures
    probes_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Row:
    """`value` in seconds, or tokens a second; `worst` is the worst pair's ratio.

    `noise`: half the range of the ratios without the lowest and the highest quarter of them (rounded down).
    `pairs` counts those that the row speaks of.
    """

    half: str
    node: str
    costs: str
    load: str
    policy: str
    metric: str
    value: float
    ratio: float
    worst: float
    noise: float
    pairs: int
    conclusive: bool


@dataclass(frozen=True)
class Pair:
    """A run and the FCFS run of the same number, which is itself where the policy is FCFS."""

    run: Run
    stock: Run

    @property
    def is_steady(self) -> bool:
        probes = self.run.probes_s + self.stock.probes_s
        return not probes or max(probes) <= MOST_DRIFT * min(probes)

    def has(self, metric: str) -> bool:
        return metric in self.run.figures and bool(self.stock.figures.get(metric))

    def ratio(self, metric: str) -> float:
        return self.run.figures[metric] / self.stock.figures[metric]


def rows_of(runs: Iterable[Run]) -> list[Row]:
    """All rows, in the order in which their first runs came. A run without its FCFS run is left out."""
    cases: dict[tuple[str, str, str, str], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        cases[run.half, run.node, run.costs, run.load][run.policy].append(run)
    return [row for policies in cases.values() for row in _rows_of_case(policies)]


def _rows_of_case(policies: dict[str, list[Run]]) -> Iterator[Row]:
    stock = {run.number: run for run in policies.get(FCFS, ())}
    for runs in policies.values():
        pairs = [Pair(run, stock[run.number]) for run in runs if run.number in stock]
        for metric in dict.fromkeys(metric for pair in pairs for metric in pair.run.figures):
            shown = [pair for pair in pairs if pair.has(metric)]
            if shown:
                yield _row(metric, shown)


def _row(metric: str, pairs: Sequence[Pair]) -> Row:
    steady = [pair for pair in pairs if pair.is_steady]
    told = steady or pairs
    ratios = [pair.ratio(metric) for pair in told]
    run = told[0].run
    virtual = run.half == VIRTUAL
    return Row(
        half=run.half,
        node=run.node,
        costs=run.costs,
        load=run.load,
        policy=run.policy,
        metric=metric,
        value=median(pair.run.figures[metric] for pair in told),
        ratio=median(ratios),
        worst=min(ratios) if metric in HIGHER_IS_BETTER else max(ratios),
        noise=noise_of(ratios),
        pairs=len(told),
        conclusive=virtual or (2 * len(steady) >= len(pairs) and len(steady) >= FEWEST_STEADY),
    )


def noise_of(ratios: Sequence[float]) -> float:
    """Half the range of the middle ones."""
    ranked = sorted(ratios)
    outer = len(ranked) // 4
    middle = ranked[outer : len(ranked) - outer]
    return (middle[-1] - middle[0]) / 2
