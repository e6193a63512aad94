"""How one queue is timed at one depth: steady, at realistic lengths, one call at a time.

The queue is filled by arrivals under twice the load that is served, so that waits and ratios have the spread of an
overload. Then it stays at its depth: each step takes one request out and processes `STEP_TOKENS`, and a new request
takes the place of what left. What is removed is chosen at random and has just been looked up, as an engine does.

Each call is timed by itself; the time that an empty call takes in the same frame is subtracted. The collector of
cycles is off meanwhile. A slow form is timed for `BUDGET_S` a round, at least `FEWEST` times.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from statistics import median
from time import perf_counter, perf_counter_ns

from tests.benchmarks.subjects import Entrant, Subject, Work

STEP_TOKENS = 2048
SECONDS_A_TOKEN = 1e-4
WARM_UP = 300
REPEATS = 4000
FEWEST = 5
BUDGET_S = 0.5

Samples = dict[str, list[int]]
"""Nanoseconds by operation."""


class Bench:
    """One subject at one depth. `works` is lent: more of them than may wait."""

    def __init__(self, subject: Subject, works: list[Work], waiting: int, seed: int) -> None:
        self.subject = subject
        self.rng = random.Random(seed)
        self.samples: Samples = defaultdict(list)
        self.works = {work.rid: work for work in works}
        self.spare = deque(works)
        self.waiting: list[Work] = []
        self.place: dict[str, int] = {}
        self.processed = 0
        mean = sum(work.tokens for work in works) // len(works)
        for _ in range(waiting):
            self.processed += mean // 2
            self.arrive()

    @property
    def now(self) -> float:
        return self.processed * SECONDS_A_TOKEN

    def arrive(self) -> int:
        work = self.spare.popleft()
        work.arrive(self.now, self.processed)
        self.place[work.rid] = len(self.waiting)
        self.waiting.append(work)
        add = self.subject.add
        begun = perf_counter_ns()
        add(work)
        return perf_counter_ns() - begun

    def leave(self, work: Work) -> None:
        """Book-keeping: the last takes the place of the one that left."""
        place, last = self.place.pop(work.rid), self.waiting.pop()
        if last is not work:
            self.waiting[place] = last
            self.place[last.rid] = place
        self.spare.append(work)

    def step(self) -> None:
        """A step, what follows it, and an arrival."""
        self.processed += STEP_TOKENS
        now, processed, step, settle = self.now, self.processed, self.subject.step, self.subject.settle
        begun = perf_counter_ns()
        request = step(now, processed)
        ended = perf_counter_ns()
        self.samples["step"].append(ended - begun)
        work = self.works[request.request_id]
        begun = perf_counter_ns()
        settle(work.rid, now, work.tokens)
        ended = perf_counter_ns()
        self.samples["commit"].append(ended - begun)
        self.leave(work)
        self.samples["add"].append(self.arrive())

    def remove(self) -> None:
        """An abort, and an arrival."""
        work = self.rng.choice(self.waiting)
        assert work.request.request_id == work.rid  # the engine has the request at hand
        self.leave(work)
        remove = self.subject.remove
        begun = perf_counter_ns()
        remove(work)
        ended = perf_counter_ns()
        self.samples["remove"].append(ended - begun)
        self.arrive()


def measure(entrant: Entrant, works: list[Work], waiting: int, seed: int) -> Samples:
    """One round."""
    bench = Bench(entrant.make(), works, waiting, seed)
    _repeat(bench.step, WARM_UP)
    bench.samples.clear()
    _repeat(bench.step, REPEATS)
    _repeat(bench.remove, REPEATS)
    return bench.samples


def empty_call_ns() -> int:
    """The median time of a call that does nothing, with two arguments as `step` has."""
    nothing: Callable[[float, int], None] = _Nothing().step
    samples = []
    for _ in range(20_000):
        begun = perf_counter_ns()
        nothing(0.0, 0)
        samples.append(perf_counter_ns() - begun)
    return round(median(samples))


class _Nothing:
    def step(self, now: float, processed: int) -> None:
        pass


def _repeat(call: Callable[[], None], times: int) -> None:
    ends = perf_counter() + BUDGET_S
    for done in range(times):
        if done >= FEWEST and perf_counter() > ends:
            return
        call()
