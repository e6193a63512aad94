"""The runtime's own metrics, as they are made at a scrape inside the engine's process (`exporter` serves them).

Histograms are observed by the engine's thread. Everything that the queue itself counts is published by that
thread as one immutable `QueueSnapshot` and turned into counters and gauges when somebody scrapes, so the
scraping thread never touches the queue. A snapshot holds arrival times, not waits: what waits behind a long
step, or in an engine that stands still, grows older from scrape to scrape. What the engine itself holds
(`EngineLoad`) is read at the scrape by a function of the adapter's: a handful of lengths and numbers, which cost the
step nothing and are right also after requests that ended while no step ran.

`uptime_seconds` counts up with the other counters, so its increase over a window is the time in which they were watched
there: what an increase has to be divided by where a pod, or whoever scrapes it, has not been there all the time.

All series have fixed names, and their labels come from enums (but for the generation that `policy_info`
carries and the device's name in `device_info`). Histogram bounds are 2^(k/4), four to the octave, so a quantile
read from them is off by less than a fifth of its value.

Left out: the process's own figures (the engine exports those) and anything that names a request.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from .contract import RuntimePolicy
from .device import UNKNOWN, Device
from .queueing import Counters, Dispatch, Lane, LaneGauge, PolicyQueue, RequestFacts
from .stage import TERMS, Arbiter, Fit, StageCounters, StepWork

BOUNDS_PER_OCTAVE = 4


def _bounds(low_octave: int, high_octave: int) -> list[float]:
    steps = range(low_octave * BOUNDS_PER_OCTAVE, high_octave * BOUNDS_PER_OCTAVE + 1)
    return [2.0 ** (step / BOUNDS_PER_OCTAVE) for step in steps]


TOKEN_BOUNDS = sorted({float(round(bound)) for bound in _bounds(0, 20)})
"""1 to 2^20 tokens, in distinct whole numbers."""

SECOND_BOUNDS = _bounds(-10, 11)
"""About a millisecond to 2,048 seconds."""


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """What a queue has counted and holds at one moment; never changed, so any thread may read it."""

    counters: Counters
    lanes: Mapping[Lane, LaneGauge]

    @classmethod
    def of(cls, queue: PolicyQueue[Any]) -> QueueSnapshot:
        """To be called by the thread that owns the queue."""
        return cls(replace(queue.counters, dispatches=dict(queue.counters.dispatches)), queue.gauges())


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """What the step budget has counted, and the step cost as learnt so far; never changed, like `QueueSnapshot`."""

    counters: StageCounters
    fit: Fit

    @classmethod
    def of(cls, arbiter: Arbiter) -> StageSnapshot:
        """To be called by the thread that owns the arbiter."""
        return cls(replace(arbiter.counters), arbiter.cost.fit())


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine holds at one moment: sequences that run, and the share of its KV cache in use (0 to 1).

    `unfinished`: all requests in it: those that wait or run, and those whose KV is held for a decode pod.
    And what it could: tokens that its KV cache holds, and tokens that a full step computes.
    """

    running: int
    unfinished: int
    kv_usage: float
    kv_tokens: int
    step_tokens: int


class Histogram:
    """Observations counted by bucket; one thread observes, any thread may read.

    Not prometheus_client's own: where PROMETHEUS_MULTIPROC_DIR is set, as `vllm serve` does for several API servers,
    that one keeps its counts in files there, and the engine's own /metrics would show the same series once more.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._labels = [_label(bound) for bound in (*bounds, float("inf"))]
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper bound, and the sum."""
        return list(zip(self._labels, accumulate(self._counts.copy()), strict=True)), self._sum


def _label(bound: float) -> str:
    label: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
    return label


