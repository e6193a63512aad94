"""ClusterIPs: a small TCP proxy for every port of every Service that has a ready pod behind it.

Pods are found by the Service's selector, not through EndpointSlices, since the API refuses loopback addresses there.
A port without ready pods is not listened on, so that a client is refused as kube-proxy would refuse it. Each new
connection goes to the next pod; connections that are open stay where they are. With a `lag_s` what is known of pods
counts so much later (up to twice that while it changes), as in a cluster where EndpointSlices have a way to go.
Headless Services, those without a selector, and UDP are left out. One agent of a cluster may do this, since a ClusterIP
can be bound only once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping

from tests.support.node_agent.actions import port_number
from tests.support.node_agent.api import Api, Json

Address = tuple[str, int]

_CONNECT_S = 2.0
_CHUNK = 64 * 1024
_BACKLOG = 1024

_log = logging.getLogger(__name__)


def wanted_ports(services: Iterable[Json], pods: Iterable[Json]) -> dict[Address, list[Address]]:
    """What to listen on, and the pods behind it in a fixed order. Pure."""
    candidates = sorted(pods, key=lambda pod: (pod["metadata"]["namespace"], pod["metadata"]["name"]))
    wanted: dict[Address, list[Address]] = {}
    for service in services:
        spec = service["spec"]
        if spec.get("clusterIP", "None") in ("None", "") or not spec.get("selector"):
            continue
        chosen = [pod for pod in candidates if _serves(service, pod)]
        for port in spec.get("ports", []):
            backends = [backend for pod in chosen if (backend := _backend(port, pod))]
            if backends and port.get("protocol", "TCP") == "TCP":
                wanted[spec["clusterIP"], port["port"]] = backends
    return wanted


def _serves(service: Json, pod: Json) -> bool:
    metadata, spec = pod["metadata"], service["spec"]
    labels = metadata.get("labels", {})
    return (
        metadata["namespace"] == service["metadata"]["namespace"]
        and all(labels.get(key) == value for key, value in spec["selector"].items())
        and (bool(spec.get("publishNotReadyAddresses")) or _is_ready(pod))
    )


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", [])
    return "deletionTimestamp" not in pod["metadata"] and any(
        item["type"] == "Ready" and item["status"] == "True" for item in conditions
    )


def _backend(port: Json, pod: Json) -> Address | None:
    target = port.get("targetPort") or port["port"]
    numbers = (port_number(target, container) for container in pod["spec"]["containers"])
    number = next((number for number in numbers if number), None)
    address = pod["status"].get("podIP")
    return (address, number) if address and number else None


class ServiceProxy:
    """`run` keeps the listeners in step with the API until it is cancelled."""

    def __init__(self, api: Api, lag_s: float = 0.0) -> None:
        self._api = api
        self._lag_s = lag_s
        self._services: dict[str, Json] = {}
        self._pods: dict[str, Json] = {}
        self._changed = asyncio.Event()
        self._listeners: dict[Address, Listener] = {}

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow("/api/v1/services", self._services))
                group.create_task(self._follow("/api/v1/pods", self._pods))
                group.create_task(self._keep_in_step())
        finally:
            for listener in self._listeners.values():
                listener.close()

    async def _follow(self, path: str, objects: dict[str, Json]) -> None:
        def seen(item: Json) -> None:
            objects[item["metadata"]["uid"]] = item
            self._changed.set()

        def gone(item: Json) -> None:
            objects.pop(item["metadata"]["uid"], None)
            self._changed.set()

        await self._api.follow(path, {}, seen, gone)

    async def _keep_in_step(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = wanted_ports(self._services.values(), self._pods.values())
            await asyncio.sleep(self._lag_s)
            await self._adjust(wanted)

    async def _adjust(self, wanted: Mapping[Address, list[Address]]) -> None:
        for address in self._listeners.keys() - wanted.keys():
            self._listeners.pop(address).close()
        for address, backends in wanted.items():
            if address not in self._listeners:
                listener = Listener()
                try:
                    await listener.open(address)
                except OSError as error:
                    _log.error("the Service address %s:%d cannot be listened on: %s", *address, error)
                    continue
                self._listeners[address] = listener
            self._listeners[address].backends = backends


class Listener:
    """One port of one Service."""

    def __init__(self) -> None:
        self.backends: list[Address] = []
        self._turn = 0
        self._server: asyncio.Server | None = None

    async def open(self, address: Address) -> None:
        self._server = await asyncio.start_server(self._connected, *address, backlog=_BACKLOG)

    def close(self) -> None:
        """Takes no new connections; those open go on."""
        if self._server:
            self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                backend_reader, backend_writer = await asyncio.open_connection(*self._next())
        except (OSError, TimeoutError, LookupError) as error:
            _log.debug("no pod took the connection: %s", error)
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_pipe(reader, backend_writer), _pipe(backend_reader, writer))
        finally:
            writer.close()
            backend_writer.close()

    def _next(self) -> Address:
        if not self.backends:
            raise LookupError("no pod is ready")
        self._turn += 1
        return self.backends[self._turn % len(self.backends)]


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies until the end, and passes the end on; a broken side breaks the other."""
    try:
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()
    except OSError:
        writer.transport.abort()
