"""The virtual half: the real vLLM Scheduler under a virtual clock, its steps costed by a line, its answers made up.

Run inside the vLLM environment by `python -m tests.benchmarks.policies` as a worker: it reads one series (a node,
step costs, a seed) a line, measures the capacity first and then every load under every contender, and prints one
JSON line for each run. Exact: the same case gives the same figures on any machine.

The clock moves by a step's cost and otherwise to the next arrival; what arrives during a step is seen after it, as by
a synchronous engine. The step costs are
- `accelerator`: the simulated engine's default, Llama-3.1-8B on an A100 (sources in sim/cost_model.py);
- `cpu`: the runtime's own fit (`prefleet_step_cost_seconds`) after 1,160 steps of the engine tests' server on two idle
  cores, serving bursts of 4 prompts of 4,000 tokens and 2 to 80 of 64 with 128 output tokens. Standard errors: 0.8 ms
  of the fixed 5.7 ms, 1% a prefill token, 5% a decode token, 1% a pair, 11% a token of decode context.

Left out: the time that scheduling itself takes, detokenization, the network, and overlapping steps.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefleet_runtime.sim.cost_model import DEFAULT_PROFILE, StepCost
from prefleet_runtime.stage import StepWork
from prefleet_runtime.vllm.steps import Clock, work_of
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

from tests.benchmarks.policies.cases import CONTENDERS, FCFS, LOADS, NODES, SUSTAINED, Contender, Job, burst, sustained
from tests.benchmarks.policies.figures import Outcome, figures_of
from tests.support.tiny_model import write_tiny_model
from tests.vllm.inproc.engine import BLOCK, TOKEN, Setup, make_request

EPOCH_S = 1_000_000.0
"""The virtual clock's start: arrival times are on the axis of Unix time, where 0 might mean "not told"."""


@dataclass(frozen=True)
class Costs:
    """What a step costs, and the engine's settings that go with it. Tokens; `step` in seconds."""

    name: str
    step: StepCost
    budget: int
    kv_tokens: int
    max_seqs: int = 256


COSTS = {
    "cpu": Costs("cpu", StepCost(5.7e-3, 1.46e-4, 2.0e-4, 4.1e-8, 4.4e-7), budget=1024, kv_tokens=2**18),
    # 2,048 is vLLM's own default of --max-num-batched-tokens on an A100.
    "accelerator": Costs("accelerator", DEFAULT_PROFILE.cost, budget=2048, kv_tokens=DEFAULT_PROFILE.kv_cache_tokens),
}


@dataclass(frozen=True)
class Series:
    """What one worker does in one go."""

    node: str
    costs: str
    seed: int
    requests: int
    loads: tuple[str, ...] = LOADS
    policies: tuple[str, ...] = tuple(contender.name for contender in CONTENDERS)


class VirtualEngine:
    """Drives a scheduler through a list of jobs. `now` is in seconds since the start."""

    def __init__(self, contender: Contender, costs: Costs, model: Path, policy_file: Path) -> None:
        self.now = 0.0
        self._cost = costs.step
        self._by_length = contender.by_length
        self._scheduler = self._make(contender, costs, model, policy_file)
        self._outcomes: dict[str, Outcome] = {}

    def run(self, jobs: list[Job]) -> list[Outcome]:
        """Serve all jobs, whose arrivals ascend, to their ends."""
        arrived = 0
        while arrived < len(jobs) or self._scheduler.has_unfinished_requests():
            if not self._scheduler.has_unfinished_requests():
                self.now = max(self.now, jobs[arrived].at_s)
            while arrived < len(jobs) and jobs[arrived].at_s <= self.now:
                self._add(str(arrived), jobs[arrived])
                arrived += 1
            self._step()
        self._scheduler.shutdown()
        return list(self._outcomes.values())

    def _make(self, contender: Contender, costs: Costs, model: Path, policy_file: Path) -> Scheduler:
        setup = Setup(
            model,
            policy_file,
            blocks=costs.kv_tokens // BLOCK,
            budget=costs.budget,
            max_seqs=costs.max_seqs,
            scheduling_policy="priority" if contender.by_length else "fcfs",
            chunk_tokens=costs.budget // contender.chunk_divisor if contender.chunk_divisor else 0,
        )
        policy = contender.policy_on(costs.name)
        if policy is None:
            return setup.stock()
        policy_file.write_text(policy.to_json())
        return setup.scheduler(clock=Clock(wall=lambda: EPOCH_S + self.now, steady=lambda: self.now))

    def _add(self, name: str, job: Job) -> None:
        self._outcomes[name] = Outcome(job)
        prompt = [int(name) * 10_000 + position for position in range(job.prompt_tokens)]
        priority = job.prompt_tokens if self._by_length else 0
        request = make_request(name, prompt, job.output_tokens, arrival_time=EPOCH_S + job.at_s, priority=priority)
        self._scheduler.add_request(request)

    def _step(self) -> None:
        scheduler = self._scheduler
        output = scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        if not names:
            raise RuntimeError(f"the scheduler stands still at {self.now:.3f} s: {list(scheduler.requests)}")
        self.now += self._seconds(work_of(output, scheduler.requests))
        answers: list[list[int]] = []
        for name in names:
            answers.append([] if scheduler.requests[name].is_prefill_chunk else [TOKEN])
            if answers[-1]:
                self._outcomes[name].tokens_s.append(self.now)
        result = ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, answers)
        scheduler.update_from_output(output, result)

    def _seconds(self, work: StepWork) -> float:
        return self._cost.step_s(work.prefill_tokens, work.decode_tokens, work.attention_pairs, work.decode_context)


def runs(series: Series, model: Path, policy_file: Path) -> Iterator[dict[str, Any]]:
    """Every load under every contender, FCFS's own first."""
    costs, output_tokens = COSTS[series.costs], NODES[series.node]
    contenders = [c for c in CONTENDERS if c.name in series.policies and series.node in c.nodes]
    stock = next(contender for contender in CONTENDERS if contender.name == FCFS)

    def serve(contender: Contender, jobs: list[Job]) -> list[Outcome]:
        return VirtualEngine(contender, costs, model, policy_file).run(jobs)

    everything = sustained(output_tokens, 1e9, series.requests, random.Random(series.seed))
    capacity = series.requests / max(outcome.tokens_s[-1] for outcome in serve(stock, everything))
    for load in series.loads:
        rng = random.Random(f"{load} {series.seed}")
        if load in SUSTAINED:
            jobs = sustained(output_tokens, SUSTAINED[load] * capacity, series.requests, rng)
        else:
            jobs = burst(output_tokens, load == "interleaved", rng)
        for contender in contenders:
            figures = figures_of(serve(contender, jobs))
            yield {"load": load, "policy": contender.name, "figures": figures}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder) / "model")
        for line in sys.stdin:
            series = Series(**json.loads(line))
            for run in runs(series, model, Path(folder) / "policy.json"):
                print(json.dumps({"node": series.node, "costs": series.costs, "seed": series.seed, **run}), flush=True)


if __name__ == "__main__":
    main()
