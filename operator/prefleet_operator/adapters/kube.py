"""The Kubernetes API, as plain objects: the only importer of `kubernetes`.

Every request is bounded in time, and every write first passes the fence (`Kube.fence`), which raises once this
process no longer leads: the old leader's last write comes before the new leader's first. A write is a
server-side apply, a merge patch, or a delete; reads are paged. Failures are one of the few exceptions below.

Objects are what JSON says, not the client's classes: an apply must send exactly the fields that are owned.

Left out: which objects to write and when; the watch loop (watch.py) and Events (events.py) build on this.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import struct
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import yaml
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, ApiException, Configuration
from kubernetes.aio.client.rest import RESTClientObject

logger = logging.getLogger(__name__)

Object = dict[str, Any]
T = TypeVar("T")

WRITE_TIMEOUT_S = 2.5
"""Less than what lies between the lease's renew deadline and its duration: see app/leader.py."""
READ_TIMEOUT_S = 15.0
WATCH_SECONDS = 240
WATCH_SILENCE_S = 75.0
"""A watch hears at least a bookmark a minute; one that hears nothing for longer is dead."""
PAGE_SIZE = 500
READ_BUFFER_BYTES = 2 * 1024 * 1024
TOKEN_REFRESH_S = 60.0
MAX_MESSAGE = 1000
_UNKNOWN_FIELD = "field not declared in schema"
"""What an apply of a field that the API server does not know is answered with, as an error of the server's own."""


class KubeError(Exception):
    """The API server did not do what was asked; the message is its own sentence."""


class NotFoundError(KubeError):
    """There is no such object."""


class ConflictError(KubeError):
    """The object is no longer as it was read, or exists already."""


class GoneError(KubeError):
    """The resource version is too old to watch from: list again."""


class RefusedError(KubeError):
    """The request is wrong or forbidden, and will be until somebody changes something."""


class TerminatingError(KubeError):
    """The namespace is being deleted, and takes nothing new."""


