"""Start a real vLLM server on the CPU with the tiny model, and read its tokens as they come.

The server is our child: SIGTERM reaches it when this process dies in whatever way, and leaving the context
ends its whole process group. A start is bounded; a failed one shows the end of the server's log.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp

from tests.support.plane.processes import free_ports

REPOSITORY = Path(__file__).resolve().parents[2]
RUNTIME_FOLDER = REPOSITORY / "node_runtime"
MODEL_NAME = "tiny"
START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 20
ANSWER_TIMEOUT_S = 60
PR_SET_PDEATHSIG = 1

ENGINE_ARGUMENTS = (
    *("--load-format", "dummy", "--seed", "0", "--enforce-eager"),
    # Rounding in bfloat16 depends on what else is in the batch; in float32 greedy tokens do not.
    *("--dtype", "float32"),
    *("--kv-cache-memory-bytes", str(256 * 2**20)),
    *("--max-num-batched-tokens", "1024", "--max-model-len", "8192"),
)


@dataclass(frozen=True)
class VllmServer:
    """A running server: its address, its log, and where the runtime's own metrics are served (0: stock)."""

    port: int
    log: Path
    process: subprocess.Popen[bytes]
    exporter_port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def recent(self) -> list[dict[str, Any]]:
        """The last requests, as the runtime's exporter tells them."""
        return read_recent(self.exporter_port)

    def runtime_metrics(self) -> dict[str, float]:
        """The runtime's exporter as {name{labels}: value}."""
        return read_metrics(f"http://127.0.0.1:{self.exporter_port}/metrics")


@dataclass
class Answer:
    """What one streamed request brought: its tokens, and when each came on the monotonic clock.

    Tokens that one chunk carries came at once.
    """

    sent_s: float
    tokens: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)

    @property
    def first_token_s(self) -> float:
        return self.times_s[0]

    @property
    def last_token_s(self) -> float:
        return self.times_s[-1]

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.sent_s


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    return free_ports(1)[0]


def read_metrics(url: str) -> dict[str, float]:
    """Fetch a Prometheus text page and parse its samples."""
    with urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT_S) as response:
        lines = response.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def read_recent(exporter_port: int) -> list[dict[str, Any]]:
    """Fetch the last requests that ended from a runtime's exporter."""
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter_port}/recent", timeout=ANSWER_TIMEOUT_S) as response:
        requests: list[dict[str, Any]] = json.loads(response.read())["requests"]
    return requests


def runtime_arguments(policy_file: Path, exporter_port: int) -> list[str]:
    """The two arguments that bring the runtime into the engine."""
    settings = {"policy_file": str(policy_file), "exporter_host": "127.0.0.1", "exporter_port": exporter_port}
    return [
        *("--scheduler-cls", "prefleet_runtime.vllm.scheduler.make_scheduler"),
        *("--additional-config", json.dumps({"prefleet": settings})),
    ]


def launch(
    python: Path,
    model: Path,
    log: Path,
    policy_file: Path | None = None,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
) -> VllmServer:
    """Start a server and return at once; with a `policy_file` it runs our scheduler, without the stock one.

    `arguments` and environment `variables` are added to its own.
    """
    port, exporter_port = free_port(), 0
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += [
        "--served-model-name",
        MODEL_NAME,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *ENGINE_ARGUMENTS,
        *arguments,
    ]
    if policy_file is not None:
        exporter_port = free_port()
        command += runtime_arguments(policy_file, exporter_port)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=server_environment(python) | dict(variables),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    return VllmServer(port, log, process, exporter_port)


def server_environment(python: Path) -> dict[str, str]:
    """The environment of an engine process: ours, plus the runtime on PYTHONPATH, less what slows a start."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {
        "PATH": f"{python.parent}:{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(RUNTIME_FOLDER),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Two threads of the engine that spin leave its API server neither of two cores: requests then arrive late.
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
    }


def die_with_parent() -> None:
    """For `preexec_fn`: SIGTERM reaches the child when the thread that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def wait_until_ready(server: VllmServer) -> None:
    """Poll /health until it answers.

    Raises:
        RuntimeError: the server ended, or did not answer in time; the message ends with its log's tail.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise RuntimeError(f"vLLM ended with status {server.process.returncode}:\n{log_tail(server.log)}")
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
    raise RuntimeError(f"vLLM did not answer within {START_TIMEOUT_S} s:\n{log_tail(server.log)}")


def log_tail(log: Path, lines: int = 40) -> str:
    """The end of a server's log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def stop(server: VllmServer) -> None:
    """End the server and whatever it started; safe to call twice."""
    _signal_group(server, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        server.process.wait(timeout=STOP_TIMEOUT_S)
    _signal_group(server, signal.SIGKILL)
    server.process.wait()


def _signal_group(server: VllmServer, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(server.process.pid, number)


@contextmanager
def running(servers: Sequence[VllmServer]) -> Iterator[Sequence[VllmServer]]:
    """Wait for launched servers and stop them at the end, also when one of them fails to start."""
    try:
        for server in servers:
            wait_until_ready(server)
        yield servers
    finally:
        for server in servers:
            stop(server)


async def complete(
    session: aiohttp.ClientSession,
    server: VllmServer,
    prompt: list[int],
    max_tokens: int,
    headers: Mapping[str, str] | None = None,
    **fields: Any,
) -> Answer:
    """One greedy completion of token ids, streamed; `fields` are added to the body."""
    body = {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        **fields,
    }
    answer = Answer(sent_s=time.monotonic())
    async with session.post(f"{server.url}/v1/completions", json=body, headers=headers) as response:
        response.raise_for_status()
        async for line in response.content:
            _take_line(answer, line)
    return answer


def _take_line(answer: Answer, line: bytes) -> None:
    if not line.startswith(b"data: {"):
        return
    document = json.loads(line[6:])
    if "error" in document:
        raise RuntimeError(f"the engine broke off its answer: {document['error']}")
    tokens = [token for choice in document["choices"] for token in choice.get("token_ids") or ()]
    answer.tokens += tokens
    answer.times_s += [time.monotonic()] * len(tokens)


async def burst(server: VllmServer, prompts: Sequence[list[int]], max_tokens: int) -> list[Answer]:
    """Send all prompts at once, in their order, and wait for all answers."""
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        return list(await asyncio.gather(*(complete(session, server, prompt, max_tokens) for prompt in prompts)))
