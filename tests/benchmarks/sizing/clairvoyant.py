"""The least that a fleet could have cost: a plan made with the requests known before, and pods ordered in time.

A plan gives each minute as many pods as the work that will come asks for, at a load `rho`, and as hold its KV: work is
that of the window of so many minutes around it. Pods are ordered a start delay before. Of the windows and the highest
load that keeps as much as the fleet to be compared with, the cheapest counts: an upper bound of the true minimum, in a
family of plans that no scaler without foresight can follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.benchmarks.sizing.fleet import LIMITS, Outcome, ScalingFleet
from tests.benchmarks.sizing.scalers import MAX_REPLICAS, MIN_REPLICAS
from tests.benchmarks.sizing.scenarios import Scenario, requests, true_work

MINUTE = 60.0
WINDOWS = (3, 9, 21)
LOADS = tuple(round(0.95 - 0.05 * step, 2) for step in range(13))
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

    def __call__(self, fleet: ScalingFleet, now: float) -> int:
        return self.at(now)


def work_by_minute(scenario: Scenario) -> tuple[list[float], list[float]]:
    """Work per second, and KV caches in use, by minute."""
    minutes = math.ceil(scenario.seconds / MINUTE)
    work, held = [0.0] * minutes, [0.0] * minutes
    for request in requests(scenario):
        minute = int(request.arrival_s // MINUTE)
        work[minute] += true_work(request.prompt_tokens, request.max_tokens) / MINUTE
        tokens = request.prompt_tokens + request.max_tokens / 2
        held[minute] += tokens * request.max_tokens * GAP_S / LIMITS.kv_cache_tokens / MINUTE
    return work, held


def plan(scenario: Scenario, load: float, window: int) -> Plan:
    work, held = (smooth(series, window) for series in work_by_minute(scenario))
    pods = [
        max(MIN_REPLICAS, min(MAX_REPLICAS, math.ceil(max(asked / load, kv / KV_SHARE))))
        for asked, kv in zip(work, held, strict=True)
    ]
    return Plan(pods, scenario.start_s)


def smooth(series: Sequence[float], window: int) -> list[float]:
    half = window // 2
    cut = (series[max(0, at - half) : at + half + 1] for at in range(len(series)))
    return [sum(part) / len(part) for part in cut]


def least(scenario: Scenario, attainment: float) -> Outcome:
    """The cheapest plan that keeps at least `attainment`; the best keeping one where none does."""
    found: list[Outcome] = []
    best: Outcome | None = None
    for window in WINDOWS:
        low, high = 0, len(LOADS) - 1
        while low < high:  # the highest load that keeps it
            middle = (low + high) // 2
            outcome = follow(scenario, LOADS[middle], window)
            if outcome.attainment >= attainment:
                high = middle
                found.append(outcome)
            else:
                low = middle + 1
            best = outcome if best is None or outcome.attainment > best.attainment else best
        outcome = follow(scenario, LOADS[low], window)
        best = outcome if best is None or outcome.attainment > best.attainment else best
        if outcome.attainment >= attainment:
            found.append(outcome)
    assert best is not None
    return min(found, key=lambda one: one.accelerator_hours) if found else best


def follow(scenario: Scenario, load: float, window: int) -> Outcome:
    scaler = plan(scenario, load, window)
    fleet = ScalingFleet(scaler.at(0.0), scenario.start_s, scaler, scenario.quota)
    return fleet.run(requests(scenario), scenario.seconds)