class UnavailableError(KubeError):
    """The API server cannot be reached or is busy: try again later."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and where the API serves it."""

    base: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of a collection (of all namespaces if None) or of one object."""
        parts = [self.base, *(["namespaces", namespace] if namespace else []), self.plural, name, subresource]
        return "/" + "/".join(part for part in parts if part)


CONFIG_MAPS = Resource("api/v1", "configmaps")
SERVICES = Resource("api/v1", "services")
PODS = Resource("api/v1", "pods")
DEPLOYMENTS = Resource("apis/apps/v1", "deployments")
LEADER_WORKER_SETS = Resource("apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets")
HORIZONTAL_POD_AUTOSCALERS = Resource("apis/autoscaling/v2", "horizontalpodautoscalers")
SCALED_OBJECTS = Resource("apis/keda.sh/v1alpha1", "scaledobjects")
LEASES = Resource("apis/coordination.k8s.io/v1", "leases")
DISRUPTION_BUDGETS = Resource("apis/policy/v1", "poddisruptionbudgets")
EVENTS = Resource("apis/events.k8s.io/v1", "events")
POLICIES = Resource("apis/prefleet.dev/v1alpha1", "prefillpolicies")

RESOURCES_BY_KIND = {
    "ConfigMap": CONFIG_MAPS,
    "Service": SERVICES,
    "Deployment": DEPLOYMENTS,
    "LeaderWorkerSet": LEADER_WORKER_SETS,
    "PodDisruptionBudget": DISRUPTION_BUDGETS,
    "HorizontalPodAutoscaler": HORIZONTAL_POD_AUTOSCALERS,
    "ScaledObject": SCALED_OBJECTS,
}

INSTALL_HINTS = {
    "LeaderWorkerSet": "install LeaderWorkerSet (lws.sigs.k8s.io) or write nodesPerReplica: 1",
    "ScaledObject": "install KEDA (keda.sh) or write autoscaling.actuator: HPA or Direct",
}
"""Of the kinds that a cluster need not serve: what to do about one that is missing."""


class Kube:
    """A connection to one API server. `fence` is called before each write and raises if it must not happen."""

    def __init__(self, client: ApiClient, field_manager: str) -> None:
        self._client = client
        self._field_manager = field_manager
        self.fence: Callable[[], None] = lambda: None

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """Read one object. Raises NotFoundError."""
        return await self._request("GET", resource.path(namespace, name))

    async def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read one object by name, with the right to list alone; None if there is none."""
        query = {"fieldSelector": f"metadata.name={name}"}
        items = (await self._request("GET", resource.path(namespace), query))["items"]
        return items[0] if items else None

    async def served(self, resource: Resource) -> bool:
        """Whether the API server knows the resource."""
        try:
            found = await self._request("GET", f"/{resource.base}")
        except NotFoundError:
            return False
        return any(served["name"] == resource.plural for served in found["resources"])

    async def list_page(
        self, resource: Resource, namespace: str | None, selector: str, token: str = ""
    ) -> tuple[list[Object], str, str]:
        """One page: objects, resource version, and the token of the next page ("" on the last)."""
        query = {"labelSelector": selector, "limit": str(PAGE_SIZE)} | ({"continue": token} if token else {})
        page = await self._request("GET", resource.path(namespace), query)
        metadata = page["metadata"]
        return page.get("items") or [], metadata["resourceVersion"], metadata.get("continue") or ""

    async def watch(
        self, resource: Resource, namespace: str | None, selector: str, version: str
    ) -> AsyncIterator[tuple[str, Object]]:
        """Changes after `version` as (ADDED | MODIFIED | DELETED | BOOKMARK, object), until the server ends it.

        Raises GoneError if `version` is too old.
        """
        query = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=READ_TIMEOUT_S, sock_read=WATCH_SILENCE_S)
        path = resource.path(namespace)
        try:
            response = await self._send("GET", path, query, None, "application/json", timeout)
            async with response:
                if response.status != 200:
                    raise to_error(response.status, await response.read())
                async for line in whole_lines(response.content.iter_any()):
                    change = json.loads(line)
                    if change["type"] == "ERROR":
                        raise to_error(change["object"].get("code", 500), json.dumps(change["object"]).encode())
                    yield change["type"], change["object"]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise UnavailableError(f"watching {path}: {str(error) or type(error).__name__}") from error

    async def apply(
        self, resource: Resource, desired: Object, dry_run: bool = False, manager: str | None = None
    ) -> Object:
        """Server-side apply of all that the manager wants of an object (of this connection's, unless another is named);
        a resourceVersion in it must be the live one. `dry_run`: only ask what would become of it."""
        metadata = desired["metadata"]
        path = resource.path(metadata["namespace"], metadata["name"])
        query = {"fieldManager": manager or self._field_manager, "force": "true"} | (
            {"dryRun": "All"} if dry_run else {}
        )
        return await self._write("PATCH", path, query, desired, "application/apply-patch+yaml")

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, patch: Object, subresource: str | None = None
    ) -> Object:
        """JSON merge patch; a resourceVersion in its metadata must be the live one."""
        path = resource.path(namespace, name, subresource)
        query = {"fieldManager": self._field_manager}
        return await self._write("PATCH", path, query, patch, "application/merge-patch+json")

    async def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        """Create an object. Raises ConflictError if it exists."""
        return await self._write("POST", resource.path(namespace), {}, body)

    async def replace(self, resource: Resource, namespace: str, name: str, body: Object) -> Object:
        """Replace an object whose resourceVersion stands in `body`."""
        return await self._write("PUT", resource.path(namespace, name), {}, body)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """Delete that very object; its children follow in the background."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._write("DELETE", resource.path(namespace, name), {}, body)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.close()

    async def _write(
        self, method: str, path: str, query: dict[str, str], body: Object, content: str = "application/json"
    ) -> Object:
        """The server gives a write up as soon as we do: none may come to pass once another leads."""
        self.fence()
        bounded = query | {"timeout": f"{WRITE_TIMEOUT_S}s"}
        return await self._request(method, path, bounded, body, content, WRITE_TIMEOUT_S)

    async def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content: str = "application/json",
        timeout_s: float = READ_TIMEOUT_S,
    ) -> Object:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            response = await self._send(method, path, query or {}, body, content, timeout)
            async with response:
                data = await response.read()
        except TimeoutError as error:
            raise UnavailableError(f"{method} {path}: no answer within {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UnavailableError(f"{method} {path}: {str(error) or type(error).__name__}") from error
        if response.status >= 300:
            raise to_error(response.status, data)
        try:
            answer: Object = json.loads(data)
        except ValueError:
            raise UnavailableError(f"{method} {path}: the answer is no JSON, as of a proxy in between") from None
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Object | None,
        content: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        serialized = await self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Content-Type": content, "Accept": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = await self._client.call_api(*serialized, _request_timeout=timeout)
        except ApiException as error:
            raise to_error(error.status or 500, str(error.body or error.reason).encode()) from error
        response: aiohttp.ClientResponse = answer.response
        return response


async def connect(field_manager: str) -> Kube:
    """A connection by the pod's service account, or else by KUBECONFIG.

    Raises:
        KubeError: neither is there, or the file is broken.
    """
    # Each watch holds a connection for good: a bound on them would in time leave none for a write.
    configuration = Configuration(connection_pool_maxsize=0)
    try:
        kube_config.load_incluster_config(client_configuration=configuration)
    except kube_config.ConfigException:
        await _load_kubeconfig(configuration)
    client = ApiClient(configuration)
    client.rest_client.pool_manager = _session(client.rest_client)
    return Kube(client, field_manager)


def _session(rest: RESTClientObject) -> aiohttp.ClientSession:
    """The client's own session, but that what a request that was given up left to be sent is dropped: by the time that
    the network takes it, another operator may lead."""
    connector = aiohttp.TCPConnector(limit=rest.maxsize, ssl=rest.ssl_context, socket_factory=_open_socket)
    return aiohttp.ClientSession(connector=connector, trust_env=True, read_bufsize=READ_BUFFER_BYTES)


def _open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that gives up what the other side has not taken within the time of a write, and at once when closed."""
    opened = socket.socket(*address[:3])
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(WRITE_TIMEOUT_S * 1000))
    return opened


