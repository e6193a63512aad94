"""The prefill that a step may carry so that decodes do not stall: known costs, unknown ones, and what is left to go."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefleet_runtime.contract import PolicyName, RuntimePolicy, StallBudgetStage
from prefleet_runtime.stage import Arbiter, Prefill, StepView, StepWork, chunk_pairs
from prefleet_runtime.stage.stall_budget import FIRST_TRY_TOKENS, LEAST_TOKENS

BUDGET = 2048
FIXED_S, TOKEN_S, DECODE_S, PAIR_S, KEY_S = 0.010, 50e-6, 100e-6, 5e-9, 10e-9
VIEW: dict[str, Any] = {"budget": BUDGET, "decodes": 20, "decode_tokens": 20, "decode_context": 20 * 500}


def seconds_of(work: StepWork) -> float:
    tokens = TOKEN_S * work.prefill_tokens + DECODE_S * work.decode_tokens
    return FIXED_S + tokens + PAIR_S * work.attention_pairs + KEY_S * work.decode_context


def arbiter(max_stall_ms: float, **more: Any) -> Arbiter:
    return Arbiter(
        RuntimePolicy(generation=1, stage=StallBudgetStage(type="stall_budget", max_stall_ms=max_stall_ms), **more)
    )


def taught(max_stall_ms: float, noise: float = 0.0, **more: Any) -> Arbiter:
    rule, random = arbiter(max_stall_ms, **more), Random(1)
    for _ in range(300):
        prefill, decodes = random.choice([0, random.randint(1, BUDGET)]), random.randint(0, 64)
        work = StepWork(prefill, decodes, chunk_pairs(random.randint(0, 4000), prefill), 500 * decodes)
        rule.observe(work, seconds_of(work) * (1 + random.gauss(0, noise)))
    return rule


def cost_of(step: StepView, tokens: int) -> float:
    first = next(iter(step.shorts))
    chunk = min(tokens, first.tokens)
    pairs = chunk_pairs(first.context, chunk) + chunk_pairs(0, tokens - chunk)
    return seconds_of(StepWork(tokens, step.decode_tokens, pairs, step.decode_context))


@pytest.mark.parametrize("max_stall_ms", [25, 50, 80])
@pytest.mark.parametrize("context", [0, 30_000], ids=["a first chunk", "a chunk after much context"])
def test_a_known_cost_gives_the_largest_prefill_within_the_limit(max_stall_ms: float, context: int) -> None:
    step = StepView(shorts=[Prefill(60_000, context)], **VIEW)
    tokens = taught(max_stall_ms).plan(step).prefill_tokens
    assert tokens is not None
    assert cost_of(step, tokens) <= max_stall_ms / 1000 * 1.001
    assert cost_of(step, tokens + BUDGET // 50) > max_stall_ms / 1000


def test_what_is_not_sure_is_kept_away_from_the_limit() -> None:
    step = StepView(shorts=[Prefill(60_000)], **VIEW)
    sure, unsure = taught(50).plan(step).prefill_tokens, taught(50, noise=0.1).plan(step).prefill_tokens
    assert sure is not None
    assert unsure is not None
    assert LEAST_TOKENS < unsure < 0.95 * sure


def test_where_all_fits_or_nothing_decodes_nothing_is_cut() -> None:
    assert taught(1000).plan(StepView(shorts=[Prefill(60_000)], **VIEW)).prefill_tokens is None
    idle = StepView(budget=BUDGET, shorts=[Prefill(60_000)])
    assert arbiter(1).plan(idle).prefill_tokens is None


def test_prefill_goes_on_where_decodes_alone_take_too_long() -> None:
    rule = taught(1)
    assert rule.plan(StepView(shorts=[Prefill(60_000)], **VIEW)).prefill_tokens == LEAST_TOKENS
    assert rule.counters.stall_limited == 1


def test_an_unknown_cost_is_tried_from_small_to_large_and_back() -> None:
    rule = arbiter(50)
    step = StepView(shorts=[Prefill(60_000)], **VIEW)
    assert rule.plan(step).prefill_tokens == FIRST_TRY_TOKENS
    rule.observe(StepWork(FIRST_TRY_TOKENS, 20, 0, 10_000), 0.02)
    assert rule.plan(step).prefill_tokens == 2 * FIRST_TRY_TOKENS
    rule.observe(StepWork(2 * FIRST_TRY_TOKENS, 20, 0, 10_000), 0.2)  # four times too long
    assert rule.plan(step).prefill_tokens == int(2 * FIRST_TRY_TOKENS * 0.9 / 4)
    assert rule.counters.stall_unsure == rule.counters.stall_limited == 3


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("max_stall_ms", [20, 40, 90])
def test_a_closed_loop_from_nothing_keeps_the_limit(max_stall_ms: float, noise: float) -> None:
    """Every step of a node that learns while it serves; at most one in twenty may be over, none by half."""
    rule, random = arbiter(max_stall_ms), Random(5)
    context, over, prefilled = 0, 0, 0
    for _ in range(1000):
        step = StepView(shorts=[Prefill(16_000 - context, context)], **VIEW)
        allowed = rule.plan(step).prefill_tokens
        tokens = min(step.room if allowed is None else allowed, 16_000 - context)
        work = StepWork(tokens, 20, chunk_pairs(context, tokens), step.decode_context)
        seconds = seconds_of(work) * (1 + random.gauss(0, noise))
        rule.observe(work, seconds)
        over += seconds > max_stall_ms / 1000
        assert seconds <= 1.5 * max_stall_ms / 1000
        context = (context + tokens) % 16_000
        prefilled += tokens
    assert over <= 50
    assert prefilled >= 1000 * LEAST_TOKENS * 2, "the limit was kept by doing next to nothing"


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 64), st.integers(0, 3), st.integers(0, 3))
def test_a_cut_step_is_shared_like_any_other(decodes: int, shorts: int, longs: int) -> None:
    rule = taught(30, policy=PolicyName.SHORT_REQUEST_FIRST, threshold=300)
    step = StepView(
        budget=BUDGET,
        decodes=decodes,
        decode_tokens=decodes,
        shorts=[Prefill(200)] * shorts,
        longs=[Prefill(9000)] * longs,
    )
    budget = rule.plan(step)
    if budget.prefill_tokens is None:
        return
    assert LEAST_TOKENS <= budget.prefill_tokens < step.room
    assert budget.in_order
    if shorts and longs:
        assert budget.chunk_tokens is not None
        assert 0 < budget.chunk_tokens <= budget.prefill_tokens
        assert budget.running_longs == 1