class RuntimeMetrics(Collector):
    """All series of one engine process, registered with `registry` and made at the scrape.

    `clock` reads the axis of `facts.arrival_s`. `policy` and `refused` answer the published policy and the
    number of refused policy files; they are called at each scrape and must be safe from any thread. `device` is what
    the step cost is fitted on.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float],
        policy: Callable[[], RuntimePolicy],
        refused: Callable[[], int],
        device: Device = UNKNOWN,
    ) -> None:
        self._device = device
        self._clock = clock
        self._policy = policy
        self._refused = refused
        self._snapshot = QueueSnapshot(Counters(), {})
        self._stage = StageSnapshot(StageCounters(), Fit())
        self._prompt, self._uncached, self._step_tokens = (Histogram(TOKEN_BOUNDS) for _ in range(3))
        self._promotion_wait, self._step_seconds = (Histogram(SECOND_BOUNDS) for _ in range(2))
        self._wait = {lane: Histogram(SECOND_BOUNDS) for lane in Lane}
        self._prefill_tokens = self._decode_tokens = 0
        self._gap_s = 0.0
        self._faults = 0
        self._load: Callable[[], EngineLoad] | None = None
        self._began_s = time.monotonic()
        registry.register(self)

    def observe_request(self, facts: RequestFacts) -> None:
        """A new request arrived."""
        self._prompt.observe(facts.prompt_tokens)
        self._uncached.observe(facts.uncached_tokens)

    def observe_dispatch(self, dispatch: Dispatch) -> None:
        """A waiting request was scheduled."""
        self._wait[dispatch.lane].observe(dispatch.wait_s)
        if dispatch.promoted:
            self._promotion_wait.observe(dispatch.wait_s)

    def observe_step(self, seconds: float, tokens: int) -> None:
        """An engine step ended."""
        self._step_seconds.observe(seconds)
        self._step_tokens.observe(tokens)

    def observe_work(self, work: StepWork, seconds: float) -> None:
        """The step that ended computed this; each of its decode tokens came so long after the one before it."""
        self._prefill_tokens += work.prefill_tokens
        self._decode_tokens += work.decode_tokens
        self._gap_s += seconds * work.decode_tokens

    def count_fault(self) -> None:
        """The engine went on without something of ours that failed."""
        self._faults += 1

    def show_load(self, read: Callable[[], EngineLoad]) -> None:
        """Show from now on what the engine holds; `read` is called at each scrape and must be safe from any thread."""
        self._load = read

    def publish(self, snapshot: QueueSnapshot) -> None:
        """Replace what the next scrape tells of the queue."""
        self._snapshot = snapshot

    def publish_stage(self, snapshot: StageSnapshot) -> None:
        """Replace what the next scrape tells of the step budget."""
        self._stage = snapshot

    def collect(self) -> Iterator[Metric]:
        """To be called by the scraping thread."""
        yield from self._histograms()
        snapshot = self._snapshot
        yield from _counters(snapshot.counters)
        yield from _gauges(snapshot.lanes, self._clock())
        stage = self._stage
        yield from _stage_counters(stage.counters)
        yield from _step_cost(stage.fit)
        yield from self._work()
        if self._load is not None:
            yield from _load(self._load())
        yield _device(self._device)
        yield from _policy(self._policy())
        yield _counter("faults", "Failures of the runtime that the engine went on without.", self._faults)
        yield _counter("policy_refused", "Policy files refused; the policy that ran before stays.", self._refused())

    def _histograms(self) -> Iterator[Metric]:
        for name, about, histogram in (
            ("request_prompt_tokens", "Prompt tokens of each new request.", self._prompt),
            (
                "request_uncached_tokens",
                "Prompt tokens not in the prefix cache on arrival, at least 1.",
                self._uncached,
            ),
            ("promotion_wait_seconds", "Waits of long requests that were promoted.", self._promotion_wait),
            ("step_seconds", "Duration of each engine step.", self._step_seconds),
            ("step_tokens", "Tokens scheduled in each engine step.", self._step_tokens),
        ):
            buckets, total = histogram.read()
            yield HistogramMetricFamily(f"prefleet_{name}", about, buckets, total)
        waits = HistogramMetricFamily(
            "prefleet_queue_wait_seconds", "From a request's arrival to its dispatch.", labels=["lane"]
        )
        for lane, histogram in self._wait.items():
            waits.add_metric([lane.value], *histogram.read())
        yield waits

    def _work(self) -> Iterator[Metric]:
        up_s = time.monotonic() - self._began_s
        yield _counter("uptime_seconds", "Seconds since these counters began.", up_s)
        yield _counter("prefill_tokens", "Prefill tokens computed.", self._prefill_tokens)
        yield _counter("decode_tokens", "Decode tokens computed, speculative ones included.", self._decode_tokens)
        yield _counter("decode_gap_seconds", "Seconds of each step, once for each of its decode tokens.", self._gap_s)


def _load(load: EngineLoad) -> Iterator[Metric]:
    yield _gauge("running_requests", "Requests whose prefill or decode runs.", load.running)
    about = "Requests in the engine, with those finished whose KV is held for a decode pod."
    yield _gauge("unfinished_requests", about, load.unfinished)
    yield _gauge("kv_usage_ratio", "Share of the KV cache in use, 0 to 1.", load.kv_usage)
    yield _gauge("kv_capacity_tokens", "Tokens that the KV cache holds.", load.kv_tokens)
    yield _gauge("step_token_budget", "Most tokens that one step computes.", load.step_tokens)


def _counters(counters: Counters) -> Iterator[Metric]:
    dispatches = CounterMetricFamily(
        "prefleet_dispatches", "Waiting requests that were scheduled, by the lane they left.", labels=["lane"]
    )
    for lane, count in counters.dispatches.items():
        dispatches.add_metric([lane.value], count)
    yield dispatches
    yield _counter("promotions", "Aged long requests dispatched while short ones waited.", counters.promotions)
    yield _counter(
        "degradations", "Times that promotions or held-back long requests came three in a row.", counters.degradations
    )
    yield _counter("requeues", "Requests put back into the queue.", counters.requeues)
    yield _counter("bypasses", "Times that a request stepped aside for lack of room.", counters.bypasses)


def _gauges(lanes: Mapping[Lane, LaneGauge], now: float) -> Iterator[Metric]:
    families: tuple[tuple[str, str, Callable[[LaneGauge], float]], ...] = (
        ("waiting_requests", "Requests waiting.", lambda gauge: gauge.requests),
        ("waiting_tokens", "Length of what waits, as the policy measures it.", lambda gauge: gauge.tokens),
        ("oldest_wait_seconds", "Wait of the first in the lane.", lambda gauge: gauge.oldest_wait_s(now)),
    )
    for name, about, value in families:
        family = GaugeMetricFamily(f"prefleet_{name}", about, labels=["lane"])
        for lane, gauge in lanes.items():
            family.add_metric([lane.value], value(gauge))
        yield family


def _stage_counters(counters: StageCounters) -> Iterator[Metric]:
    for name, about, value in (
        ("held_longs", "Started long prefills held back, once for each step.", counters.held),
        ("decode_only_steps", "Steps of decode alone while prefill was pending.", counters.decode_only),
        ("starvation_bounds", "Runs of decode-only steps ended by their bound, not their formula.", counters.starved),
        ("stall_limited_steps", "Steps whose prefill was cut to keep a stall short.", counters.stall_limited),
        ("stall_unsure_steps", "Those of them decided without a trusted step cost.", counters.stall_unsure),
    ):
        yield _counter(name, about, value)


def _step_cost(fit: Fit) -> Iterator[Metric]:
    cost = GaugeMetricFamily(
        "prefleet_step_cost_seconds", "Fitted cost of a step by term: fixed, per token, per pair.", labels=["term"]
    )
    error = GaugeMetricFamily(
        "prefleet_step_cost_error_seconds", "Standard error of the fitted cost by term.", labels=["term"]
    )
    for term, coefficient, deviation in zip(TERMS, fit.coefficients, fit.errors, strict=True):
        cost.add_metric([term], coefficient)
        error.add_metric([term], deviation)
    yield cost
    yield error
    yield _gauge("step_cost_noise_seconds", "Standard deviation of steps around the fitted cost.", fit.noise_s)
    yield _gauge("step_cost_samples", "Steps from which the cost was fitted.", fit.samples)


def _device(device: Device) -> Metric:
    about = "What the engine computes on, and so what the step cost was fitted on."
    info = GaugeMetricFamily("prefleet_device_info", about, labels=["kind", "name"])
    info.add_metric([device.kind.value, device.name or ""], 1)
    return info


def _policy(policy: RuntimePolicy) -> Iterator[Metric]:
    yield _gauge("policy_generation", "Generation of the policy that the next request meets.", policy.generation)
    split = policy.policy.has_threshold
    threshold, wait_s = ((policy.threshold or 0), policy.long_max_wait_ms / 1000) if split else (0, 0.0)
    yield _gauge("policy_threshold_tokens", "Longest short request; 0 without a threshold.", threshold)
    yield _gauge("policy_long_max_wait_seconds", "Wait after which a long request is aged; 0 if it never is.", wait_s)
    about = "The policy that the next request meets; one series at a time."
    info = GaugeMetricFamily("prefleet_policy_info", about, labels=["policy", "generation"])
    info.add_metric([policy.policy.value, str(policy.generation)], 1)
    yield info


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(f"prefleet_{name}", about, value=value)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"prefleet_{name}", about, value=value)
