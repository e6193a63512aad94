"""A Prometheus server as a metrics source.

One instant query per metric, for all fleets together, at the cycle's `now`; fleets with different windows
are asked in groups of one window, and those that are sized together once more for their loads (`load_promql`).
Rows come back by namespace and pod and are sorted to fleets by the operator's list of pods. `increase` deals with
counter resets; the age of the generation gauge, which every runtime always shows, tells whether a pod's series are
fresh. Of an engine that runs no runtime its own series are asked for (`promql`); there a gauge of the engine's tells
the age.

One query that fails makes everything of its group Missing in this cycle: a decision on half of the metrics would be
wrong in ways that nobody sees. The server's answers are bounded in time and in size, redirects are not
followed, and the bearer token and the CA file are read anew for each cycle, since they rotate.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from yarl import URL

from prefleet_operator.adapters.fleet_reading import Key, Series, to_bound
from prefleet_operator.adapters.load_promql import SAMPLES, fast_window, load_queries
from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, PodTarget
from prefleet_operator.adapters.pod_load import PodLoad, to_pod_load
from prefleet_operator.adapters.promql import AGE, Query, tuning_queries
from prefleet_operator.adapters.role_load import DEFAULT_WINDOWS, Leavers, Windows, add_loads, long_ago
from prefleet_operator.adapters.vocabulary import assemble, life_sign, missing_fleet, read_pods, to_pod_metrics
from prefleet_operator.api import Role
from prefleet_operator.core.observed import Missing, Reading, Sample, Stale

TIMEOUT_S = 10.0
STALE_AFTER_S = 150.0
"""Two and a half of Prometheus's default scrape intervals."""
MAX_ANSWER_BYTES = 128 * 1024 * 1024
MAX_CONNECTIONS = 8

PodKey = tuple[str, str]
Rows = dict[PodKey, dict[Key, float]]

T = TypeVar("T")


