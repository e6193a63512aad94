"""A Prometheus server as a metrics source.

One instant query per metric, for all fleets together, at the cycle's `now`; fleets with different windows
are asked in groups of one window. Rows come back by namespace and pod and are sorted to fleets by the
operator's list of pods. `increase` deals with counter resets; the age of the generation gauge, which every
runtime always shows, tells whether a pod's series are fresh. Of an engine that runs no runtime its own series are
asked for, in all spellings at once, and of the fleets' pods alone, since some names are nobody's in particular
(`native_reading`); there a gauge of the engine's tells the age.

One query that fails makes everything of this cycle Missing: a decision on half of the metrics would be
wrong in ways that nobody sees. The server's answers are bounded in time and in size, redirects are not
followed, and the bearer token and the CA file are read anew for each cycle, since they rotate.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from prefleet_operator.adapters import fleet_reading as names
from prefleet_operator.adapters import native_reading
from prefleet_operator.adapters.fleet_reading import Key, PodMetrics
from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, PodTarget
from prefleet_operator.adapters.vocabulary import assemble, life_sign, missing_fleet, read_pods, to_pod_metrics
from prefleet_operator.api import LengthMeasure
from prefleet_operator.core.engine_metrics import EngineMetrics
from prefleet_operator.core.observed import Missing, Reading, Sample, Stale

TIMEOUT_S = 10.0
STALE_AFTER_S = 150.0
"""Two and a half of Prometheus's default scrape intervals."""
MAX_ANSWER_BYTES = 128 * 1024 * 1024
MAX_CONNECTIONS = 8
_AGE = "age"

PodKey = tuple[str, str]
Rows = dict[PodKey, dict[Key, float]]


