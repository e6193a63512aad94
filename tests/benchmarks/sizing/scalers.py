"""Who decides how many pods there are: ours, the HorizontalPodAutoscaler on waiting requests, KEDA on KV use.

The two others are Kubernetes' own algorithm with its defaults (pkg/controller/podautoscaler, 1.36): a sync each 15 s,
tolerance 0.1, up at once by at most 100% or 4 pods in 15 s, down to the highest recommendation of the last 300 s; pods
without metrics count as 0 on the way up and as at their target on the way down. Where the metric has no answer nothing
is scaled. KEDA hands a sum to the same algorithm (`AverageValue` of an external metric).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

from prefleet_operator.api import Role
from prefleet_operator.core.sizing import RoleRules, SizingInputs, SizingMemory, SizingRules, decide_size

from tests.benchmarks.sizing.fleet import ACCELERATORS, LIMIT, ScalingFleet
from tests.benchmarks.sizing.prometheus import PodScrape, Prometheus, read_signals

MIN_REPLICAS, MAX_REPLICAS = 1, 16
TOLERANCE = 0.1
DOWN_WINDOW_S = 300.0
UP_PERCENT, UP_PODS = 2.0, 4


class Scaler(Protocol):
    """Asked each 15 s, after the scrape of that moment."""

    def __call__(self, fleet: ScalingFleet, now: float) -> int: ...


class Ours:
    """The pipeline of `prefleet_operator.core.sizing` over what Prometheus answers."""

    def __init__(self, prometheus: Prometheus, quota: int | None) -> None:
        self._prometheus = prometheus
        self._memory = SizingMemory()
        rules = {Role.MIXED: RoleRules(MIN_REPLICAS, MAX_REPLICAS, ACCELERATORS)}
        self._rules = SizingRules(
            rules,
            wait_s=LIMIT.wait_s,
            gap_s=LIMIT.gap_s,
            quota=None if quota is None else quota * ACCELERATORS,
        )
        self.said: list[tuple[float, str, str]] = []

    def __call__(self, fleet: ScalingFleet, now: float) -> int:
        self._prometheus.scrape(fleet, now)
        signals = read_signals(fleet, self._prometheus, now)
        decision, self._memory = decide_size(SizingInputs({Role.MIXED: signals}, self._rules), self._memory, now)
        size = decision.roles[Role.MIXED]
        if size.desired != fleet.replicas:
            self.said.append((now, size.reason.value, size.message))
        return size.desired


class KubernetesScaler:
    """The HorizontalPodAutoscaler; `recommend` says what the metric asks for."""

    def __init__(self, prometheus: Prometheus, recommend: Callable[[dict[str, PodScrape], int], int]) -> None:
        self._prometheus = prometheus
        self._recommend = recommend
        self._recent: deque[tuple[float, int]] = deque()

    def __call__(self, fleet: ScalingFleet, now: float) -> int:
        self._prometheus.scrape(fleet, now)
        pods = self._prometheus.pods(now)
        if not pods:
            return fleet.replicas
        replicas = fleet.replicas
        wanted = max(MIN_REPLICAS, min(MAX_REPLICAS, self._recommend(pods, replicas)))
        self._recent.append((now, wanted))
        while self._recent[0][0] <= now - DOWN_WINDOW_S:
            self._recent.popleft()
        if wanted > replicas:
            return min(wanted, max(math.ceil(replicas * UP_PERCENT), replicas + UP_PODS))
        return min(replicas, max(one for _, one in self._recent))


def on_waiting(target: float) -> Callable[[dict[str, PodScrape], int], int]:
    """Waiting requests per pod, a metric of pods."""

    def recommend(pods: dict[str, PodScrape], replicas: int) -> int:
        total = sum(pod.waiting for pod in pods.values())
        ratio = total / len(pods) / target
        if abs(ratio - 1) <= TOLERANCE:
            return replicas
        without = max(0, replicas - len(pods))
        if without == 0:
            return math.ceil(ratio * len(pods))
        # Pods without metrics: as idle on the way up, as at their target on the way down.
        again = (total if ratio > 1 else total + without * target) / (len(pods) + without) / target
        if abs(again - 1) <= TOLERANCE or (ratio < 1) != (again < 1):
            return replicas
        return math.ceil(again * (len(pods) + without))

    return recommend


def on_kv_use(target: float) -> Callable[[dict[str, PodScrape], int], int]:
    """The sum of KV use, an external metric by average value."""

    def recommend(pods: dict[str, PodScrape], replicas: int) -> int:
        total = sum(pod.kv_usage for pod in pods.values())
        if abs(total / (target * replicas) - 1) <= TOLERANCE:
            return replicas
        return math.ceil(total / target)

    return recommend
