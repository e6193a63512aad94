"""The step budget in the simulated engine, on a virtual clock: what it gains under load, and that nobody is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefleet_runtime.contract import LongChunk, PolicyName, RuntimePolicy, StallBudgetStage, TptStage
from prefleet_runtime.queueing import PolicyQueue, make_queue
from prefleet_runtime.sim.cost_model import EngineProfile, StepCost
from prefleet_runtime.sim.engine import Engine, PlainQueue
from prefleet_runtime.sim.state import Limits, SimRequest
from prefleet_runtime.stage import Arbiter

# As on a CPU: a token of prefill costs 0.1 ms and the fixed part little.
PROFILE = EngineProfile("cpu-like", StepCost(0.005, 1e-4, 2e-4, 5e-9), kv_cache_tokens=0, kv_transfer_token_s=0.0)
LONG, SHORT = 4000, 64


@dataclass
class Run:
    """A finished run: its requests, every gap between two tokens of one request, and what was counted."""

    requests: Sequence[SimRequest]
    arbiter: Arbiter
    gaps: Sequence[float]
    ended_s: float

    def ttft_p95(self, prompt: int) -> float:
        waits = sorted(
            r.first_token_s - r.arrival_s for r in self.requests if r.prompt_tokens == prompt and r.first_token_s
        )
        return waits[int(0.95 * len(waits))]


def policy(long_chunk: LongChunk = LongChunk.YIELD, **more: Any) -> RuntimePolicy:
    shared: dict[str, Any] = {"policy": PolicyName.SHORT_REQUEST_FIRST, "threshold": 512, "long_max_wait_ms": 5000}
    return RuntimePolicy(generation=1, long_chunk=long_chunk, **(shared | more))


def run(settings: RuntimePolicy, requests: Sequence[SimRequest], budget: int = 1024) -> Run:
    queue: PolicyQueue[SimRequest] = make_queue(settings)
    arbiter = Arbiter(settings)
    engine = Engine(PROFILE, Limits(budget, max_num_seqs=64), PlainQueue(queue, arbiter))
    coming = sorted(requests, key=lambda request: request.arrival_s, reverse=True)
    now, last, gaps = 0.0, dict[str, float](), list[float]()
    while coming or engine.unfinished:
        while coming and coming[-1].arrival_s <= now:
            engine.submit(coming.pop())
        plan = engine.schedule(now)
        engine.check_integrity()
        if plan is None:
            assert coming, "requests are left and nothing is scheduled"
            now = coming[-1].arrival_s
            continue
        assert plan.prefill_tokens + plan.decode_tokens <= budget
        now += plan.cost_s
        arbiter.observe(plan.work, plan.cost_s)
        for request in engine.finish(plan, now).emitted:
            if request.request_id in last:
                gaps.append(now - last[request.request_id])
            last[request.request_id] = now
    assert engine.kv.free == engine.kv.total
    assert all(request.generated == request.max_tokens for request in requests)
    return Run(requests, arbiter, gaps, now)


def poisson(seed: int, rate: float, count: int = 240, output: int = 32) -> list[SimRequest]:
    random, at = Random(seed), 0.0
    requests = []
    for number in range(count):
        at += random.expovariate(rate)
        requests.append(SimRequest(f"r{number}", LONG if random.random() < 0.25 else SHORT, output, at))
    return requests


def capacity() -> float:
    """Requests per second of a node that never idles."""
    ended = run(RuntimePolicy(generation=1), poisson(0, 1e9)).ended_s
    return 240 / ended


@pytest.mark.parametrize("seed", [1, 2])
def test_yield_lowers_short_waits_at_90_percent_of_capacity_and_costs_no_throughput(seed: int) -> None:
    rate = 0.9 * capacity()
    modes = {mode: run(policy(mode), poisson(seed, rate)) for mode in (LongChunk.OFF, LongChunk.YIELD)}
    fcfs = run(RuntimePolicy(generation=1), poisson(seed, rate))
    off, yielding = modes[LongChunk.OFF], modes[LongChunk.YIELD]
    assert yielding.ttft_p95(SHORT) < 0.8 * off.ttft_p95(SHORT)
    assert yielding.ttft_p95(SHORT) < 0.5 * fcfs.ttft_p95(SHORT)
    assert yielding.ttft_p95(LONG) < 1.12 * fcfs.ttft_p95(LONG)
    assert yielding.ended_s < 1.02 * fcfs.ended_s


def test_a_stall_budget_keeps_the_gaps_of_decodes_short() -> None:
    requests = poisson(3, 0.7 * capacity())
    stock = run(RuntimePolicy(generation=1), poisson(3, 0.7 * capacity()))
    limited = run(policy(stage=StallBudgetStage(type="stall_budget", max_stall_ms=50)), requests)
    assert p99(stock.gaps) > 0.1
    assert p99(limited.gaps) <= 0.052
    assert limited.arbiter.counters.stall_limited > 0


def p99(gaps: Sequence[float]) -> float:
    return sorted(gaps)[int(0.99 * len(gaps))]


def test_tpt_puts_steps_of_decode_alone_between_prefills() -> None:
    stage = TptStage(type="tpt", prefill_ms_per_request=30, decode_ms_per_request=1, max_batch=64)
    limited = run(policy(stage=stage), poisson(4, 0.5 * capacity()))
    assert limited.arbiter.counters.decode_only > 0


def test_a_long_goes_on_while_shorts_never_end() -> None:
    stream = [SimRequest(f"short-{number}", 400, 1, number * 0.045) for number in range(200)]
    long = SimRequest("long", 8000, 1, 0.0)
    run(policy(LongChunk.CAP, long_max_wait_ms=100), [long, *stream])
    assert long.first_token_s is not None
    assert long.first_token_s < stream[-1].arrival_s


STAGES = [
    None,
    TptStage(type="tpt", prefill_ms_per_request=90, decode_ms_per_request=1, max_batch=8),
    StallBudgetStage(type="stall_budget", max_stall_ms=10),
]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(LongChunk)),
    st.sampled_from(STAGES),
    st.lists(st.tuples(st.sampled_from([1, 40, 500, 513, 3000]), st.integers(1, 5), st.integers(0, 30)), max_size=25),
    st.sampled_from([16, 100, 1024]),
    st.sampled_from([None, 1, 5000]),
)
def test_whatever_comes_all_is_served(
    mode: LongChunk,
    stage: TptStage | StallBudgetStage | None,
    load: list[tuple[int, int, int]],
    budget: int,
    chunk: int | None,
) -> None:
    more = {} if stage is None else {"stage": stage}
    requests = [SimRequest(f"r{i}", prompt, output, at / 10) for i, (prompt, output, at) in enumerate(load)]
    run(policy(mode, long_chunk_tokens=chunk, **more), requests, budget)
