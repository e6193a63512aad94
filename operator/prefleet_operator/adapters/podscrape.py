"""The pods' own /metrics, scraped by the operator itself: a source that needs no installation.

Read are the runtime's exporter, or, of an engine that runs no runtime, the engine's own metrics (`vocabulary`).

Each cycle asks every pod once, at most `concurrency` at a time and within a deadline for all. Of a pod's
answer only the series that tuning reads are kept. Between two scrapes each counter has grown by a step (a
counter that has fallen was reset, and has grown by what it shows); the steps of the window, in a bounded
number of slots, add up to its increases. Nothing is known of the time before the first scrape, so that gives
no increase; gauges it does give. A pod that no fleet names any more is forgotten after a minute: one that is not
ready for a moment, as under saturation, keeps its window.

Left out: pods with several exporter ports.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from prefleet_operator.adapters import fleet_reading as names
from prefleet_operator.adapters import native_reading
from prefleet_operator.adapters.fleet_reading import Key, PodMetrics
from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, PodTarget
from prefleet_operator.adapters.vocabulary import assemble, life_sign, read_pods, to_pod_metrics
from prefleet_operator.core.engine_metrics import EngineMetrics
from prefleet_operator.core.observed import Missing, Reading, Sample, Stale

TIMEOUT_S = 3.0
DEADLINE_S = 10.0
CONCURRENCY = 64
MAX_ANSWER_BYTES = 1024 * 1024
MAX_SERIES = 4000
"""Of one pod and of the names that are kept; the runtime shows some 600. More are not the runtime's doing, and would
take the memory that the operator has for all fleets."""
SLOTS = 60
FORGET_AFTER_S = 60.0

PodKey = tuple[str, str]

_BUCKETS = (*names.LENGTHS.values(), names.LONG_WAITS, names.PROMOTION_WAITS)
_COUNTERS = (*_BUCKETS, names.WAIT_COUNTS, names.PROMOTIONS, names.DEGRADATIONS)
_GAUGES = (names.OLDEST_WAITS, names.GENERATION)
_NAMES = (*_COUNTERS, *_GAUGES)


class ScrapeError(Exception):
    """A pod could not be scraped; the message is a sentence for the user."""


@dataclass(slots=True)
class _Slot:
    """Growth of counters between `start_s` and `end_s`, by their place in the history's index."""

    start_s: float
    end_s: float
    growth: array[float]


class PodHistory:
    """What one pod showed: its last scrape, and the growth of its counters over the window.

    A counter that one scrape leaves out, or shows as no number, is compared with its last number later on.
    """

    def __init__(self) -> None:
        self.at_s: float | None = None
        self._shown: Mapping[Key, float] = {}
        self._index: dict[Key, int] = {}
        self._last: array[float] = array("d")
        self._slots: deque[_Slot] = deque()

    @property
    def full(self) -> bool:
        """Whether too many series have been shown: each has a place for good, and a pod could ever show others."""
        return len(self._index) > MAX_SERIES

    def is_young(self, now: float) -> bool:
        """Whether the last scrape is so recent that the pod may well be asked for again."""
        return self.at_s is not None and now - self.at_s < FORGET_AFTER_S

    def add(self, series: Mapping[Key, float], now: float, window_s: float) -> None:
        """Take in a scrape. A gap longer than the window begins anew, since its growth is of no known time."""
        growth = self._compare(series)
        if self.at_s is None or now - self.at_s > window_s:
            self._slots.clear()
        else:
            self._note(_Slot(self.at_s, now, growth), window_s / SLOTS)
        self.at_s, self._shown = now, series
        while self._slots and self._slots[0].end_s <= now - window_s:
            self._slots.popleft()

    def series(self) -> dict[Key, float]:
        """Gauges as last shown, and the increases of the counters shown, if two scrapes lie in the window."""
        totals = [0.0] * len(self._index)
        for slot in self._slots:
            for place, value in enumerate(slot.growth):
                totals[place] += value
        series = {key: value for key, value in self._shown.items() if not _counts(key) or not math.isfinite(value)}
        if self._slots:
            series |= {key: totals[self._index[key]] for key in self._shown if key not in series}
        return series

    def _compare(self, series: Mapping[Key, float]) -> array[float]:
        """How much each counter has grown since its last number; a new one by all it shows."""
        growth = array("d", bytes(8 * len(self._index)))
        for key, value in series.items():
            if not _counts(key) or not math.isfinite(value):
                continue
            place = self._index.setdefault(key, len(self._index))
            if place == len(growth):
                growth.append(0.0)
                self._last.append(0.0)
            growth[place] = value - self._last[place] if value >= self._last[place] else value
            self._last[place] = value
        return growth

    def _note(self, slot: _Slot, width_s: float) -> None:
        """Append a slot, or add it to the newest while that is narrower than `width_s`."""
        newest = self._slots[-1] if self._slots else None
        if newest is None or slot.end_s - newest.start_s > width_s:
            self._slots.append(slot)
            return
        newest.end_s = slot.end_s
        newest.growth.extend([0.0] * (len(slot.growth) - len(newest.growth)))
        for place, value in enumerate(slot.growth):
            newest.growth[place] += value


