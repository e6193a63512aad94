"""The runtime's own metrics, served from inside the engine's process.

Histograms are observed by the engine's thread. Everything that the queue itself counts is published by that
thread as one immutable `QueueSnapshot` and turned into counters and gauges when somebody scrapes, so the
scraping thread never touches the queue. A snapshot holds arrival times, not waits: what waits behind a long
step, or in an engine that stands still, grows older from scrape to scrape.

All series have fixed names, and their labels come from enums. Histogram bounds are 2^(k/4), four to the
octave, so a quantile read from them is off by less than a fifth of its value.

Left out: the process's own figures (the engine exports those) and anything that names a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .contract import RuntimePolicy
from .queueing import Counters, Dispatch, Lane, LaneGauge, PolicyQueue, RequestFacts

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


class RuntimeMetrics:
    """All series of one engine process, registered with `registry`.

    `clock` reads the axis of `facts.arrival_s`. `policy` and `refused` answer the published policy and the
    number of refused policy files; they are called at each scrape and must be safe from any thread.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float],
        policy: Callable[[], RuntimePolicy],
        refused: Callable[[], int],
    ) -> None:
        def histogram(name: str, about: str, bounds: list[float], *labels: str) -> Histogram:
            return Histogram(f"prefleet_{name}", about, labels, registry=registry, buckets=bounds)

        self._prompt = histogram("request_prompt_tokens", "Prompt tokens of each new request.", TOKEN_BOUNDS)
        self._uncached = histogram(
            "request_uncached_tokens", "Prompt tokens not in the prefix cache on arrival, at least 1.", TOKEN_BOUNDS
        )
        wait = histogram("queue_wait_seconds", "From a request's arrival to its dispatch.", SECOND_BOUNDS, "lane")
        self._wait = {lane: wait.labels(lane.value) for lane in Lane}
        self._promotion_wait = histogram(
            "promotion_wait_seconds", "Waits of long requests that were promoted.", SECOND_BOUNDS
        )
        self._step_seconds = histogram("step_seconds", "Duration of each engine step.", SECOND_BOUNDS)
        self._step_tokens = histogram("step_tokens", "Tokens scheduled in each engine step.", TOKEN_BOUNDS)
        self._collector = _QueueCollector(clock, policy, refused)
        registry.register(self._collector)

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

    def publish(self, snapshot: QueueSnapshot) -> None:
        """Replace what the next scrape tells of the queue."""
        self._collector.snapshot = snapshot


class _QueueCollector(Collector):
    """Counters and gauges made at the scrape from the last snapshot and the published policy."""

    def __init__(
        self, clock: Callable[[], float], policy: Callable[[], RuntimePolicy], refused: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._policy = policy
        self._refused = refused
        self.snapshot = QueueSnapshot(Counters(), {})

    def collect(self) -> Iterator[Metric]:
        yield from _counters(self.snapshot.counters)
        yield from _gauges(self.snapshot.lanes, self._clock())
        yield from _policy(self._policy())
        yield _counter("policy_refused", "Policy files refused; the policy that ran before stays.", self._refused())


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


def _policy(policy: RuntimePolicy) -> Iterator[Metric]:
    yield _gauge("policy_generation", "Generation of the policy that the next request meets.", policy.generation)
    split = policy.policy.has_threshold
    threshold, wait_s = ((policy.threshold or 0), policy.long_max_wait_ms / 1000) if split else (0, 0.0)
    yield _gauge("policy_threshold_tokens", "Longest short request; 0 without a threshold.", threshold)
    yield _gauge("policy_long_max_wait_seconds", "Wait after which a long request is aged; 0 if it never is.", wait_s)
    info = GaugeMetricFamily("prefleet_policy_info", "The policy that the next request meets.", labels=["policy"])
    info.add_metric([policy.policy.value], 1)
    yield info


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(f"prefleet_{name}", about, value=value)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"prefleet_{name}", about, value=value)


class Exporter:
    """A running metrics server; `port` is the one it listens on."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        self._server, self._thread = start_http_server(port, host, registry)
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """Stop serving and free the port. May be repeated."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(registry: CollectorRegistry, host: str, port: int) -> Exporter:
    """Serve `registry` under /metrics from a daemon thread; port 0 picks a free one.

    Raises:
        OSError: the port cannot be had; the message names it and what to change.
    """
    try:
        return Exporter(registry, host, port)
    except OSError as error:
        raise OSError(
            error.errno, f"metrics cannot be served on {host}:{port} ({error.strerror}): set another exporter_port"
        ) from error
