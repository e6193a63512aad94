"""A pod that is busy for its first requests: a stand-in, since no engine here can be made busy on purpose.

It refuses the first `refusals` completions with `status`, as a gateway or an engine with a bounded queue does, and
answers the others with one token. Every try is counted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.support.plane.processes import free_ports

HAND_OVER: dict[str, Any] = {
    "do_remote_prefill": True,
    "remote_engine_id": "busy",
    "remote_request_id": "1",
    "remote_host": "127.0.0.1",
    "remote_port": 1,
}


@dataclass
class BusyPod:
    """Its port, what it will do, and how many completions it was asked for."""

    port: int
    status: int
    refusals: int
    tries: int = 0

    async def complete(self, http: web.Request) -> web.Response:
        """POST /v1/completions."""
        await http.read()
        self.tries += 1
        if self.tries <= self.refusals:
            return web.json_response({"error": {"message": "busy"}}, status=self.status)
        choice = {"index": 0, "text": " 1", "finish_reason": "length", "logprobs": None}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "simulated"}
        return web.json_response(head | {"choices": [choice], "usage": usage, "kv_transfer_params": HAND_OVER})


@asynccontextmanager
async def busy_pod(status: int, refusals: int) -> AsyncIterator[BusyPod]:
    """A running one; it answers everything else with an empty document, as healthy."""
    (port,) = free_ports(1)
    pod = BusyPod(port, status, refusals)
    app = web.Application()
    app.router.add_post("/v1/completions", pod.complete)
    app.router.add_get("/{anything:.*}", _empty)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield pod
    finally:
        await runner.cleanup()


async def _empty(_: web.Request) -> web.Response:
    return web.json_response({})
