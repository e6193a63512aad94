"""Start simulated servers as child processes on loopback and talk to them.

A server is our child: SIGTERM reaches it when this process dies, and leaving the context ends it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from prefleet_runtime.contract import RuntimePolicy

from tests.support.vllm_server import die_with_parent, free_port, log_tail, read_metrics, read_recent

MODEL_NAME = "simulated"
START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 20

# Short steps, so that a test takes moments: 1 ms a step and 10 microseconds a token.
FAST = json.dumps({"fixed_s": 0.001, "per_prefill_token_s": 1e-5, "per_decode_token_s": 1e-5})
# Long ones, so that what a test does happens in the middle of things: 50 ms a step.
SLOW = json.dumps({"fixed_s": 0.05, "per_prefill_token_s": 1e-5, "per_decode_token_s": 1e-5})


@dataclass(frozen=True)
class SimServer:
    """A running server; `exporter_port` serves the runtime's own metrics."""

    port: int
    exporter_port: int
    policy_file: Path
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def metrics(self) -> dict[str, float]:
        """vLLM's names as {name{labels}: value}."""
        return read_metrics(f"{self.url}/metrics")

    def vllm(self, name: str) -> float:
        """One of vLLM's series without further labels."""
        return self.metrics()[f'vllm:{name}{{engine="0",model_name="{MODEL_NAME}"}}']

    def runtime_metrics(self) -> dict[str, float]:
        """The runtime's own series."""
        return read_metrics(f"http://127.0.0.1:{self.exporter_port}/metrics")

    def recent(self) -> list[dict[str, Any]]:
        """The last requests, as the runtime's exporter tells them."""
        return read_recent(self.exporter_port)


def write_policy(path: Path, policy: RuntimePolicy) -> None:
    """Replace a policy file at once, as a kubelet does."""
    fresh = path.with_suffix(".new")
    fresh.write_text(policy.to_json())
    fresh.rename(path)


@contextmanager
def sim_server(folder: Path, *arguments: str, cost_model: str = FAST, name: str = "server") -> Iterator[SimServer]:
    """A server that answers /health; it is stopped at the end."""
    policy_file, log = folder / f"{name}.json", folder / f"{name}.log"
    write_policy(policy_file, RuntimePolicy(generation=1))
    port, exporter_port = free_port(), free_port()
    command = [sys.executable, "-m", "prefleet_runtime.sim.server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--policy-file", str(policy_file), "--exporter-port", str(exporter_port)]
    command += ["--served-model-name", MODEL_NAME, "--cost-model", cost_model, *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
    server = SimServer(port, exporter_port, policy_file, log, process)
    try:
        await_answer(process, f"{server.url}/health", log)
        yield server
    finally:
        _stop(process)


def await_answer(process: subprocess.Popen[bytes], url: str, log: Path, timeout_s: float = START_TIMEOUT_S) -> None:
    """Return once the process serves the URL. AssertionError with the log's end if it ends first, or takes too long."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        status = process.poll()
        assert status is None, f"the server ended with status {status}:\n{log_tail(log)}"
        with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.05)
    raise AssertionError(f"no answer in {timeout_s} s:\n{log_tail(log)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        # Two signals: a test that failed may leave calls open, which one signal would wait for.
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=STOP_TIMEOUT_S / 4)
                return
    process.kill()
    process.wait()


async def complete(session: aiohttp.ClientSession, server: SimServer, **body: Any) -> tuple[int, dict[str, Any]]:
    """One completion without streaming: status and document."""
    document = {"model": MODEL_NAME} | body
    async with session.post(f"{server.url}/v1/completions", json=document) as response:
        return response.status, await response.json()


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The documents of a stream; AssertionError if it does not end with [DONE]."""
    done = False
    async for line in response.content:
        if line.strip() == b"data: [DONE]":
            done = True
        elif line.startswith(b"data: "):
            yield json.loads(line[6:])
    assert done, "the stream ended without [DONE]"
