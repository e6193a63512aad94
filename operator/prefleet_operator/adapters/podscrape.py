"""The pods' own /metrics, scraped by the operator itself: a source that needs no installation.

Read are the runtime's exporter, or, of an engine that runs no runtime, the engine's own metrics (`vocabulary`).

Each cycle asks every pod once, at most `concurrency` at a time and within a deadline for all. Pods that did not answer
when they were last asked come last, those that wait longest for another try before the others: however many hang, the
pods that answer are asked in every cycle.

Of a pod's answer only the series that tuning reads are kept, over the fleet's window (`pod_history`), and of a fleet
that is sized those that sizing reads, over windows of its own (`scraped_load`). A pod that no fleet names any more is
forgotten after a minute: one that is not ready for a moment, as under saturation, keeps its window.

Left out: pods with several exporter ports.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as Line

from prefleet_operator.adapters import fleet_reading as names
from prefleet_operator.adapters import native_reading, pod_load
from prefleet_operator.adapters.fleet_reading import Key, PodMetrics
from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, PodTarget
from prefleet_operator.adapters.pod_history import MAX_SERIES, PodHistory
from prefleet_operator.adapters.pod_load import PodLoad, to_pod_load
from prefleet_operator.adapters.role_load import DEFAULT_WINDOWS, Leavers, Windows, add_loads, long_ago
from prefleet_operator.adapters.scraped_load import LoadHistory
from prefleet_operator.adapters.vocabulary import assemble, life_sign, read_pods, to_pod_metrics
from prefleet_operator.core.observed import Missing, Reading, Sample, Stale

TIMEOUT_S = 3.0
DEADLINE_S = 10.0
CONCURRENCY = 64
MAX_ANSWER_BYTES = 1024 * 1024
PodKey = tuple[str, str]

_LOOK_AT = "look at its log, and for a NetworkPolicy that keeps the operator out"

T = TypeVar("T")

_BUCKETS = (*names.LENGTHS.values(), names.LONG_WAITS, names.PROMOTION_WAITS)
_COUNTERS = (*_BUCKETS, names.WAIT_COUNTS, names.PROMOTIONS, names.DEGRADATIONS)
_GAUGES = (names.OLDEST_WAITS, names.GENERATION, names.UNFINISHED)
_NAMES = (*_COUNTERS, *_GAUGES)


@dataclass(frozen=True, slots=True)
class _Page:
    """The series of one answer that tuning reads, and those that sizing reads if the fleet is sized."""

    tuning: Mapping[Key, float]
    sizing: Mapping[Key, float]


class ScrapeError(Exception):
    """A pod could not be scraped; the message is a sentence for the user."""


class PodScrape:
    """Scrapes the exporter of every pod of every fleet asked for."""

    def __init__(
        self,
        timeout_s: float = TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        concurrency: int = CONCURRENCY,
        windows: Windows = DEFAULT_WINDOWS,
    ) -> None:
        self._timeout_s = timeout_s
        self._deadline_s = deadline_s
        self._concurrency = concurrency
        self._session: aiohttp.ClientSession | None = None
        self._windows = windows
        self._histories: dict[PodKey, PodHistory] = {}
        self._loads: dict[PodKey, LoadHistory] = {}
        self._leavers = Leavers(windows.slow_s)
        self._hung_at: dict[PodKey, float] = {}

    async def read(self, fleets: Sequence[FleetQuery], now: float) -> Mapping[str, FleetReading]:
        """See `MetricsSource.read`."""
        targets = {(fleet.namespace, pod.name): (pod, fleet) for fleet in fleets for pod in read_pods(fleet)}
        self._histories = {k: h for k, h in self._histories.items() if k in targets or h.is_young(now)}
        sized = [fleet for fleet in fleets if fleet.sized]
        self._leavers.note(sized, now)
        kept = {(f.namespace, pod.name) for f in sized for pod in (*f.pods, *(pod for pod, _ in self._leavers.of(f)))}
        self._loads = {key: history for key, history in self._loads.items() if key in kept}
        pages = await self._scrape_all(targets, now)
        return {fleet.key: self._assemble(fleet, pages, now) for fleet in fleets}

    async def close(self) -> None:
        """Let go of connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _assemble(self, fleet: FleetQuery, pages: Mapping[PodKey, _Page | str], now: float) -> FleetReading:
        reading = assemble(fleet, dict(self._pods(fleet, pages, now)))
        if not fleet.sized:
            return reading
        loads = {
            pod.name: self._load(fleet, (fleet.namespace, pod.name), pages[fleet.namespace, pod.name], now)
            for pod in read_pods(fleet)
        }
        gone = []
        for pod, seen_s in self._leavers.of(fleet):
            history = self._loads.get((fleet.namespace, pod.name))
            if history is not None:
                load = to_pod_load(fleet, history.series(now))
                gone.append((pod.role, long_ago(load, now - seen_s, self._windows)))
        return add_loads(reading, fleet, loads, gone, self._windows)

    def _load(self, fleet: FleetQuery, key: PodKey, page: _Page | str, now: float) -> Reading[PodLoad]:
        history = self._loads.get(key)
        if history is None or history.full:
            history = self._loads[key] = LoadHistory(fleet.engine, self._windows)
        if not isinstance(page, str):
            history.add(page.sizing, now)
        load = to_pod_load(fleet, history.series(now))
        return _reading(page, load, history.at_s, self._windows.slow_s, now)

    def _pods(
        self, fleet: FleetQuery, pages: Mapping[PodKey, _Page | str], now: float
    ) -> Iterator[tuple[str, Reading[PodMetrics]]]:
        for pod in read_pods(fleet):
            key = (fleet.namespace, pod.name)
            yield pod.name, self._pod(fleet, key, pages[key], now)

    def _pod(self, fleet: FleetQuery, key: PodKey, page: _Page | str, now: float) -> Reading[PodMetrics]:
        history = self._histories.get(key)
        if history is None or history.full:
            history = self._histories[key] = PodHistory(counts_up)
        if not isinstance(page, str):
            history.add(page.tuning, now, fleet.window_s)
        metrics = to_pod_metrics(fleet, history.series())
        return _reading(page, metrics, history.at_s, fleet.window_s, now)

    async def _scrape_all(
        self, targets: Mapping[PodKey, tuple[PodTarget, FleetQuery]], now: float
    ) -> dict[PodKey, _Page | str]:
        """The page of each pod, or the sentence why there are none."""
        limit = asyncio.Semaphore(self._concurrency)
        self._hung_at = {key: at_s for key, at_s in self._hung_at.items() if key in targets}
        order = sorted(targets, key=lambda key: self._hung_at.get(key, -math.inf))
        tasks = {key: asyncio.ensure_future(self._scrape_in_turn(key, *targets[key], limit, now)) for key in order}
        if tasks:
            _, late = await asyncio.wait(tasks.values(), timeout=self._deadline_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        return {key: self._outcome(targets[key][0], task) for key, task in tasks.items()}

    async def _scrape_in_turn(
        self, key: PodKey, pod: PodTarget, fleet: FleetQuery, limit: asyncio.Semaphore, now: float
    ) -> _Page:
        """One pod's page, once there is room; a pod is taken to hang from here until it has answered."""
        async with limit:
            self._hung_at[key] = now
            page = await self._scrape(pod, fleet)
            del self._hung_at[key]
            return page

    def _outcome(self, pod: PodTarget, task: asyncio.Future[_Page]) -> _Page | str:
        if task.cancelled():
            return f"pod {pod.name} was not scraped within the {self._deadline_s:g} s that all pods have together"
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, ScrapeError):
            return str(error)
        raise error

    async def _scrape(self, pod: PodTarget, fleet: FleetQuery) -> _Page:
        """One pod's series.

        Raises:
            ScrapeError: it has no address, did not answer, or not with the metrics that are looked for.
        """
        if pod.ip is None:
            raise ScrapeError(f"pod {pod.name} has no address yet")
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        url = f"http://{host}:{pod.exporter_port}/metrics"
        try:
            body = await self._get(url)
        except TimeoutError:
            raise ScrapeError(
                f"pod {pod.name} did not answer at {url} within {self._timeout_s:g} s: {_LOOK_AT}"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            why = str(error) or type(error).__name__
            raise ScrapeError(f"pod {pod.name} cannot be scraped at {url} ({why}): {_LOOK_AT}") from None
        page = _parse(body, pod.name, url, fleet)
        if fleet.engine is None and (names.GENERATION, "") not in page.tuning:
            raise ScrapeError(f"pod {pod.name} shows no {names.GENERATION} at {url}: check that it runs the runtime")
        if fleet.engine is not None and not native_reading.is_alive(page.tuning, fleet.engine):
            told = "check that it is the fleet's engine and serves its metrics"
            raise ScrapeError(f"pod {pod.name} shows no {life_sign(fleet)} at {url}: {told}")
        return page

    async def _get(self, url: str) -> bytes:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        async with self._client().get(url, timeout=timeout, allow_redirects=False) as response:
            response.raise_for_status()
            body = bytearray()
            while chunk := await response.content.read(MAX_ANSWER_BYTES + 1 - len(body)):
                body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise aiohttp.ClientPayloadError(f"more than {MAX_ANSWER_BYTES:,} bytes")
            return bytes(body)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._concurrency)
            # Nothing is unpacked: a small answer could unpack to any size.
            headers = {"Accept-Encoding": "identity"}
            self._session = aiohttp.ClientSession(connector=connector, headers=headers, auto_decompress=False)
        return self._session


