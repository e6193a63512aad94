"""Two real engines on one tiny model: the stock scheduler beside ours, both resident, never loaded at once.

They last for a module: engines of several modules together would not fit in the memory of a small machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from prefleet_runtime.contract import RuntimePolicy

from tests.support.tiny_model import write_tiny_model
from tests.support.vllm_env import ensure_vllm_env
from tests.support.vllm_server import VllmServer, launch, running

# They import vllm and sglang: test_scheduler.py and test_sglang.py run them inside the vLLM environment.
collect_ignore = ["inproc", "sglang"]

WAIT_TIMEOUT_S = 90
POLL_S = 0.02

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout_s: float = WAIT_TIMEOUT_S) -> T:
    """Poll until the condition holds, and return what it answered."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"still {answer!r} after {timeout_s} s"
        time.sleep(POLL_S)
    return answer


@dataclass
class Governed:
    """The engine that runs our scheduler, and the policy file that it follows."""

    server: VllmServer
    policy_file: Path
    generation: int

    def write(self, text: str) -> None:
        """Replace the policy file in one step, as a kubelet does."""
        replacement = self.policy_file.with_suffix(".new")
        replacement.write_text(text)
        os.replace(replacement, self.policy_file)

    def next_policy(self, **fields: Any) -> RuntimePolicy:
        """A policy of the next generation."""
        self.generation += 1
        return RuntimePolicy(generation=self.generation, **fields)

    def set_policy(self, **fields: Any) -> float:
        """Change the policy and wait until the engine reports it; how long that took, in seconds."""
        policy = self.next_policy(**fields)
        began = time.monotonic()
        self.write(policy.to_json())
        self.wait_for("prefleet_policy_generation", policy.generation)
        return time.monotonic() - began

    def metric(self, name: str) -> float:
        return self.server.runtime_metrics().get(name, 0.0)

    def dispatches(self) -> dict[str, float]:
        """Dispatches by lane."""
        metrics = self.server.runtime_metrics()
        prefix = 'prefleet_dispatches_total{lane="'
        return {name[len(prefix) : -2]: value for name, value in metrics.items() if name.startswith(prefix)}

    def waiting(self) -> float:
        """Requests that wait, over all lanes."""
        metrics = self.server.runtime_metrics()
        return sum(value for name, value in metrics.items() if name.startswith("prefleet_waiting_requests"))

    def wait_for(self, name: str, value: float) -> None:
        """Poll the exporter until a sample has a value."""
        wait_until(lambda: self.metric(name) == value)


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    return ensure_vllm_env(lambda line: print(line, flush=True))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Deep enough that prefill, not the arrival of 26 HTTP requests on a busy machine, is what a burst waits for.
    return write_tiny_model(tmp_path_factory.mktemp("model"), num_hidden_layers=10)


@pytest.fixture(scope="module")
def engines(
    vllm_python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[VllmServer, Governed]]:
    folder = tmp_path_factory.mktemp("vllm")
    policy_file = folder / "policy.json"
    policy_file.write_text(RuntimePolicy(generation=1).to_json())
    launched = [
        launch(vllm_python, model, folder / "stock.log"),
        launch(vllm_python, model, folder / "governed.log", policy_file),
    ]
    with running(launched) as (stock, governed):
        yield stock, Governed(governed, policy_file, generation=1)


@pytest.fixture(scope="module")
def stock(engines: tuple[VllmServer, Governed]) -> VllmServer:
    return engines[0]


@pytest.fixture(scope="module")
def governed(engines: tuple[VllmServer, Governed]) -> Governed:
    return engines[1]
