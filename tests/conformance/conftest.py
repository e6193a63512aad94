"""One real Prometheus for each module, and the sources that are held alike."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest
from prefleet_operator.adapters.metrics_source import MetricsSource
from prefleet_operator.adapters.podscrape import PodScrape
from prefleet_operator.adapters.prometheus import PrometheusSource

from tests.support.binaries import locate
from tests.support.plane.processes import free_ports
from tests.support.plane.prometheus import Prometheus
from tests.support.watched_fleet import ADDRESSES, FLEETS, SCRAPE_S, WINDOWS, WatchedFleet


@pytest.fixture(scope="module")
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def numbers() -> dict[str, Iterator[int]]:
    """Of the fleets of a module, by source; each is used once."""
    return {source: iter(fleets) for source, fleets in FLEETS.items()}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[str]:
    """A Prometheus that scrapes every address, whether or not something answers there yet, and by two jobs: what pods
    did counts once all the same."""
    interval = f"{round(SCRAPE_S * 1000)}ms"
    targets = [
        {"targets": [f"{address.ip}:{port}"], "labels": {"namespace": address.namespace, "pod": address.pod}}
        for address in ADDRESSES["prometheus"]
    ]
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": [{"job_name": job, "static_configs": targets} for job in ("pods", "pods-again")],
    }
    with Prometheus(tmp_path_factory.mktemp("prometheus"), locate("prometheus"), config) as prometheus:
        yield prometheus.url


@pytest.fixture(params=["prometheus", "podscrape"])
async def fleet(
    request: pytest.FixtureRequest, port: int, numbers: dict[str, Iterator[int]]
) -> AsyncIterator[WatchedFleet]:
    source: MetricsSource = PodScrape(timeout_s=1.0, windows=WINDOWS)
    if request.param == "prometheus":
        source = PrometheusSource("main", request.getfixturevalue("url"), windows=WINDOWS)
    with ExitStack() as stack:
        yield WatchedFleet(source, port, stack, next(numbers[request.param]))
    await source.close()
