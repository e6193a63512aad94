"""Every metrics source gives the same answers: a real Prometheus and the pod scrape, on the runtime's telemetry."""

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, MetricsSource, PodTarget
from prefleet_operator.adapters.podscrape import PodScrape
from prefleet_operator.adapters.prometheus import PrometheusSource
from prefleet_operator.api import LengthMeasure, Role
from prefleet_operator.core.histogram import quantile_interval
from prefleet_operator.core.observed import Missing, Reading, Sample
from prefleet_runtime.queueing import Lane

from tests.support.binaries import locate
from tests.support.exporter import Exporter
from tests.support.lengths import demo_mix
from tests.support.plane.processes import free_ports
from tests.support.plane.prometheus import Prometheus

SCRAPE_S = 0.25
WINDOW_S = 30.0
NAMESPACES = itertools.count()
TIMEOUT_S = 20.0
FLEETS = 48


@dataclass(frozen=True)
class Address:
    """Where one pod of one fleet is, as in a cluster: every pod has its own address and the same port."""

    namespace: str
    pod: str
    ip: str


ADDRESSES = [
    Address(f"ns-{fleet}", f"pod-{pod}", f"127.9.{fleet}.{pod + 1}") for fleet in range(FLEETS) for pod in range(2)
]


@pytest.fixture(scope="module")
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[str]:
    """A Prometheus that scrapes every address, whether or not something answers there yet."""
    interval = f"{round(SCRAPE_S * 1000)}ms"
    targets = [
        {"targets": [f"{address.ip}:{port}"], "labels": {"namespace": address.namespace, "pod": address.pod}}
        for address in ADDRESSES
    ]
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": [{"job_name": "pods", "static_configs": targets}],
    }
    with Prometheus(tmp_path_factory.mktemp("prometheus"), locate("prometheus"), config) as prometheus:
        yield prometheus.url


class Fleet:
    """A fleet of two prefill pods as one source sees it. A pod answers once it is started."""

    def __init__(self, source: MetricsSource, port: int, stack: ExitStack) -> None:
        self._source = source
        self._port = port
        self._stack = stack
        namespace = f"ns-{next(NAMESPACES)}"
        pods = [address for address in ADDRESSES if address.namespace == namespace]
        targets = tuple(PodTarget(address.pod, Role.PREFILL, address.ip, port) for address in pods)
        self.query = FleetQuery(namespace, "chat", targets, WINDOW_S, LengthMeasure.UNCACHED)

    def shrink(self, pods: int) -> None:
        self.query = replace(self.query, pods=self.query.pods[:pods])

    def start(self, generation: int = 1) -> list[Exporter]:
        """Start every pod."""
        exporters = [Exporter(pod.ip, self._port, generation) for pod in self.query.pods if pod.ip]
        return [self._stack.enter_context(exporter) for exporter in exporters]

    async def start_idle(self) -> list[Exporter]:
        """Start every pod, and wait until the source has seen it twice."""
        exporters = self.start()
        await self.read_until(lambda reading: total(reading) == 0 and len(generations(reading)) == len(exporters))
        return exporters

    async def read(self) -> FleetReading:
        return (await self._source.read([self.query], time.time()))[self.query.key]

    async def read_until(self, holds: Callable[[FleetReading], bool]) -> FleetReading:
        """Read on, as the fleet loop does, until what was done to the exporters has arrived."""
        deadline = time.monotonic() + TIMEOUT_S
        while not holds(reading := await self.read()):
            assert time.monotonic() < deadline, f"not in {TIMEOUT_S:.0f} s; the last reading was {reading}"
            await asyncio.sleep(SCRAPE_S)
        return reading


@pytest.fixture(params=["prometheus", "podscrape"])
async def fleet(request: pytest.FixtureRequest, port: int) -> AsyncIterator[Fleet]:
    source: MetricsSource = PodScrape(timeout_s=1.0)
    if request.param == "prometheus":
        source = PrometheusSource("main", request.getfixturevalue("url"))
    with ExitStack() as stack:
        yield Fleet(source, port, stack)
    await source.close()


def total(reading: FleetReading) -> float:
    return value(reading.metrics.lengths, lambda lengths: lengths.total)


def value(reading: Reading[Any], of: Callable[[Any], float] = float) -> float:
    """What a fresh sample holds; NaN, which equals nothing, otherwise."""
    return of(reading.value) if isinstance(reading, Sample) else math.nan


def generations(reading: FleetReading) -> dict[str, int]:
    return {pod: found.value for pod, found in reading.generations.items() if isinstance(found, Sample)}


def about(expected: float) -> object:
    """`increase` extrapolates by up to a scrape interval at each end of what it saw: less, the longer it looks."""
    return pytest.approx(expected, rel=0.15)