class SourceError(Exception):
    """The server could not be asked; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class _Load:
    """The loads of one fleet's pods, by name, those of pods that have left it, and the windows they are of."""

    pods: Mapping[str, Reading[PodLoad]]
    left: Sequence[tuple[Role, PodLoad]]
    windows: Windows


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
        windows: Windows = DEFAULT_WINDOWS,
    ) -> None:
        self._title = f"Prometheus {name} at {URL(url).with_user(None)}"
        self._url = url.rstrip("/") + "/api/v1/query"
        self._token_file = bearer_token_file
        self._ca_file = ca_file
        self._timeout_s = timeout_s
        self._stale_after_s = stale_after_s
        self._windows = windows
        self._fast_s: float | None = windows.fast_s
        self._leavers = Leavers(windows.slow_s)
        self._session: aiohttp.ClientSession | None = None

    async def read(self, fleets: Sequence[FleetQuery], now: float) -> Mapping[str, FleetReading]:
        """See `MetricsSource.read`."""
        groups: dict[float, list[FleetQuery]] = defaultdict(list)
        for fleet in fleets:
            groups[fleet.window_s].append(fleet)
        # Together, so that what one window costs is not taken from the time that the others have.
        loads, answers = await asyncio.gather(
            self._read_loads([fleet for fleet in fleets if fleet.sized], now),
            asyncio.gather(*(self._read_group(group, window_s, now) for window_s, group in groups.items())),
        )
        readings = {key: reading for answer in answers for key, reading in answer.items()}
        for fleet in fleets:
            load = loads.get(fleet.key)
            if load is not None:
                readings[fleet.key] = add_loads(readings[fleet.key], fleet, load.pods, load.left, load.windows)
        return readings

    async def close(self) -> None:
        """Let go of connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _read_group(self, fleets: list[FleetQuery], window_s: float, now: float) -> dict[str, FleetReading]:
        try:
            rows = await self._ask_all(tuple(tuning_queries(fleets, window_s)), now)
        except SourceError as error:
            return {fleet.key: missing_fleet(fleet, str(error)) for fleet in fleets}
        return {fleet.key: assemble(fleet, self._pods(fleet, rows, now, to_pod_metrics)) for fleet in fleets}

    async def _read_loads(self, fleets: list[FleetQuery], now: float) -> dict[str, _Load]:
        """The loads of sized fleets, and what is still known of the pods that they had."""
        self._leavers.note(fleets, now)
        left = {fleet.key: self._leavers.of(fleet) for fleet in fleets}
        members = [(f, tuple(pod.name for pod in (*read_pods(f), *(pod for pod, _ in left[f.key])))) for f in fleets]
        fast_s = self._fast_s
        windows = replace(self._windows, fast_s=fast_s or self._windows.fast_s)
        try:
            queries = tuple(load_queries(members, windows.slow_s, fast_s, self._windows))
            rows = await self._ask_all(queries, now) if queries else {}
        except SourceError as error:
            why = Missing(str(error))
            return {f.key: _Load({pod.name: why for pod in f.pods}, (), windows) for f in fleets}
        samples = [series[SAMPLES, ""] for series in rows.values() if (SAMPLES, "") in series]
        self._fast_s = fast_window(samples, fast_s, self._windows)
        loads = {}
        for fleet in fleets:
            seen = list(self._left(fleet, rows, now))
            loads[fleet.key] = _Load(self._pods(fleet, rows, now, to_pod_load), seen, windows)
        return loads

    def _left(self, fleet: FleetQuery, rows: Rows, now: float) -> Iterator[tuple[Role, PodLoad]]:
        """What is known of the pods that have left, some of which are scraped until they have ended."""
        for pod, seen_s in self._leavers.of(fleet):
            series = rows.get((fleet.namespace, pod.name))
            if series:
                at_s = max(seen_s, series.get((AGE, ""), seen_s))
                self._leavers.note_shown(fleet, pod, at_s)
                yield pod.role, long_ago(to_pod_load(fleet, series), now - at_s, self._windows)

    def _pods(
        self, fleet: FleetQuery, rows: Rows, now: float, read: Callable[[FleetQuery, Series], T]
    ) -> dict[str, Reading[T]]:
        return {
            pod.name: self._pod(fleet, pod, rows.get((fleet.namespace, pod.name), {}), now, read)
            for pod in read_pods(fleet)
        }

    def _pod(
        self, fleet: FleetQuery, pod: PodTarget, series: Series, now: float, read: Callable[[FleetQuery, Series], T]
    ) -> Reading[T]:
        at_s = series.get((AGE, ""))
        if at_s is None:
            return Missing(
                f"{self._title} has no {life_sign(fleet)} of pod {fleet.namespace}/{pod.name}: check that it scrapes "
                f"port {pod.exporter_port} of the fleet's pods and labels the series with namespace and pod"
            )
        found = read(fleet, series)
        return Sample(found, at_s) if now - at_s <= self._stale_after_s else Stale(found, at_s)

    async def _ask_all(self, queries: tuple[Query, ...], now: float) -> Rows:
        """The rows of all queries, by pod.

        Raises:
            SourceError: any of them failed.
        """
        request = self._request_options()
        rows: Rows = defaultdict(dict)
        tasks = [asyncio.ensure_future(self._ask(query, request, now, rows)) for query in queries]
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.gather(*tasks)
        except TimeoutError:
            raise SourceError(
                f"{self._title} did not answer within {self._timeout_s:g} s: check that it runs, is not overloaded, "
                "and can be reached from the operator"
            ) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return rows

    async def _ask(self, query: Query, request: dict[str, Any], now: float, rows: Rows) -> None:
        """Add the answer to one query to `rows`, and keep nothing else of it: as parsed, all answers for thousands of
        pods together would not fit into the operator's memory."""
        data = {"query": query.expression, "time": f"{now:.3f}", "timeout": f"{self._timeout_s:g}s"}
        try:
            async with self._client().post(self._url, data=data, **request) as response:
                body = bytearray()
                while chunk := await response.content.read(MAX_ANSWER_BYTES + 1 - len(body)):
                    body += chunk
                status = response.status
        except (aiohttp.ClientError, OSError) as error:
            why = str(error) or type(error).__name__
            raise SourceError(
                f"{self._title} cannot be asked ({why}): check its URL, and that it runs and can be reached "
                "from the operator"
            ) from None
        self._add(rows, query, self._vector(query, status, body))

    def _vector(self, query: Query, status: int, body: bytearray) -> list[Any]:
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

    def _add(self, rows: Rows, query: Query, answer: list[Any]) -> None:
        """Put one query's rows into those of their pods; rows of one key (a bound spelt twice) are added."""
        try:
            for row in answer:
                labels, value = row["metric"], float(row["value"][1])
                if "namespace" not in labels or "pod" not in labels:
                    continue
                series = rows[labels["namespace"], labels["pod"]]
                key, counted = _cell(query.name or labels["__name__"], labels, query.label, value)
                series[key] = series.get(key, 0.0) + counted
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


def _cell(name: str, labels: Mapping[str, str], label: str | None, value: float) -> tuple[Key, float]:
    """The key and the value of one row. A bound that is no number, which any pod can show, spoils the histogram of that
    pod and nothing else."""
    if label != "le":
        return (name, labels.get(label, "") if label is not None else ""), value
    try:
        return (name, to_bound(labels["le"])), value
    except (ValueError, KeyError):
        return (name, math.inf), math.nan