def _reading(page: _Page | str, found: T, at_s: float | None, window_s: float, now: float) -> Reading[T]:
    """A pod that did not answer keeps what was last `found` of it, as stale, for one window."""
    if not isinstance(page, str):
        return Sample(found, now)
    return Missing(page) if at_s is None or now - at_s > window_s else Stale(found, at_s, page)


def _parse(body: bytes, pod: str, url: str, fleet: FleetQuery) -> _Page:
    """The series that are wanted; other lines are dropped before the parser, which is slow, sees them."""
    engine = fleet.engine
    wanted = _NAMES if engine is None else (*native_reading.bucket_names(engine), *native_reading.life_names(engine))
    if fleet.sized:
        wanted = (*wanted, *pod_load.names_of(engine))
    prefixes = tuple(name.encode() for name in wanted)
    lines = [line for line in body.splitlines() if line.startswith(prefixes)]
    if len(lines) > MAX_SERIES:
        raise ScrapeError(
            f"pod {pod} shows {len(lines):,} series at {url}, of at most {MAX_SERIES:,}: check that it runs "
            + ("the runtime" if engine is None else "the fleet's engine")
        )
    try:
        text = b"\n".join(lines).decode() + "\n"
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        if engine is not None:
            series = native_reading.to_series(((line.name, line.labels, line.value) for line in samples), engine)
            return _Page(series, series if fleet.sized else {})
        return _Page(_keyed(samples, _key), _keyed(samples, pod_load.to_key) if fleet.sized else {})
    except (ValueError, KeyError) as error:
        raise ScrapeError(f"pod {pod} answers at {url} with what is no Prometheus text ({error})") from None


def _keyed(samples: Sequence[Line], to_key: Callable[[str, Mapping[str, str]], Key | None]) -> dict[Key, float]:
    """By key; samples of one key are added up."""
    series: dict[Key, float] = {}
    for sample in samples:
        key = to_key(sample.name, sample.labels)
        if key is not None:
            series[key] = series.get(key, 0.0) + sample.value
    return series


def counts_up(key: Key) -> bool:
    """Whether a series counts upwards: the runtime's counters, and everything with buckets."""
    return key[0] in _COUNTERS or isinstance(key[1], float)


def _key(name: str, labels: Mapping[str, str]) -> Key | None:
    if name == names.LONG_WAITS and labels.get("lane") != names.LONG_LANE:
        return None
    if name in _BUCKETS:
        return name, names.to_bound(labels["le"])
    if name in (names.WAIT_COUNTS, names.OLDEST_WAITS):
        return name, labels["lane"]
    return (name, "") if name in _COUNTERS or name in _GAUGES else None