class SourceError(Exception):
    """The server could not be asked; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class _Query:
    """One PromQL expression by namespace, pod and perhaps one more label; `name` is the key of its rows."""

    name: str
    expression: str
    label: str | None = None


class PrometheusSource:
    """Asks one server. `name`: what the installation calls it; `url`: its root, with any path prefix."""

    def __init__(
        self,
        name: str,
        url: str,
        bearer_token_file: str | None = None,
        ca_file: str | None = None,
        timeout_s: float = TIMEOUT_S,
        stale_after_s: float = STALE_AFTER_S,
    ) -> None:
        self._title = f"Prometheus {name} at {URL(url).with_user(None)}"
        self._url = url.rstrip("/") + "/api/v1/query"
        self._token_file = bearer_token_file
        self._ca_file = ca_file
        self._timeout_s = timeout_s
        self._stale_after_s = stale_after_s
        self._session: aiohttp.ClientSession | None = None

    async def read(self, fleets: Sequence[FleetQuery], now: float) -> Mapping[str, FleetReading]:
        """See `MetricsSource.read`."""
        groups: dict[float, list[FleetQuery]] = defaultdict(list)
        for fleet in fleets:
            groups[fleet.window_s].append(fleet)
        # Together, so that what one window costs is not taken from the time that the others have.
        answers = await asyncio.gather(*(self._read_group(group, window_s, now) for window_s, group in groups.items()))
        return {key: reading for answer in answers for key, reading in answer.items()}

    async def close(self) -> None:
        """Let go of connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _read_group(self, fleets: list[FleetQuery], window_s: float, now: float) -> dict[str, FleetReading]:
        queries = tuple(_all_queries(fleets, window_s))
        try:
            rows = await self._ask_all(queries, now)
        except SourceError as error:
            return {fleet.key: missing_fleet(fleet, str(error)) for fleet in fleets}
        return {fleet.key: self._sort(fleet, rows, now) for fleet in fleets}

    def _sort(self, fleet: FleetQuery, rows: Rows, now: float) -> FleetReading:
        pods = {
            pod.name: self._pod(fleet, pod, rows.get((fleet.namespace, pod.name), {}), now) for pod in read_pods(fleet)
        }
        return assemble(fleet, pods)

    def _pod(self, fleet: FleetQuery, pod: PodTarget, series: dict[Key, float], now: float) -> Reading[PodMetrics]:
        at_s = series.get((_AGE, ""))
        if at_s is None:
            return Missing(
                f"{self._title} has no {life_sign(fleet)} of pod {fleet.namespace}/{pod.name}: check that it scrapes "
                f"port {pod.exporter_port} of the fleet's pods and labels the series with namespace and pod"
            )
        metrics = to_pod_metrics(fleet, series)
        return Sample(metrics, at_s) if now - at_s <= self._stale_after_s else Stale(metrics, at_s)

    async def _ask_all(self, queries: tuple[_Query, ...], now: float) -> Rows:
        """The rows of all queries, by pod.

        Raises:
            SourceError: any of them failed.
        """
        request = self._request_options()
        tasks = [asyncio.ensure_future(self._ask(query, request, now)) for query in queries]
        try:
            async with asyncio.timeout(self._timeout_s):
                answers = await asyncio.gather(*tasks)
        except TimeoutError:
            raise SourceError(
                f"{self._title} did not answer within {self._timeout_s:g} s: check that it runs, is not overloaded, "
                "and can be reached from the operator"
            ) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        rows: Rows = defaultdict(dict)
        for query, answer in zip(queries, answers, strict=True):
            self._add(rows, query, answer)
        return rows

    async def _ask(self, query: _Query, request: dict[str, Any], now: float) -> list[Any]:
        data = {"query": query.expression, "time": f"{now:.3f}", "timeout": f"{self._timeout_s:g}s"}
        try:
            async with self._client().post(self._url, data=data, **request) as response:
                body = await response.content.read(MAX_ANSWER_BYTES + 1)
                while chunk := await response.content.read(MAX_ANSWER_BYTES + 1 - len(body)):
                    body += chunk
                status = response.status
        except (aiohttp.ClientError, OSError) as error:
            why = str(error) or type(error).__name__
            raise SourceError(
                f"{self._title} cannot be asked ({why}): check its URL, and that it runs and can be reached "
                "from the operator"
            ) from None
        return self._vector(query, status, body)

    def _vector(self, query: _Query, status: int, body: bytes) -> list[Any]:
        if len(body) > MAX_ANSWER_BYTES:
            raise SourceError(f"{self._title} answered more than {MAX_ANSWER_BYTES:,} bytes for {query.name}")
        try:
            answer = json.loads(body)
            if status == 200 and answer["status"] == "success" and answer["data"]["resultType"] == "vector":
                return list(answer["data"]["result"])
            why = str(answer.get("error", ""))[:200]
        except (ValueError, KeyError, TypeError, AttributeError):
            why = "no Prometheus answer"
        raise SourceError(
            f"{self._title} answered {status} for {query.name} ({why or 'no reason given'}): "
            "check its URL and its credentials"
        )

    def _add(self, rows: Rows, query: _Query, answer: list[Any]) -> None:
        """Put one query's rows into those of their pods; rows of one key (a bound spelt twice) are added."""
        try:
            for row in answer:
                labels, value = row["metric"], float(row["value"][1])
                if "namespace" not in labels or "pod" not in labels:
                    continue
                series = rows[labels["namespace"], labels["pod"]]
                key = (query.name, _label(labels, query.label))
                series[key] = series.get(key, 0.0) + value
        except (ValueError, KeyError, TypeError, IndexError):
            raise SourceError(f"{self._title} answered rows for {query.name} that are no Prometheus vector") from None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS))
        return self._session

    def _request_options(self) -> dict[str, Any]:
        """Credentials, read now."""
        options: dict[str, Any] = {"allow_redirects": False}
        try:
            if self._token_file is not None:
                token = Path(self._token_file).read_text(encoding="utf-8").strip()
                options["headers"] = {"Authorization": f"Bearer {token}"}
            if self._ca_file is not None:
                options["ssl"] = ssl.create_default_context(cafile=self._ca_file)
        except (OSError, ValueError) as error:
            raise SourceError(
                f"{self._title} cannot be asked, since its token or CA file cannot be read ({error}): "
                "check the mounted Secret"
            ) from None
        return options


