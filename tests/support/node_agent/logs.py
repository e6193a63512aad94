"""The part of a kubelet's server that `kubectl logs` needs: /containerLogs, over TLS.

Logs are the raw output in one file per instance of a container, so there are no times to select by: `--since` and
`--timestamps` are refused with a sentence, as are exec, attach and port-forward. Whoever can reach this loopback
port can read the logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.node_agent.containers import Container
from tests.support.node_agent.pods import Pod
from tests.support.node_agent.settings import AgentSettings

FindPod = Callable[[str, str], Pod | None]

_POLL_S = 0.2
_CHUNK = 64 * 1024


class LogServer:
    """An asynchronous context; serves on a socket that listens already, and closes it."""

    def __init__(self, listener: socket.socket, settings: AgentSettings, find_pod: FindPod) -> None:
        self._listener = listener
        self._settings = settings
        self._find_pod = find_pod

    async def __aenter__(self) -> LogServer:
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_route("*", "/{rest:.*}", _refuse)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.SockSite(self._runner, self._listener, ssl_context=self._tls()).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if self._settings.certificate and self._settings.key:
            context.load_cert_chain(self._settings.certificate, self._settings.key)
            return context
        with tempfile.NamedTemporaryFile() as file:
            file.write(self_signed(self._listener.getsockname()[0], datetime.now(UTC)))
            file.flush()
            context.load_cert_chain(file.name)
        return context

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        where = request.match_info
        pod = self._find_pod(where["namespace"], where["pod"])
        container = pod.container(where["container"]) if pod else None
        if pod is None or container is None:
            return web.Response(status=404, text=f"no {where['container']} of {where['pod']} is on this node")
        if refused := {"sinceSeconds", "sinceTime", "timestamps"} & request.query.keys():
            return web.Response(status=400, text=f"{', '.join(sorted(refused))}: this node keeps no times of log lines")
        # While a container waits to be started again, its last instance is the previous one too.
        previous = request.query.get("previous") == "true" and not container.waiting_for
        number = container.restart_count - previous
        log = pod.sandbox.log_file(container.name, number)
        if number < 0 or not log.exists():
            reason = (container.waiting_for or {}).get("reason", "no such instance")
            text = f'container "{container.name}" in pod "{where["pod"]}" is waiting to start: {reason}'
            return web.Response(status=400, text=text)
        return await _send(request, log, lambda: _is_written(container, number))


def _is_written(container: Container, number: int) -> bool:
    return container.is_running and container.restart_count == number


async def _refuse(request: web.Request) -> web.Response:
    return web.Response(status=501, text=f"this node does not do {request.path}: it serves logs alone")


async def _send(request: web.Request, log: Path, is_written: Callable[[], bool]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    # Who follows a log goes away in the middle of it.
    with contextlib.suppress(ConnectionResetError):
        await _copy(request, response, log, is_written)
        await response.write_eof()
    return response


async def _copy(request: web.Request, response: web.StreamResponse, log: Path, is_written: Callable[[], bool]) -> None:
    tail, limit = request.query.get("tailLines"), int(request.query.get("limitBytes", 2**62))
    follow = request.query.get("follow") == "true"
    position = tail_position(log, int(tail)) if tail else 0
    while True:
        # Asked before reading, so that what is written until the end is read after it.
        more = follow and is_written()
        while limit and (chunk := _read(log, position, min(_CHUNK, limit))):
            await response.write(chunk)
            position += len(chunk)
            limit -= len(chunk)
        if not more or not limit:
            return
        await asyncio.sleep(_POLL_S)


def _read(log: Path, position: int, size: int) -> bytes:
    with log.open("rb") as file:
        file.seek(position)
        return file.read(size)


def tail_position(log: Path, lines: int) -> int:
    """Where the last so many lines of a file begin."""
    content = log.read_bytes()
    position = len(content) - content.endswith(b"\n")
    for _ in range(lines):
        position = content.rfind(b"\n", 0, max(position, 0))
        if position < 0:
            return 0
    return len(content) if lines == 0 else position + 1


def self_signed(address: str, now: datetime) -> bytes:
    """Key and certificate for an address, as one PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"node agent {address}")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key_pem + certificate.public_bytes(serialization.Encoding.PEM)
