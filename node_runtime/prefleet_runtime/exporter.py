"""Serves the runtime's metrics, and pages beside them, from daemon threads inside the engine's process.

One thread for each request, so that a slow reader holds up nobody; a peer that says nothing is let go after
`_QuietHandler.timeout`, since its thread is the engine's. Nothing is logged of scrapes.

Left out: TLS and authentication, which are a mesh's or a network policy's.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from threading import Thread
from types import MappingProxyType
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

CLOSING_POLL_S = 0.05
"""How often the server looks whether it shall close."""

Page = Callable[[], bytes]
"""Answers one request for a page, in JSON; called by a thread of the exporter's."""


class _Server(ThreadingWSGIServer):
    """A thread for each request, so that a slow reader holds up nobody."""

    def __init__(self, host: str, port: int) -> None:
        family, *_, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        super().__init__((str(address[0]), port), _QuietHandler)


class _QuietHandler(WSGIRequestHandler):
    timeout = 30.0  # seconds: a peer that is gone without a word would hold a thread for ever

    def handle(self) -> None:
        """Answer, unless the peer goes before it has asked."""
        with suppress(TimeoutError, ConnectionError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Say nothing: the engine's log is not ours to fill with scrapes."""


class Exporter:
    """A running metrics server; `port` is the one it listens on. It serves `pages` by path, metrics elsewhere."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int, pages: Mapping[str, Page]) -> None:
        self._server = _Server(host, port)
        self._server.set_app(_routed(make_wsgi_app(registry), pages))
        self._thread = Thread(target=self._server.serve_forever, args=(CLOSING_POLL_S,), daemon=True)
        self._thread.start()
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """Stop serving and free the port. May be repeated."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _routed(metrics: WSGIApplication, pages: Mapping[str, Page]) -> WSGIApplication:
    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        page = pages.get(environ["PATH_INFO"])
        if page is None or environ["REQUEST_METHOD"] != "GET":
            return metrics(environ, start_response)
        body = page()
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]

    return application


def serve(
    registry: CollectorRegistry, host: str, port: int, pages: Mapping[str, Page] = MappingProxyType({})
) -> Exporter:
    """Serve `registry` under /metrics, and `pages` by path, from daemon threads; port 0 picks a free one.

    Raises:
        OSError: the port cannot be had; the message names it and what to change.
    """
    try:
        return Exporter(registry, host, port, pages)
    except (OSError, OverflowError) as error:  # the latter: the ports of high ranks may end beyond the last one
        reason = getattr(error, "strerror", None) or error
        raise OSError(f"metrics cannot be served on {host}:{port} ({reason}): set another exporter_port") from error
