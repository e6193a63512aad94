"""The simulated engine against the real vLLM Scheduler: the same jobs, the same step costs, both on a virtual clock.

Every request gets its first and its last token at the same moment in both, to a nanosecond (what floating point leaves
of it), under every policy, load, kind of node and set of step costs, with room in the KV cache and without. Whatever is
told of a run, ratios and rankings among them, is then the same too.

Where the cache is full FCFS is the runtime's, too: under stock vLLM's a head without room lets nobody pass.

Left out: prefixes that requests share (so what was preempted finds nothing of its own), speculative decoding,
asynchronous scheduling, and what one policy file changes into another while requests wait.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
from prefleet_runtime.sim.fleet import FleetShape
from prefleet_runtime.sim.state import Limits

from tests.benchmarks.policies.cases import CONTENDERS, FCFS, LOADS, SUSTAINED, Contender, Job, burst, sustained
from tests.benchmarks.policies.simulated import STOCK, Served, shape_of, simulate
from tests.benchmarks.policies.virtual import COSTS, Costs, VirtualEngine
from tests.vllm.inproc.engine import BLOCK

OUTPUT_TOKENS = {"mixed": 32, "prefill": 1}
REQUESTS = 40
SEED = 1
SAME_S = 1e-9

OURS = tuple(c for c in CONTENDERS if c.name == FCFS or c.policy is not None)
"""The ways to schedule that the simulated engine knows: not the engine's own settings."""


class Fate(Protocol):
    """What both engines tell of a request."""

    @property
    def job(self) -> Job: ...
    @property
    def ttft_s(self) -> float: ...
    @property
    def e2e_s(self) -> float: ...


def shape(costs: Costs) -> FleetShape:
    """The simulated pod with the settings of the real scheduler, which keeps one block for itself."""
    return shape_of(costs.step, Limits(costs.budget, costs.max_seqs, costs.kv_tokens - BLOCK))


def simulated(contender: Contender, costs: Costs, jobs: Sequence[Job]) -> list[Served]:
    return simulate(jobs, contender.policy_on(costs.name) or STOCK, shape(costs))


def jobs_of(load: str, node: str, costs: Costs) -> list[Job]:
    """A small load of the benchmark's kind."""
    rng = random.Random(f"{load} {SEED}")
    output = OUTPUT_TOKENS[node]
    if load not in SUSTAINED:
        return burst(output, load == "interleaved", rng)
    everything = sustained(output, 1e9, REQUESTS, random.Random(SEED))
    capacity = REQUESTS / max(served.e2e_s for served in simulate(everything, STOCK, shape(costs)))
    return sustained(output, SUSTAINED[load] * capacity, REQUESTS, rng)


def moments(fates: Sequence[Fate]) -> list[tuple[float, float]]:
    """When each request had its first and its last token, seconds from its arrival."""
    return [(fate.ttft_s, fate.e2e_s) for fate in fates]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("node", OUTPUT_TOKENS)
def test_every_request_is_answered_at_the_same_moments(
    node: str, costs: str, load: str, model: Path, policy_file: Path
) -> None:
    jobs = jobs_of(load, node, COSTS[costs])
    for contender in OURS:
        if node not in contender.nodes:
            continue
        real = VirtualEngine(contender, COSTS[costs], model, policy_file).run(jobs)
        told = simulated(contender, COSTS[costs], jobs)
        for number, (theirs, ours) in enumerate(zip(moments(real), moments(told), strict=True)):
            assert ours == pytest.approx(theirs, abs=SAME_S), (contender.name, number)


GOVERNED_FCFS = Contender(FCFS, {"policy": "fcfs"})


@pytest.mark.parametrize("kv_tokens", [6_000, 10_000])
def test_so_it_is_where_the_kv_cache_is_full(kv_tokens: int, model: Path, policy_file: Path) -> None:
    roomy = COSTS["cpu"]
    costs = replace(roomy, kv_tokens=kv_tokens)
    jobs = jobs_of("sustained_110", "mixed", roomy)
    for contender in (GOVERNED_FCFS, *(each for each in OURS if each.name != FCFS)):
        told = simulated(contender, costs, jobs)
        assert moments(told) != moments(simulated(contender, roomy, jobs)), "the cache is not full"
        real = VirtualEngine(contender, costs, model, policy_file).run(jobs)
        for number, (theirs, ours) in enumerate(zip(moments(real), moments(told), strict=True)):
            assert ours == pytest.approx(theirs, abs=SAME_S), (contender.name, number)
