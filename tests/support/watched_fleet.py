"""Fleets of pods at addresses of their own, watched through a metrics source: for tests that hold all sources alike."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, MetricsSource, PodTarget
from prefleet_operator.adapters.role_load import Windows
from prefleet_operator.api import LengthMeasure, Role
from prefleet_operator.core.observed import Reading, Sample

from tests.support.exporter import Exporter

SCRAPE_S = 0.25
WINDOW_S = 30.0
WINDOWS = Windows(slow_s=20.0, fast_s=3.0)
TIMEOUT_S = 60.0
"""On a machine that is busy with other tests as well, where one query may take ten seconds."""
FLEETS = {"prometheus": range(32), "podscrape": range(32, 64)}
"""By source, one for each test of a module: an address that was used shows what it showed then. Prometheus scrapes its
own alone."""


@dataclass(frozen=True)
class Address:
    """Where one pod of one fleet is, as in a cluster: every pod has its own address and the same port."""

    namespace: str
    pod: str
    ip: str


ADDRESSES = {
    source: [Address(f"ns-{fleet}", f"pod-{pod}", f"127.9.{fleet}.{pod + 1}") for fleet in fleets for pod in range(2)]
    for source, fleets in FLEETS.items()
}


class WatchedFleet:
    """A fleet of two prefill pods as one source sees it. A pod answers once it is started."""

    def __init__(self, source: MetricsSource, port: int, stack: ExitStack, number: int) -> None:
        self._source = source
        self._port = port
        self._stack = stack
        namespace = f"ns-{number}"
        pods = [address for found in ADDRESSES.values() for address in found if address.namespace == namespace]
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
        """Read on until what was done to the exporters has arrived."""
        return await read_until(self.read, holds)


async def read_until(
    read: Callable[[], Awaitable[FleetReading]], holds: Callable[[FleetReading], bool]
) -> FleetReading:
    """Read on, as the fleet loop does."""
    deadline = time.monotonic() + TIMEOUT_S
    while not holds(reading := await read()):
        assert time.monotonic() < deadline, f"not in {TIMEOUT_S:.0f} s; the last reading was {reading}"
        await asyncio.sleep(SCRAPE_S)
    return reading


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