class PodScrape:
    """Scrapes the exporter of every pod of every fleet asked for."""

    def __init__(
        self, timeout_s: float = TIMEOUT_S, deadline_s: float = DEADLINE_S, concurrency: int = CONCURRENCY
    ) -> None:
        self._timeout_s = timeout_s
        self._deadline_s = deadline_s
        self._concurrency = concurrency
        self._session: aiohttp.ClientSession | None = None
        self._histories: dict[PodKey, PodHistory] = {}

    async def read(self, fleets: Sequence[FleetQuery], now: float) -> Mapping[str, FleetReading]:
        """See `MetricsSource.read`."""
        targets = {(fleet.namespace, pod.name): (pod, fleet) for fleet in fleets for pod in read_pods(fleet)}
        self._histories = {k: h for k, h in self._histories.items() if k in targets or h.is_young(now)}
        scraped = await self._scrape_all(targets)
        return {fleet.key: assemble(fleet, dict(self._pods(fleet, scraped, now))) for fleet in fleets}

    async def close(self) -> None:
        """Let go of connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _pods(
        self, fleet: FleetQuery, scraped: Mapping[PodKey, dict[Key, float] | str], now: float
    ) -> Iterator[tuple[str, Reading[PodMetrics]]]:
        for pod in read_pods(fleet):
            key = (fleet.namespace, pod.name)
            yield pod.name, self._pod(fleet, key, scraped[key], now)

    def _pod(self, fleet: FleetQuery, key: PodKey, answer: dict[Key, float] | str, now: float) -> Reading[PodMetrics]:
        """A pod that did not answer keeps its last metrics, as stale ones, for one window."""
        history = self._histories.get(key)
        if history is None or history.full:
            history = self._histories[key] = PodHistory()
        if not isinstance(answer, str):
            history.add(answer, now, fleet.window_s)
            return Sample(to_pod_metrics(fleet, history.series()), now)
        if history.at_s is None or now - history.at_s > fleet.window_s:
            return Missing(answer)
        return Stale(to_pod_metrics(fleet, history.series()), history.at_s)

    async def _scrape_all(
        self, targets: Mapping[PodKey, tuple[PodTarget, FleetQuery]]
    ) -> dict[PodKey, dict[Key, float] | str]:
        """The series of each pod, or the sentence why there are none."""
        limit = asyncio.Semaphore(self._concurrency)
        tasks = {key: asyncio.ensure_future(self._scrape(*target, limit)) for key, target in targets.items()}
        if tasks:
            _, late = await asyncio.wait(tasks.values(), timeout=self._deadline_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        return {key: self._outcome(targets[key][0], task) for key, task in tasks.items()}

    def _outcome(self, pod: PodTarget, task: asyncio.Future[dict[Key, float]]) -> dict[Key, float] | str:
        if task.cancelled():
            return f"pod {pod.name} was not scraped within the {self._deadline_s:g} s that all pods have together"
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, ScrapeError):
            return str(error)
        raise error

    async def _scrape(self, pod: PodTarget, fleet: FleetQuery, limit: asyncio.Semaphore) -> dict[Key, float]:
        """One pod's series.

        Raises:
            ScrapeError: it has no address, did not answer, or not with the metrics that are looked for.
        """
        if pod.ip is None:
            raise ScrapeError(f"pod {pod.name} has no address yet")
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        url = f"http://{host}:{pod.exporter_port}/metrics"
        try:
            async with limit:
                body = await self._get(url)
        except TimeoutError:
            raise ScrapeError(f"pod {pod.name} did not answer at {url} within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ScrapeError(f"pod {pod.name} cannot be scraped at {url} ({error or type(error).__name__})") from None
        series = _parse(body, pod.name, url, fleet.engine)
        if fleet.engine is None and (names.GENERATION, "") not in series:
            raise ScrapeError(f"pod {pod.name} shows no {names.GENERATION} at {url}: check that it runs the runtime")
        if fleet.engine is not None and not native_reading.is_alive(series, fleet.engine):
            told = "check that it is the fleet's engine and serves its metrics"
            raise ScrapeError(f"pod {pod.name} shows no {life_sign(fleet)} at {url}: {told}")
        return series

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


def _parse(body: bytes, pod: str, url: str, engine: EngineMetrics | None) -> dict[Key, float]:
    """The series that are wanted; other lines are dropped before the parser, which is slow, sees them."""
    wanted = _NAMES if engine is None else (*native_reading.bucket_names(engine), *native_reading.life_names(engine))
    prefixes = tuple(name.encode() for name in wanted)
    lines = [line for line in body.splitlines() if line.startswith(prefixes)]
    if len(lines) > MAX_SERIES:
        raise ScrapeError(
            f"pod {pod} shows {len(lines):,} series at {url}, of at most {MAX_SERIES:,}: check that it runs "
            + ("the runtime" if engine is None else "the fleet's engine")
        )
    series: dict[Key, float] = {}
    try:
        text = b"\n".join(lines).decode() + "\n"
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name, labels = sample.name, sample.labels
                key = _key(name, labels) if engine is None else native_reading.to_key(name, labels, engine)
                if key is not None:
                    series[key] = series.get(key, 0.0) + sample.value
    except (ValueError, KeyError) as error:
        raise ScrapeError(f"pod {pod} answers at {url} with what is no Prometheus text ({error})") from None
    return series


def _counts(key: Key) -> bool:
    """Whether a series counts upwards: the runtime's counters, and everything with buckets."""
    return key[0] in _COUNTERS or isinstance(key[1], float)


def _key(name: str, labels: Mapping[str, str]) -> Key | None:
    if name == names.LONG_WAITS and labels.get("lane") != names.LONG_LANE:
        return None
    if name in _BUCKETS:
        return name, float(labels["le"])
    if name in (names.WAIT_COUNTS, names.OLDEST_WAITS):
        return name, labels["lane"]
    return (name, "") if name in _COUNTERS or name in _GAUGES else None
