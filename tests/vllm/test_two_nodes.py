"""One real engine over two nodes: the very commands that a group's leader and worker are rendered with.

Both run on this machine, under loopback addresses in place of the names that a LeaderWorkerSet's controller gives.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prefleet_runtime.contract import RuntimePolicy

from tests.support.rendering import VLLM_MIXED, render
from tests.support.tiny_model import FIRST_WORD
from tests.support.vllm_server import (
    ENGINE_ARGUMENTS,
    MODEL_NAME,
    VllmServer,
    burst,
    die_with_parent,
    free_port,
    log_tail,
    running,
    runtime_arguments,
    server_environment,
)

pytestmark = pytest.mark.vllm

NODES = 2
STOP_TIMEOUT_S = 30
VARIABLES = {"$(LWS_LEADER_ADDRESS)": "127.0.0.1", "$(LWS_WORKER_INDEX)": "1"}
"""What the kubelet puts in the variables' place, on the one worker."""


def rendered(model: Path) -> dict[str, Any]:
    """The engine containers of leader and worker."""
    args = [*ENGINE_ARGUMENTS, "--tensor-parallel-size", str(NODES), "--master-port", str(free_port())]
    spec = VLLM_MIXED | {"mixed": {"nodesPerReplica": NODES, "args": args}}
    templates = render(spec)["LeaderWorkerSet/chat-mixed-group"]["spec"]["leaderWorkerTemplate"]
    return {which: templates[f"{which}Template"]["spec"]["containers"][0] for which in ("leader", "worker")}


def command(container: dict[str, Any], python: Path, replaced: dict[str, str]) -> list[str]:
    """The container's command, with the values of options replaced that depend on the place."""
    words = [VARIABLES.get(word, word) for word in (*container["command"], *container["args"])]
    return [str(python), *(replaced.get(option, word) for option, word in pairwise(words))]


def start(words: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            words,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


@contextmanager
def worker(container: dict[str, Any], python: Path, model: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The second node. The CPU build is distributed under a name of its own, and vLLM's command asks for the version
    of vllm, by which it also knows that it is one for CPUs."""
    names = folder / "names" / "vllm-0.0.0.dist-info"
    names.mkdir(parents=True)
    (names / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.0.0+cpu\n")
    environment = server_environment(python) | {"PYTHONPATH": str(names.parent)}
    process = start(command(container, python, {"--model": str(model)}), folder / "worker.log", environment)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def leader(container: dict[str, Any], python: Path, model: Path, folder: Path) -> VllmServer:
    policy_file, port, exporter_port = folder / "policy.json", free_port(), free_port()
    policy = RuntimePolicy.model_validate({"generation": 7, "policy": "short_request_first", "threshold": 256})
    policy_file.write_text(policy.to_json())
    given = {"--model": str(model), "--served-model-name": MODEL_NAME, "--host": "127.0.0.1", "--port": str(port)}
    words = [*command(container, python, given), *runtime_arguments(policy_file, exporter_port)]
    log = folder / "leader.log"
    return VllmServer(port, log, start(words, log, server_environment(python)), exporter_port)


async def test_one_engine_serves_from_two_nodes_under_our_scheduler(
    vllm_python: Path, model: Path, tmp_path: Path
) -> None:
    containers = rendered(model)
    with worker(containers["worker"], vllm_python, model, tmp_path) as second:
        with running([leader(containers["leader"], vllm_python, model, tmp_path)]) as (first,):
            (answer,) = await burst(first, [[FIRST_WORD + index for index in range(100)]], max_tokens=4)
            assert len(answer.tokens) == 4
            assert first.runtime_metrics()["prefleet_policy_generation"] == 7
            assert second.poll() is None, log_tail(tmp_path / "worker.log")
            assert "rank 1" in (tmp_path / "worker.log").read_text()
        second.terminate()  # as a kubelet does once the worker's preStop has seen the leader end
        second.wait(timeout=STOP_TIMEOUT_S)
