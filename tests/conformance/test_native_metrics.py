"""Both sources read each engine's own metrics alike: a real Prometheus and the pod scrape, on what the stand-ins show.

A stand-in (tests/support/native) takes the arguments that the operator renders and serves real requests, of which both
sources read at the same time.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, MetricsSource, PodTarget
from prefleet_operator.adapters.podscrape import PodScrape
from prefleet_operator.adapters.prometheus import PrometheusSource
from prefleet_operator.adapters.role_load import Windows, mean_length
from prefleet_operator.api import LengthMeasure, Role
from prefleet_operator.core.histogram import quantile_interval
from prefleet_operator.core.observed import FleetMetrics, Missing, Sample
from prefleet_operator.core.sizing.values import RoleLoad
from prefleet_operator.core.wait_bound import bound_wait

from tests.support.binaries import locate
from tests.support.native.cases import CASES, MODEL
from tests.support.native.running import NativeProcess, native_server
from tests.support.plane.processes import free_ports
from tests.support.plane.prometheus import Prometheus
from tests.support.watched_fleet import SCRAPE_S, read_until

WINDOW_S = 60.0
WINDOWS = Windows(slow_s=8.0, fast_s=2.0)
SHORT, LONG = 120, 6000
TURNS = itertools.count()
ADDRESSES = [f"127.8.{turn}.1" for turn in range(3 * len(CASES))]
"""One for each test: an address that was used shows what it showed then."""


@pytest.fixture(scope="module")
def ports() -> tuple[int, int, int]:
    """Of the API, of health and of metrics of every stand-in; each has an address of its own."""
    http, health, metrics = free_ports(3)
    return http, health, metrics


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, ports: tuple[int, int, int]) -> Iterator[str]:
    """A Prometheus that scrapes both ports that metrics may be on, whether or not something answers there yet."""
    interval = f"{round(SCRAPE_S * 1000)}ms"
    targets = [
        {"targets": [f"{ip}:{ports[0]}", f"{ip}:{ports[2]}"], "labels": {"namespace": "ns", "pod": f"pod-{turn}.a"}}
        for turn, ip in enumerate(ADDRESSES)
    ]
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": [{"job_name": "pods", "static_configs": targets}],
    }
    with Prometheus(tmp_path_factory.mktemp("prometheus"), locate("prometheus"), config) as prometheus:
        yield prometheus.url


@dataclass(frozen=True)
class Watched:
    """One pod of one engine, and the sources that read it."""

    kind: str
    server: NativeProcess
    sources: tuple[MetricsSource, ...]
    query: FleetQuery

    async def read_until(self, holds: Callable[[FleetReading], bool]) -> list[FleetReading]:
        """Read on until what was asked for has arrived at every source: what each reads then."""

        async def of(source: MetricsSource) -> FleetReading:
            async def read() -> FleetReading:
                return (await source.read([self.query], time.time()))[self.query.key]

            return await read_until(read, holds)

        return await asyncio.gather(*map(of, self.sources))

    async def serve(self, *lengths: int) -> None:
        """Have it answer prompts of these lengths, all at once."""
        async with aiohttp.ClientSession() as session:

            async def ask(length: int) -> None:
                body = {"model": MODEL, "prompt": [1] * length, "max_tokens": 2}
                async with session.post(f"{self.server.url}/v1/completions", json=body) as answer:
                    assert answer.status == 200, await answer.text()

            await asyncio.gather(*(ask(length) for length in lengths))


@pytest.fixture(params=CASES)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
async def watched(kind: str, url: str, ports: tuple[int, int, int], tmp_path: Path) -> AsyncIterator[Watched]:
    case, turn = CASES[kind], next(TURNS)
    sources = (
        PrometheusSource("main", url, stale_after_s=3.0, windows=WINDOWS),
        PodScrape(timeout_s=1.0, windows=WINDOWS),
    )
    with ExitStack() as stack:
        address = ADDRESSES[turn]
        server = stack.enter_context(native_server(tmp_path, case.spec, case.policy, address, ports))
        target = PodTarget(f"pod-{turn}.a", Role.MIXED, address, server.metrics_port)
        query = FleetQuery("ns", "chat", (target,), WINDOW_S, LengthMeasure.PROMPT, case.metrics, sized=True)
        yield Watched(kind, server, sources, query)
    for source in sources:
        await source.close()


def total(reading: FleetReading) -> float:
    lengths = reading.metrics.lengths
    return lengths.value.total if isinstance(lengths, Sample) else -1.0


async def test_lengths_and_waits_of_an_engine_of_its_own(watched: Watched) -> None:
    # The first request makes the histograms that do not exist before it, as an engine's warm-up does.
    await watched.serve(SHORT)
    await watched.read_until(lambda reading: total(reading) >= 0)
    lengths = [SHORT] * 150 + [LONG] * 80
    await watched.serve(*lengths)
    # `increase` extrapolates by up to a scrape interval at each end of what it saw.
    for reading in await watched.read_until(lambda reading: total(reading) == pytest.approx(230, rel=0.15)):
        check_lengths_and_waits(reading.metrics, watched.kind)
        assert reading.generations == {}


def check_lengths_and_waits(metrics: FleetMetrics, kind: str) -> None:
    assert isinstance(metrics.lengths, Sample)
    p70 = quantile_interval(metrics.lengths.value, 0.7)
    assert p70.low < LONG <= p70.high
    for unshown in (metrics.long_waits, metrics.oldest_long_wait_s, metrics.promotions, metrics.degradations):
        assert isinstance(unshown, Missing)
        assert unshown.reason.startswith("the engine ")
    if not CASES[kind].measures_waits:
        assert metrics.waits == Missing("the engine does not measure how long requests wait in its queue")
        return
    assert isinstance(metrics.waits, Sample)
    assert metrics.waits.value.total == pytest.approx(230, rel=0.15)
    bound = bound_wait(metrics.waits.value, metrics.lengths.value, threshold=900, q=0.9)
    assert bound is not None or kind == "LightLLM"  # whose first bucket of lengths ends beyond 900
    # 80 longs of 60 ms one after the other, when all have come: most waited, and nobody for half a minute.
    assert bound is None or 0.3 <= bound.wait_s <= 30


def load(reading: FleetReading) -> RoleLoad:
    return reading.loads[Role.MIXED]


async def test_the_load_of_an_engine_of_its_own(watched: Watched) -> None:
    await watched.serve(SHORT)
    await watched.read_until(lambda reading: isinstance(load(reading).arrivals, Sample))
    await watched.serve(*[LONG] * 5)
    answered = asyncio.ensure_future(watched.serve(*[LONG] * 400))

    def waits(reading: FleetReading) -> bool:
        tokens = load(reading).waiting_tokens
        return isinstance(tokens, Sample) and tokens.value > 0

    for reading in await watched.read_until(waits):
        check_waiting(load(reading))
    for reading in await watched.read_until(
        lambda reading: any(pod.busy * pod.waiting > 0 for pod in load(reading).served)
    ):
        check_served(reading, watched.kind)
    answered.cancel()


def check_waiting(seen: RoleLoad) -> None:
    assert isinstance(seen.arrivals, Sample)
    assert isinstance(seen.waiting, Sample)
    assert isinstance(seen.waiting_tokens, Sample)
    assert seen.waiting.value >= 1
    # An engine shows how many wait, and of what length those were that it has answered.
    assert seen.waiting_tokens.value == pytest.approx(seen.waiting.value * mean_length(seen.arrivals.value))
    for unshown in (seen.step_cost, seen.step_tokens, seen.generated, seen.kv_tokens, seen.gap_s):
        assert isinstance(unshown, Missing)
        assert unshown.reason.startswith("the engine")


def check_served(reading: FleetReading, kind: str) -> None:
    (pod,) = load(reading).served
    assert pod.prefill_tokens > 0
    assert pod.busy <= 1
    if kind == "LightLLM":
        assert load(reading).running == Missing("the engine does not show requests that run")
        assert load(reading).kv_usage == Missing("the engine does not show how full its KV cache is")
    else:
        assert isinstance(load(reading).running, Sample)
        assert isinstance(load(reading).kv_usage, Sample)
        assert isinstance(reading.pod_loads[pod.name], Sample)


async def test_an_engine_that_is_gone_is_no_fresh_sample(watched: Watched) -> None:
    await watched.serve(SHORT)
    await watched.read_until(lambda reading: total(reading) >= 0)
    watched.server.process.kill()
    for reading in await watched.read_until(lambda reading: total(reading) < 0):
        assert not isinstance(reading.metrics.lengths, Sample)
        assert not isinstance(reading.metrics.waits, Sample)
        assert not isinstance(load(reading).waiting, Sample)
