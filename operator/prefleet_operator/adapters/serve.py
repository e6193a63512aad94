"""The operator's own HTTP endpoint: /healthz, /readyz and /metrics on one port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Check = Callable[[], str | None]
"""Why something is not well, or None."""


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def serve(host: str, port: int, registry: CollectorRegistry, healthy: Check, ready: Check) -> web.AppRunner:
    """Start serving; `cleanup()` of what is returned ends it. Raises OSError if the port is taken."""
    app = web.Application()
    app.router.add_get("/healthz", _checked(healthy))
    app.router.add_get("/readyz", _checked(ready))
    app.router.add_get("/metrics", _metrics(registry))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


def _checked(check: Check) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        fault = check()
        return web.Response(text=(fault or "ok") + "\n", status=200 if fault is None else 503)

    return answer


def _metrics(registry: CollectorRegistry) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return answer
