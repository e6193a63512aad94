"""The real servers of the wall-clock half: one for all policies of the runtime, one for each setting of the engine.

The governed server changes its policy by its file, and the change is waited for in its metrics. All servers are up
at once (about 2.5 GB each; an idle engine uses no CPU): stock figures and ours then come from the same minutes.

The model is smaller than that of the engine tests, so that a burst takes ten to fifteen seconds on two cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prefleet_runtime.contract import RuntimePolicy

from tests.benchmarks.policies.cases import CONTENDERS, FCFS, Contender
from tests.support.tiny_model import write_tiny_model
from tests.support.vllm_server import VllmServer, launch, stop, wait_until_ready

BUDGET = 1024
POLICY_TIMEOUT_S = 30
MODEL = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
ARGUMENTS = (
    *("--max-num-batched-tokens", str(BUDGET), "--max-num-seqs", "256"),
    # With the worker in a process of its own the engine spins while it waits for it, which leaves the client no core.
    *("--distributed-executor-backend", "uni"),
    # 3 KiB a token: room for a whole burst and to spare.
    *("--kv-cache-memory-bytes", str(512 * 2**20)),
)
# The CPU platform overrules "uni" where this is exactly "1", its default; elsewhere any other number means the same.
VARIABLES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "2"}


@dataclass
class Fleet:
    """Running servers by the name of their contender; `governed` serves every contender with a policy."""

    policy_file: Path
    own: dict[str, VllmServer] = field(default_factory=dict)
    governed: VllmServer | None = None
    generation: int = 1

    @property
    def stock(self) -> VllmServer:
        return self.own[FCFS]

    def server(self, contender: Contender) -> VllmServer:
        """The contender's server, which runs its policy when this returns."""
        policy = contender.policy_on("cpu")
        if policy is None:
            return self.own[contender.name]
        if self.governed is None:
            raise RuntimeError(f"no server was started that can run {contender.name}")
        self.generation += 1
        _replace(self.policy_file, policy.model_copy(update={"generation": self.generation}))
        _wait_for_generation(self.governed, self.generation)
        return self.governed


@contextmanager
def started(python: Path, folder: Path, names: Iterable[str]) -> Iterator[Fleet]:
    """The servers that these contenders need, and the stock one; all are stopped at the end, or if one fails."""
    needed = [c for c in CONTENDERS if c.name in {FCFS, *names}]
    model = write_tiny_model(folder / "model", **MODEL)
    fleet = Fleet(folder / "policy.json")
    with ExitStack() as stack:

        def start(name: str, *arguments: str, policy_file: Path | None = None) -> VllmServer:
            log = folder / f"{name}.log"
            server = launch(python, model, log, policy_file, (*ARGUMENTS, *arguments), VARIABLES)
            stack.callback(stop, server)
            return server

        for contender in needed:
            if contender.policy is None:
                fleet.own[contender.name] = start(contender.name, *_arguments(contender))
        if any(contender.policy is not None for contender in needed):
            _replace(fleet.policy_file, RuntimePolicy(generation=fleet.generation))
            fleet.governed = start("governed", policy_file=fleet.policy_file)
        for server in (*fleet.own.values(), *filter(None, [fleet.governed])):
            wait_until_ready(server)
        yield fleet


def _arguments(contender: Contender) -> list[str]:
    arguments = []
    if contender.by_length:
        arguments += ["--scheduling-policy", "priority"]
    if contender.chunk_divisor:
        arguments += ["--long-prefill-token-threshold", str(BUDGET // contender.chunk_divisor)]
    return arguments


def _replace(file: Path, policy: RuntimePolicy) -> None:
    """In one step, as a kubelet does."""
    replacement = file.with_suffix(".new")
    replacement.write_text(policy.to_json())
    os.replace(replacement, file)


def _wait_for_generation(server: VllmServer, generation: int) -> None:
    label = f'generation="{generation}"'
    deadline = time.monotonic() + POLICY_TIMEOUT_S
    while not any(name.startswith("prefleet_policy_info{") and label in name for name in server.runtime_metrics()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the engine did not take policy generation {generation} within {POLICY_TIMEOUT_S} s")
        time.sleep(0.05)