async def test_lengths_waits_and_counts_of_all_pods_are_added(fleet):
    lengths = demo_mix(400, seed=1)
    for exporter in await fleet.start_idle():
        exporter.serve(lengths, waits_s=[0.5] * 30 + [3.0] * 10)
        exporter.publish(promotions=40, degradations=8, oldest_wait_s=2.5)
    reading = await fleet.read_until(lambda reading: total(reading) == about(800))
    reading = await fleet.read_until(lambda reading: value(reading.metrics.promotions) == about(80))
    metrics = reading.metrics
    assert metrics.long_waits.value.total == about(80)
    assert metrics.promotion_waits.value.total == about(80)
    assert metrics.degradations.value == about(16)
    assert metrics.oldest_long_wait_s.value == 2.5
    # The shape does not suffer from extrapolation: P70 of the uncached lengths, and the median wait.
    uncached = sorted(length - length // 4 for length in lengths)
    p70 = quantile_interval(metrics.lengths.value, 0.7)
    assert p70.low <= uncached[279] <= p70.high
    assert quantile_interval(metrics.long_waits.value, 0.5).high == 0.5


async def test_the_length_asked_for_is_the_one_given(fleet):
    fleet.query = replace(fleet.query, length=LengthMeasure.PROMPT)
    first, _ = await fleet.start_idle()
    first.serve([1000] * 100)
    reading = await fleet.read_until(lambda reading: total(reading) == about(100))
    interval = quantile_interval(reading.metrics.lengths.value, 0.5)
    assert interval.low <= 1000 <= interval.high


async def test_decode_pods_report_their_generation_and_nothing_else_of_them_counts(fleet):
    prefill, decode = fleet.query.pods
    fleet.query = replace(fleet.query, pods=(prefill, replace(decode, role=Role.DECODE)))
    prefill_exporter, decode_exporter = await fleet.start_idle()
    decode_exporter.serve([9000] * 500)
    prefill_exporter.serve([100] * 50)
    reading = await fleet.read_until(lambda reading: total(reading) == about(50))
    assert generations(reading) == {"pod-0": 1, "pod-1": 1}


async def test_a_new_generation_is_seen(fleet):
    _, second = await fleet.start_idle()
    second.restart(generation=2)
    await fleet.read_until(lambda reading: generations(reading) == {"pod-0": 1, "pod-1": 2})


async def test_an_idle_fleet_has_waited_for_nothing(fleet):
    await fleet.start_idle()
    metrics = (await fleet.read_until(lambda reading: total(reading) == 0)).metrics
    assert metrics.long_waits.value.total == 0
    assert (metrics.promotions.value, metrics.oldest_long_wait_s.value) == (0, 0)


async def test_under_fcfs_no_request_has_waited_as_a_long_one(fleet):
    first, _ = await fleet.start_idle()
    first.serve([100] * 50, waits_s=[1.0] * 50, lane=Lane.ALL)
    first.publish(oldest_wait_s=3.0, lane=Lane.ALL)
    reading = await fleet.read_until(lambda reading: total(reading) == about(50))
    assert value(reading.metrics.long_waits, lambda waits: waits.total) == 0
    assert value(reading.metrics.oldest_long_wait_s) == 0


async def test_a_counter_that_was_reset_goes_on_counting(fleet):
    first, _ = await fleet.start_idle()
    first.serve([100] * 200)
    await fleet.read_until(lambda reading: total(reading) == about(200))
    first.restart()
    first.serve([100] * 100)
    await fleet.read_until(lambda reading: total(reading) == about(300))


async def test_a_pod_that_fails_leaves_the_others_readings(fleet):
    first, second = await fleet.start_idle()
    second.close()
    first.serve([100] * 50)
    reading = await fleet.read_until(lambda reading: list(generations(reading)) == ["pod-0"])
    await fleet.read_until(lambda reading: total(reading) == about(50))
    assert not isinstance(reading.generations["pod-1"], Sample)


FAULTS: dict[str, Callable[[Exporter], None]] = {
    "it stops listening": Exporter.close,
    "it answers 500": lambda exporter: exporter.answer_with(500, b"engine core died"),
    "it answers a web page": lambda exporter: exporter.answer_with(200, b"<html>hello</html>"),
    "it answers half a line": lambda exporter: exporter.answer_with(200, b'prefleet_policy_generation{a="'),
    "it answers nothing": lambda exporter: exporter.answer_with(200, b""),
    "it answers another program's metrics": lambda exporter: exporter.answer_with(200, b"up 1\n"),
    "it hangs": lambda exporter: exporter.delay(5.0),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_pod_is_no_fresh_sample_when(fleet, fault):
    fleet.shrink(1)
    (exporter,) = await fleet.start_idle()
    FAULTS[fault](exporter)
    reading = await fleet.read_until(lambda reading: not generations(reading))
    metrics = reading.metrics
    for found in (metrics.lengths, metrics.long_waits, metrics.promotions, metrics.oldest_long_wait_s):
        assert not isinstance(found, Sample)


async def test_what_is_no_number_is_missing_and_the_rest_is_not(fleet):
    fleet.shrink(1)
    (exporter,) = await fleet.start_idle()
    exporter.publish(promotions=math.nan, oldest_wait_s=math.inf)
    told = Missing("pod pod-0 shows no finite value of prefleet_promotions_total over the window yet")
    reading = await fleet.read_until(lambda reading: reading.metrics.promotions == told)
    assert isinstance(reading.metrics.oldest_long_wait_s, Missing)
    assert isinstance(reading.metrics.lengths, Sample)


async def test_a_pod_that_never_answered_is_missing_with_a_sentence(fleet):
    reading = await fleet.read()
    assert isinstance(reading.metrics.lengths, Missing)
    assert "pod-0" in reading.metrics.lengths.reason
    assert isinstance(reading.generations["pod-0"], Missing)


async def test_a_fleet_without_pods_is_missing(fleet):
    fleet.shrink(0)
    reading = await fleet.read()
    assert reading.metrics.lengths == Missing("the fleet has no pod whose queue could be measured")