def _all_queries(fleets: Sequence[FleetQuery], window_s: float) -> Iterator[_Query]:
    """What is asked for fleets of one window: the runtime's series, and those of each engine."""
    runtimes = {names.LENGTHS[fleet.length] for fleet in fleets if fleet.engine is None}
    if runtimes:
        yield from _queries(window_s, runtimes)
    natives: dict[tuple[EngineMetrics, LengthMeasure], list[FleetQuery]] = defaultdict(list)
    for fleet in fleets:
        if fleet.engine is not None and read_pods(fleet):
            natives[fleet.engine, fleet.length].append(fleet)
    for (engine, length), group in natives.items():
        yield from _native_queries(engine, length, _matchers(group), window_s)


def _native_queries(engine: EngineMetrics, length: LengthMeasure, matchers: str, window_s: float) -> Iterator[_Query]:
    window = f"[{round(window_s * 1000)}ms]"
    for spellings in (native_reading.length_names(engine, length), native_reading.wait_names(engine)):
        if spellings:
            sums = [f"sum by (namespace, pod, le) (increase({name}{matchers}{window}))" for name in spellings]
            yield _Query(spellings[0], _first_shown(sums), "le")
    ages = [f"min by (namespace, pod) (timestamp({name}{matchers}))" for name in native_reading.life_names(engine)]
    yield _Query(_AGE, _first_shown(ages))


def _first_shown(expressions: Sequence[str]) -> str:
    """Of each pod what the first expression gives that gives anything of it."""
    return " or on (namespace, pod) ".join(expressions)


def _matchers(fleets: Sequence[FleetQuery]) -> str:
    """The label matchers of the fleets' pods. A name holds nothing but letters, digits, dashes and dots."""
    namespaces = sorted({fleet.namespace for fleet in fleets})
    pods = sorted({pod.name for fleet in fleets for pod in read_pods(fleet)})
    either = ["|".join(found).replace(".", "[.]") for found in (namespaces, pods)]
    return f'{{namespace=~"{either[0]}",pod=~"{either[1]}"}}'


def _queries(window_s: float, lengths: set[str]) -> Iterator[_Query]:
    window = f"[{round(window_s * 1000)}ms]"
    for name in sorted(lengths):
        yield _Query(name, f"sum by (namespace, pod, le) (increase({name}{window}))", "le")
    long_waits = f'{names.LONG_WAITS}{{lane="{names.LONG_LANE}"}}'
    yield _Query(names.LONG_WAITS, f"sum by (namespace, pod, le) (increase({long_waits}{window}))", "le")
    yield _Query(names.WAIT_COUNTS, f"sum by (namespace, pod, lane) (increase({names.WAIT_COUNTS}{window}))", "lane")
    yield _Query(
        names.PROMOTION_WAITS, f"sum by (namespace, pod, le) (increase({names.PROMOTION_WAITS}{window}))", "le"
    )
    for name in (names.PROMOTIONS, names.DEGRADATIONS):
        yield _Query(name, f"sum by (namespace, pod) (increase({name}{window}))")
    yield _Query(names.OLDEST_WAITS, f"max by (namespace, pod, lane) ({names.OLDEST_WAITS})", "lane")
    yield _Query(names.GENERATION, f"min by (namespace, pod) ({names.GENERATION})")
    yield _Query(_AGE, f"min by (namespace, pod) (timestamp({names.GENERATION}))")


def _label(labels: Mapping[str, str], name: str | None) -> str | float:
    if name is None:
        return ""
    return float(labels[name]) if name == "le" else labels.get(name, "")
