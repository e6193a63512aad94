"""Beside vLLM's API server, so that a pod that is to end loses no request. Named on the command line as

    --middleware prefleet_runtime.vllm.front.DrainFront

POST /prefleet/drain begins the drain and answers {"open": requests that are being answered}. From then on every answer
closes its connection: a client that keeps connections opens its next one elsewhere, where none would reach this pod
any more. Nothing is refused: until vLLM itself is told to stop it serves what comes. After that (SIGTERM) it aborts
each new request, and that is why the hook (`drain`) waits before.

Only the pod itself may begin a drain, told by its address. An ASGI middleware without a framework; the server runs it
in one thread. Left out: websockets, and further API server processes, which are not told.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ..drain import DRAIN_PATH

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class DrainFront:
    """See the module."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._draining = False
        self._open = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One connection's request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if scope["path"] == DRAIN_PATH and scope["method"] == "POST":
            return await self._drain(scope, send)

        async def closing(message: Message) -> None:
            if self._draining and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        self._open += 1
        try:
            await self._app(scope, receive, closing)
        finally:
            self._open -= 1

    async def _drain(self, scope: Message, send: Send) -> None:
        client, server = scope.get("client"), scope.get("server")
        ours = client is not None and server is not None and client[0] == server[0]
        self._draining = self._draining or ours
        status, document = (200, {"open": self._open}) if ours else (403, {"error": "ask from the pod itself"})
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(document).encode()})
