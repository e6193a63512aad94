"""What Prometheus knows of the fleet: samples each 15 s, never what the simulator holds between or beside them.

Counters are of the whole fleet, gauges of pods that serve. A rate is that of the oldest and the newest sample within
its window; it needs two, and a newest sample that is not older than `FRESH_S`, as a query would. While Prometheus is
gone nothing is sampled, and every question is answered by nothing. The fitted step cost is one for all pods, which are
alike; it is fitted from a part of their steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from prefleet_operator.core.observed import HistogramSnapshot, Missing, Reading, Sample
from prefleet_operator.core.sizing import RoleSignals
from prefleet_operator.core.sizing.values import PodServed, StepCost
from prefleet_runtime.telemetry import TOKEN_BOUNDS

from tests.benchmarks.sizing.fleet import LIMITS, ScalingFleet, ServingPod

KEPT = 64
FRESH_S = 60.0
SLOW_S, FAST_S = 600.0, 60.0
BOUNDS = tuple(TOKEN_BOUNDS)


@dataclass(frozen=True, slots=True)
class PodScrape:
    """One pod at one scrape: counters since it began, and gauges."""

    busy_s: float
    prefill_tokens: int
    decode_tokens: int
    waiting: int
    waiting_tokens: int
    running: int
    kv_usage: float


@dataclass(frozen=True, slots=True)
class Scrape:
    at_s: float
    lengths: tuple[int, ...]
    pods: dict[str, PodScrape]


class Prometheus:
    """Samples the fleet when told to, and answers from its samples alone."""

    def __init__(self, outage: tuple[float, float] | None) -> None:
        self._outage = outage
        self._scrapes: deque[Scrape] = deque(maxlen=KEPT)

    def is_gone(self, now: float) -> bool:
        return self._outage is not None and self._outage[0] <= now < self._outage[1]

    def scrape(self, fleet: ScalingFleet, now: float) -> None:
        if not self.is_gone(now):
            pods = {pod.name: _scrape(pod) for pod in fleet.pods if pod.serves(now)}
            self._scrapes.append(Scrape(now, tuple(fleet.lengths), pods))

    def pods(self, now: float) -> dict[str, PodScrape] | None:
        """Gauges of the serving pods, or None where there is no answer."""
        if self.is_gone(now) or not self._scrapes or now - self._scrapes[-1].at_s > FRESH_S:
            return None
        return self._scrapes[-1].pods

    def window(self, seconds: float, now: float) -> tuple[Scrape, Scrape] | None:
        """The oldest and the newest sample of a window, if there are two and the newest is fresh."""
        if self.pods(now) is None:
            return None
        inside = [scrape for scrape in self._scrapes if scrape.at_s >= now - seconds]
        return (inside[0], inside[-1]) if len(inside) >= 2 else None


def _scrape(pod: ServingPod) -> PodScrape:
    queue = pod.engine.waiting.queue
    return PodScrape(
        busy_s=pod.busy_s,
        prefill_tokens=pod.prefill_tokens,
        decode_tokens=pod.decode_tokens,
        waiting=len(queue),
        waiting_tokens=sum(request.prompt_tokens for request in queue),
        running=len(pod.engine.running),
        kv_usage=pod.engine.used_fraction,
    )


def read_signals(fleet: ScalingFleet, prometheus: Prometheus, now: float) -> RoleSignals:
    """What the operator would know: replicas and readiness from the API server, all else from Prometheus."""
    ready = sum(pod.serves(now) for pod in fleet.pods)
    present = RoleSignals(
        replicas=fleet.replicas,
        ready=ready,
        starting=sum(not pod.draining and pod.ready_s > now for pod in fleet.pods),
        start_s=Sample(fleet.start_s, now),
        slow_s=SLOW_S,
        fast_s=FAST_S,
        step_tokens=LIMITS.max_num_batched_tokens,
    )
    pods, slow, fast = prometheus.pods(now), prometheus.window(SLOW_S, now), prometheus.window(FAST_S, now)
    if pods is None or slow is None:
        gone = Missing("Prometheus did not answer.")
        return replace(present, arrivals=gone, waiting_tokens=gone, running=gone, kv_usage=gone)
    fit = fleet.cost.fit()
    fixed, prefill, decode, pair, context = fit.coefficients
    return replace(
        present,
        arrivals=_lengths(slow, SLOW_S),
        recent=_lengths(fast, FAST_S) if fast is not None else Missing("too few samples"),
        waiting_tokens=Sample(float(sum(pod.waiting_tokens for pod in pods.values())), now),
        waiting=Sample(float(sum(pod.waiting for pod in pods.values())), now),
        step_cost=Sample(StepCost(fixed, prefill, decode, pair, context), now),
        generated=Sample(sum(pod.decode_tokens for pod in _served(slow)), now),
        running=Sample(float(sum(pod.running for pod in pods.values())), now),
        kv_usage=Sample(sum(pod.kv_usage for pod in pods.values()) / max(1, len(pods)), now),
        kv_tokens=Sample(float(LIMITS.kv_cache_tokens), now),
        served=tuple(_served(slow)),
    )


def _lengths(window: tuple[Scrape, Scrape], seconds: float) -> Reading[HistogramSnapshot]:
    """Counts of the window, stretched to its length as `increase` does."""
    first, last = window
    part = seconds / (last.at_s - first.at_s)
    counts = tuple(part * (new - old) for old, new in zip(first.lengths, last.lengths, strict=True))
    return Sample(HistogramSnapshot(BOUNDS, counts), last.at_s)


def _served(window: tuple[Scrape, Scrape]) -> list[PodServed]:
    first, last = window
    seconds = last.at_s - first.at_s
    served = []
    for name, pod in last.pods.items():
        before = first.pods.get(name)
        if before is None:
            continue
        served.append(
            PodServed(
                name,
                (pod.prefill_tokens - before.prefill_tokens) / seconds,
                (pod.decode_tokens - before.decode_tokens) / seconds,
                (pod.busy_s - before.busy_s) / seconds,
                min(pod.waiting, before.waiting),
            )
        )
    return served