def _kubeconfig() -> str:
    """Where the kubeconfig is: one path or several. Raises KubeError if there is none."""
    location = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if not any(Path(part).exists() for part in location.split(os.pathsep)):
        raise KubeError(f"no service account, and there is no kubeconfig {location}: set KUBECONFIG")
    return location


async def _load_kubeconfig(configuration: Configuration) -> None:
    location = _kubeconfig()
    try:
        await kube_config.load_kube_config(
            config_file=location, client_configuration=configuration, persist_config=False
        )
    except (kube_config.ConfigException, OSError, TypeError, AttributeError, yaml.YAMLError) as error:
        message = f"no service account, and {location} is not a usable kubeconfig ({error}): set KUBECONFIG"
        raise KubeError(message) from error
    token_file = find_token_file(location)
    if token_file is not None:
        configuration.refresh_api_key_hook = TokenFile(token_file).refresh


def find_token_file(location: str) -> Path | None:
    """The tokenFile of the current context's user: the client reads it once, but tokens rotate."""
    paths = [Path(part) for part in location.split(os.pathsep) if Path(part).is_file()]
    files = [(path, yaml.safe_load(path.read_text()) or {}) for path in paths]
    current = next((content["current-context"] for _, content in files if content.get("current-context")), None)
    contexts = [context for _, content in files for context in content.get("contexts") or ()]
    user = next((entry["context"].get("user") for entry in contexts if entry["name"] == current), None)
    for path, content in files:
        for entry in content.get("users") or ():
            if entry["name"] == user and entry["user"].get("tokenFile"):
                return path.parent / str(entry["user"]["tokenFile"])
    return None


class TokenFile:
    """Reads the token anew once a minute, as the in-cluster configuration does."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._read_at = float("-inf")

    def refresh(self, configuration: Configuration) -> None:
        """The client calls this before each request."""
        if self._clock() - self._read_at < TOKEN_REFRESH_S:
            return
        configuration.api_key["BearerToken"] = "Bearer " + self._path.read_text().strip()
        self._read_at = self._clock()


async def whole_lines(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The lines of a stream. aiohttp's own reading of lines fails at a long one, which any tenant can write."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def to_error(status: int, data: bytes) -> KubeError:
    """The failure that an answer stands for; its sentence is bounded, since it goes into statuses."""
    message = _message(data)[:MAX_MESSAGE] or f"HTTP {status}"
    if status == 404:
        return NotFoundError(message)
    if status == 409:
        return ConflictError(message)
    if status == 410:
        return GoneError(message)
    if status == 403 and b'"NamespaceTerminating"' in data:
        return TerminatingError(message)
    if status >= 500 and _UNKNOWN_FIELD in message:
        return RefusedError(message)
    if status in (401, 408, 429) or status >= 500:
        return UnavailableError(message)
    return RefusedError(message)


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return data.decode(errors="replace")


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again while the API server is away, with growing pauses, for as long as it takes; about once a minute it is
    said why."""
    for failures, pause_s in enumerate(chain((0.5, 1.0, 2.0, 5.0), repeat(10.0))):
        try:
            return await ask()
        except UnavailableError as error:
            level = logging.WARNING if failures % 6 == 0 else logging.DEBUG
            logger.log(level, "the API server is not to be had, trying again: %s", error)
            await asyncio.sleep(pause_s)
    raise AssertionError("the pauses never end")
