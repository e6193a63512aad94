"""The API server, as plain JSON over the kubeconfig's credentials.

Objects stay the dictionaries that the API speaks: the agent passes most of them through, and what it decides with
is read from them in one place each. Every failure becomes an `ApiError`; status 0 means that no answer came.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

Json = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"

_REQUEST_TIMEOUT_S = 15.0
_WATCH_S = 240
_RETRY_S = 1.0

_log = logging.getLogger(__name__)


class ApiError(Exception):
    """The server refused (its HTTP status), or could not be reached (0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} (status {status})")
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Credentials:
    """What a kubeconfig's current context says: where the server is and who asks."""

    server: str
    authority_pem: str | None
    tls: ssl.SSLContext
    token: str | None

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Self:
        document = yaml.safe_load(path.read_text())
        wanted = document["current-context"]
        context = _named(document["contexts"], wanted)["context"]
        cluster = _named(document["clusters"], context["cluster"])["cluster"]
        user = _named(document["users"], context["user"])["user"]
        authority = _text(cluster, "certificate-authority", path)
        tls = ssl.create_default_context(cadata=authority)
        _load_client_certificate(tls, user, path)
        return cls(cluster["server"].rstrip("/"), authority, tls, user.get("token"))


def _named(entries: list[Json], name: str) -> Json:
    return next(entry for entry in entries if entry["name"] == name)


def _text(section: Json, key: str, kubeconfig: Path) -> str | None:
    if data := section.get(f"{key}-data"):
        return base64.b64decode(data).decode()
    if file := section.get(key):
        return (kubeconfig.parent / str(file)).read_text()
    return None


def _load_client_certificate(tls: ssl.SSLContext, user: Json, kubeconfig: Path) -> None:
    certificate, key = (_text(user, name, kubeconfig) for name in ("client-certificate", "client-key"))
    if not (certificate and key):
        return
    # The ssl module takes certificates from files alone.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:
        both.write(f"{certificate}\n{key}\n")
        both.flush()
        tls.load_cert_chain(both.name)


class Api:
    """An asynchronous context; every request is bounded in time."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials

    async def __aenter__(self) -> Self:
        token = self.credentials.token
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self.credentials.tls, limit=0),
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        return await self.request("GET", path, params=params)

    async def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Json:
        """The answer's object; raises ApiError."""
        try:
            async with self._session.request(
                method,
                self.credentials.server + path,
                params=params,
                data=None if body is None else json.dumps(body),
                headers={"Content-Type": content_type},
                timeout=aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S),
            ) as response:
                await _raise_for_status(response)
                answer: Json = await response.json()
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"{method} {path} got no answer: {error!r}") from error

    async def follow(
        self, path: str, params: Mapping[str, str], seen: Callable[[Json], None], gone: Callable[[Json], None]
    ) -> None:
        """Lists and watches for ever: `seen` for every object now and after each change, `gone` once it is deleted.

        `seen` may be called again with an object that did not change.
        """
        known: dict[str, Json] = {}
        while True:
            try:
                version = await self._relist(path, params, known, seen, gone)
                await self._watch(path, {**params, "resourceVersion": version}, known, seen, gone)
            except ApiError as error:
                _log.warning("watching %s: %s; trying again in %g s", path, error, _RETRY_S)
                await asyncio.sleep(_RETRY_S)

    async def _relist(
        self,
        path: str,
        params: Mapping[str, str],
        known: dict[str, Json],
        seen: Callable[[Json], None],
        gone: Callable[[Json], None],
    ) -> str:
        listing = await self.get(path, params)
        present = {item["metadata"]["uid"]: item for item in listing["items"]}
        for uid in known.keys() - present.keys():
            gone(known.pop(uid))
        known.update(present)
        for item in present.values():
            seen(item)
        return str(listing["metadata"]["resourceVersion"])

    async def _watch(
        self,
        path: str,
        params: Mapping[str, str],
        known: dict[str, Json],
        seen: Callable[[Json], None],
        gone: Callable[[Json], None],
    ) -> None:
        async for event in self._events(path, params):
            item = event["object"]
            if event["type"] == "ERROR":
                raise ApiError(int(item.get("code", 0)), str(item.get("message")))
            uid = item["metadata"]["uid"]
            if event["type"] == "DELETED":
                known.pop(uid, None)
                gone(item)
            else:
                known[uid] = item
                seen(item)

    async def _events(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Json]:
        query = {**params, "watch": "1", "timeoutSeconds": str(_WATCH_S)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_TIMEOUT_S, sock_read=_WATCH_S + 30)
        try:
            async with self._session.get(self.credentials.server + path, params=query, timeout=timeout) as response:
                await _raise_for_status(response)
                async for line in _lines(response.content):
                    yield json.loads(line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"the watch of {path} broke: {error!r}") from error


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length; aiohttp's own readline refuses long ones."""
    pending = b""
    async for chunk in stream.iter_any():
        *whole, pending = (pending + chunk).split(b"\n")
        for line in whole:
            yield line


async def _raise_for_status(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    text = await response.text()
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        message = text[:300]
    raise ApiError(response.status, message)
