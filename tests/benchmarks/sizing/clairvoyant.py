"""The least that a fleet could have cost: a plan made with the requests known before, and pods ordered in time.

A plan gives each minute as many pods as the work that will come asks for, at a load `rho`, and as hold its KV: work is
that of the window of so many minutes around it. Pods are ordered a start delay before, within the same bounds and quota
as everybody's, and the fleet begins as the plan wants it. Of each window the highest load counts that keeps as much as
the fleet to be compared with, and of the windows the cheapest: an upper bound of the true minimum, in a family of plans
that no scaler without foresight can follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from tests.benchmarks.sizing.fleet import ACCELERATORS, LIMITS, Outcome, ScalingFleet
from tests.benchmarks.sizing.scalers import MAX_REPLICAS, MIN_REPLICAS
from tests.benchmarks.sizing.scenarios import Scenario, arrivals, requests, true_work

MINUTE = 60.0
WINDOWS = (3, 9, 21)
LOADS = tuple(round(1.1 - 0.025 * step, 3) for step in range(33))
"""From the cheapest plan to the dearest."""
KV_SHARE = 0.8
GAP_S = 0.1
"""What a token of an answer takes, roughly: for the KV that is in use."""


class Plan:
    """Replicas by minute, ordered `start_s` before they are needed."""

    def __init__(self, by_minute: Sequence[int], start_s: float) -> None:
        self._by_minute, self._start_s = by_minute, start_s

    def at(self, now: float) -> int:
        """What is there now or will be needed when a pod ordered now is ready."""
        last = len(self._by_minute) - 1
        first = min(last, int(now // MINUTE))
        then = min(last, int((now + self._start_s) // MINUTE) + 1)
        return max(self._by_minute[first : then + 1])

    @property
    def hours(self) -> float:
        """Accelerator hours, without what it takes to drain pods."""
        minutes = range(len(self._by_minute))
        return ACCELERATORS * sum(self.at(minute * MINUTE) for minute in minutes) * MINUTE / 3600

    def __call__(self, fleet: ScalingFleet, now: float) -> int:
        return self.at(now)


@cache
def work_by_minute(scenario: Scenario, seed: int) -> tuple[list[float], list[float]]:
    """Work per second, and KV caches in use, by minute."""
    minutes = math.ceil(scenario.seconds / MINUTE)
    work, held = [0.0] * minutes, [0.0] * minutes
    for request in requests(scenario, seed):
        minute = int(request.arrival_s // MINUTE)
        work[minute] += true_work(request.prompt_tokens, request.max_tokens) / MINUTE
        tokens = request.prompt_tokens + request.max_tokens / 2
        held[minute] += tokens * request.max_tokens * GAP_S / LIMITS.kv_cache_tokens / MINUTE
    return work, held


def plan(scenario: Scenario, seed: int, load: float, window: int) -> Plan:
    work, held = (smooth(series, window) for series in work_by_minute(scenario, seed))
    pods = [
        max(MIN_REPLICAS, min(MAX_REPLICAS, math.ceil(max(asked / load, kv / KV_SHARE))))
        for asked, kv in zip(work, held, strict=True)
    ]
    return Plan(pods, scenario.start_s)


def smooth(series: Sequence[float], window: int) -> list[float]:
    half = window // 2
    cut = (series[max(0, at - half) : at + half + 1] for at in range(len(series)))
    return [sum(part) / len(part) for part in cut]


def least(scenario: Scenario, seed: int, attainment: float) -> Outcome:
    """The cheapest plan that keeps at least `attainment`; where none does, what the dearest keeps."""
    best: Outcome | None = None
    for window in WINDOWS:
        plans = [plan(scenario, seed, load, window) for load in LOADS]
        if best is not None:  # a plan that costs no less need not be tried
            plans = [one for one in plans if one.hours < best.accelerator_hours]
        low, high = 0, len(plans)
        while low < high:  # the highest load that keeps it
            middle = (low + high) // 2
            outcome = follow(scenario, seed, plans[middle], attainment)
            if outcome is None:
                low = middle + 1
                continue
            high = middle
            best = outcome if best is None else min(best, outcome, key=lambda one: one.accelerator_hours)
    dearest = plan(scenario, seed, LOADS[-1], WINDOWS[0])
    found = best or follow(scenario, seed, dearest, 0.0)
    assert found is not None, "whatever is kept is at least nothing"
    return found


def follow(scenario: Scenario, seed: int, scaler: Plan, attainment: float) -> Outcome | None:
    """What the plan yields, if it keeps at least `attainment`."""
    fleet = ScalingFleet(scaler.at(0.0), scenario.start_s, scaler, scenario.quota)
    most_missed = (1 - attainment) * len(arrivals(scenario, seed)) + 1e-6
    return fleet.run(requests(scenario, seed), scenario.seconds, most_missed)
