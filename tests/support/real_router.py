"""Start a real router as a child process, told exactly what the operator renders, in front of pods on loopback.

Only addresses are changed, as a cluster's network would: 0.0.0.0 and the ports, and each Service's name, which a
`Listener` of the node agent stands for (one pod for each connection, in turn, as kube-proxy does it).
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from prefleet_operator.api import PrefillPolicySpec
from prefleet_operator.engines import HTTP_PORT
from prefleet_operator.render.router_command import METRICS_PORT, router_command

from tests.support.node_agent.services import Address, Listener
from tests.support.plane.processes import free_ports
from tests.support.router_env import ensure_router_env
from tests.support.vllm_server import die_with_parent, log_tail

FLEET, NAMESPACE = "chat", "serving"
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
POLL_S = 0.05


@dataclass(frozen=True)
class RealRouter:
    """A running router and the Services that it sends to, by role."""

    port: int
    process: subprocess.Popen[bytes]
    services: Mapping[str, Listener]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def terminate(self) -> None:
        """SIGTERM, as a kubelet sends it."""
        self.process.send_signal(signal.SIGTERM)


@asynccontextmanager
async def real_router(
    folder: Path, spec: PrefillPolicySpec, pods: Mapping[str, Sequence[int]]
) -> AsyncIterator[RealRouter]:
    """The router of `spec` in front of `pods` (ports by role), once it says that it is ready; ended afterwards."""
    services = {role: Listener() for role in pods}
    names = await _open(services, pods)
    port, metrics_port = free_ports(2)
    command = router_command(FLEET, NAMESPACE, spec)
    ports = {str(HTTP_PORT): str(port), str(METRICS_PORT): str(metrics_port), "0.0.0.0": "127.0.0.1"}
    args = [names.get(arg) or ports.get(arg, arg) for arg in command.args]
    log = folder / "router.log"
    process = _start(command.command, args, log)
    router = RealRouter(port, process, services, log)
    try:
        await _until_ready(router)
        yield router
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(STOP_TIMEOUT_S)
        for service in services.values():
            service.close()


async def _open(services: Mapping[str, Listener], pods: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Open the Services; the rendered URL of each, and where it really is."""
    names = {}
    for (role, service), port in zip(services.items(), free_ports(len(services)), strict=True):
        service.backends = addresses(pods[role])
        await service.open(("127.0.0.1", port))
        names[f"http://{FLEET}-{role}.{NAMESPACE}.svc:{HTTP_PORT}"] = f"http://127.0.0.1:{port}"
    return names


def addresses(ports: Sequence[int]) -> list[Address]:
    """Pods behind a Service."""
    return [("127.0.0.1", port) for port in ports]


def _start(command: tuple[str, ...], args: list[str], log: Path) -> subprocess.Popen[bytes]:
    folder = ensure_router_env(lambda line: print(line, file=sys.stderr)) / "bin"
    program = [str(folder / command[0]), *command[1:], *args]
    with log.open("wb") as output:
        return subprocess.Popen(program, stdout=output, stderr=subprocess.STDOUT, preexec_fn=die_with_parent)


async def _until_ready(router: RealRouter) -> None:
    timeout = aiohttp.ClientTimeout(total=2)
    async with asyncio.timeout(START_TIMEOUT_S), aiohttp.ClientSession(timeout=timeout) as session:
        while not await _answers(session, f"{router.url}/readiness"):
            assert router.process.poll() is None, f"the router ended:\n{log_tail(router.log)}"
            await asyncio.sleep(POLL_S)


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
