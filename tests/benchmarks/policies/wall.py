"""The wall-clock half: real engines on this machine, in interleaved rounds with a drift probe between any two runs.

A round serves every case under all its contenders, back to back, with the same jobs: FCFS and the candidate side by
side, the order of all turned round in every other round. What a load of sustained arrivals is a part of, the capacity,
is measured in its round on the stock engine. The probe is a fixed piece of work on the stock engine, the least of
`PROBES` prefills; `rows.py` says what it decides.

Each round has servers of its own: of two engines with the same settings one can be 15% slower for as long as it lives
(seen in their CPU time, and whichever it is differs from start to start). Within a round that looks like an effect;
over rounds it becomes the noise that it is.

To fit into half an hour, sustained loads and prefill-only nodes are run with FCFS and the candidate alone, and a
prefill-only node has bursts alone: what the virtual half says of the rest is exact.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.policies.cases import (
    CANDIDATE,
    CONTENDERS,
    FCFS,
    LONG_TOKENS,
    NODES,
    SHORT_TOKENS,
    SUSTAINED,
    Contender,
    Job,
    burst,
    sustained,
)
from tests.benchmarks.policies.client import serve
from tests.benchmarks.policies.figures import figures_of
from tests.benchmarks.policies.fleet import Fleet, started
from tests.benchmarks.policies.rows import WALL, Run

COSTS = "cpu"
PROBES = 5
PROBE_TOKENS = 2000
WARM_UP = (Job(0.0, LONG_TOKENS, 8), Job(0.0, SHORT_TOKENS, 8), Job(0.0, SHORT_TOKENS, 8))


@dataclass(frozen=True)
class Case:
    node: str
    load: str
    contenders: tuple[Contender, ...]
    """FCFS first, the candidate next to it."""


@dataclass(frozen=True)
class WallPlan:
    """`requests` of a sustained load; the rest narrows what is run by default."""

    nodes: Sequence[str]
    loads: Sequence[str]
    policies: Sequence[str]
    pairs: int
    requests: int

    def cases(self) -> list[Case]:
        return [
            Case(node, load, self._contenders(node, load))
            for node in self.nodes
            for load in self.loads
            if node == "mixed" or load not in SUSTAINED
        ]

    @property
    def total(self) -> int:
        return self.pairs * sum(len(case.contenders) for case in self.cases())

    @property
    def names(self) -> set[str]:
        """Contenders that some case has."""
        return {contender.name for case in self.cases() for contender in case.contenders}

    def _contenders(self, node: str, load: str) -> tuple[Contender, ...]:
        everyone = node == "mixed" and load not in SUSTAINED
        chosen = [c for c in CONTENDERS if c.name in self.policies and node in c.nodes and (everyone or _is_main(c))]
        return tuple(sorted(chosen, key=lambda c: (c.name != FCFS, c.name != CANDIDATE)))


def _is_main(contender: Contender) -> bool:
    return contender.name in (FCFS, CANDIDATE)


class Bench:
    """Serves cases on a fleet. `rng` draws prompts alone: jobs have generators of their own."""

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        self._fleet = fleet
        self._rng = rng

    def warm_up(self, contenders: Sequence[Contender]) -> None:
        for contender in contenders:
            serve(self._fleet.server(contender), WARM_UP, contender.by_length, self._rng)
        self.probe_s()

    def probe_s(self) -> float:
        """Seconds of a fixed piece of work."""
        job = Job(0.0, PROBE_TOKENS, 1)
        return min(serve(self._fleet.stock, [job], False, self._rng)[0].ttft_s for _ in range(PROBES))

    def capacity(self, node: str, requests: int, number: int) -> float:
        """Requests a second of the stock engine, all of them waiting from the start."""
        jobs = sustained(NODES[node], 1e9, requests, random.Random(number))
        outcomes = serve(self._fleet.stock, jobs, False, self._rng)
        return requests / max(outcome.tokens_s[-1] for outcome in outcomes)

    def runs(self, case: Case, jobs: Sequence[Job], number: int) -> Iterator[Run]:
        """One round of a case."""
        before_s = self.probe_s()
        for contender in case.contenders if number % 2 == 0 else reversed(case.contenders):
            outcomes = serve(self._fleet.server(contender), jobs, contender.by_length, self._rng)
            after_s = self.probe_s()
            probes_s = (before_s, after_s)
            yield Run(WALL, case.node, COSTS, case.load, contender.name, number, figures_of(outcomes), probes_s)
            before_s = after_s


def wall_runs(python: Path, folder: Path, plan: WallPlan) -> Generator[Run, None, None]:
    """All runs of the plan, as they come. The servers of a round are stopped at its end, or when this is closed."""
    for number in range(plan.pairs):
        with started(python, folder / f"round-{number}", plan.names) as fleet:
            bench = Bench(fleet, random.Random(number))
            bench.warm_up([c for c in CONTENDERS if c.name in plan.names])
            yield from _round(bench, plan, number)


def _round(bench: Bench, plan: WallPlan, number: int) -> Iterator[Run]:
    capacities: dict[str, float] = {}
    for case in plan.cases():
        rng = random.Random(f"{case.load} {number}")
        if case.load in SUSTAINED:
            if case.node not in capacities:
                capacities[case.node] = bench.capacity(case.node, plan.requests, number)
            rate = SUSTAINED[case.load] * capacities[case.node]
            jobs = sustained(NODES[case.node], rate, plan.requests, rng)
        else:
            jobs = burst(NODES[case.node], case.load == "interleaved", rng)
        yield from bench.runs(case, jobs, number)
