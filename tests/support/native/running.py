"""Start a stand-in as a child process, by the very command and arguments that the operator renders for its engine.

What a node would put in its place is put here: the address, the ports, and the variables that hold the pod's address.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from prefleet_operator.api import PrefillPolicySpec, Role
from prefleet_operator.core.native_policy import NativePolicy
from prefleet_operator.engines import HTTP_PORT, PodRequest, engine_for
from prefleet_operator.engines.mindie import MANAGEMENT_PORT, METRICS_PORT

from tests.support.native.images import make_native_images
from tests.support.plane.processes import direct_opener, free_ports
from tests.support.sim_server import await_answer
from tests.support.vllm_server import die_with_parent

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 10


@dataclass(frozen=True)
class NativeProcess:
    """A running server: its API, and where its metrics are."""

    process: subprocess.Popen[bytes]
    address: str
    port: int
    metrics_port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    def metrics(self) -> bytes:
        """What it shows now."""
        url = f"http://{self.address}:{self.metrics_port}/metrics"
        with direct_opener().open(url, timeout=5) as answer:
            body: bytes = answer.read()
        return body


@contextmanager
def native_server(
    folder: Path,
    spec: PrefillPolicySpec,
    policy: NativePolicy,
    address: str = "127.0.0.1",
    ports: tuple[int, int, int] | None = None,
) -> Iterator[NativeProcess]:
    """A server that answers /v1/models; it is stopped at the end. `folder` is empty; `ports`: API, health, metrics."""
    make_native_images(folder / "image")
    container = engine_for(spec).container(PodRequest(spec, Role.MIXED, "runtime", policy))
    http, management, metrics = ports or tuple(free_ports(3))
    known = {"0.0.0.0": address, str(HTTP_PORT): http, str(MANAGEMENT_PORT): management, str(METRICS_PORT): metrics}

    def here(text: str) -> str:
        for old, new in known.items():
            text = text.replace(old, str(new))
        return text

    home = folder / "home"
    home.mkdir()
    environment = {"PATH": f"{folder / 'image' / 'bin'}:{os.environ['PATH']}", "HOME": str(home)}
    environment |= {entry["name"]: entry.get("value", address) for entry in container.env}
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*container.command, *(here(arg) for arg in container.args)],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
    shown = metrics if "metrics" in dict(container.ports) else http
    server = NativeProcess(process, address, http, shown, log)
    try:
        await_answer(process, f"{server.url}/v1/models", log, START_TIMEOUT_S)
        yield server
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=STOP_TIMEOUT_S)
        return
    process.kill()
    process.wait()
