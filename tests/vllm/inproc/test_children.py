"""A request for several answers (n > 1): vLLM's front end sends as many requests with the same prompt."""

from __future__ import annotations

from typing import Any

import pytest
from prefleet_runtime.queueing import Lane

from tests.vllm.inproc.conftest import FIRST_COME, SHORT_FIRST, Start
from tests.vllm.inproc.engine import BLOCK, Engine
from tests.vllm.inproc.test_policies import ALL

PROMPT = list(range(20 * BLOCK))


def add_children(engine: Engine, count: int, max_tokens: int = 4) -> list[str]:
    """Requests named as vLLM names them, whose prompts are all cached once the first is computed but for a block."""
    names = [f"{number}_parent" for number in range(count)]
    for name in names:
        engine.add(name, len(PROMPT), prefix=PROMPT, max_tokens=max_tokens)
    return names


def test_only_the_first_is_computed_also_where_all_go_in_one_step(start: Start) -> None:
    engine = start(FIRST_COME)
    first, *others = add_children(engine, 4)
    engine.step()
    assert engine.tokens == {first: len(PROMPT)} | dict.fromkeys(others, BLOCK)
    engine.run()
    cached = [request.cached_tokens for request in engine.scheduler.prefleet.governor.recent.latest()]
    assert sorted(cached) == [0] + 3 * [len(PROMPT) - BLOCK]


def test_the_others_become_short_as_the_first_is_computed(start: Start) -> None:
    """Steps of 128 tokens: after two of them 64 of 320 are left to the others, which go before a stranger."""
    engine = start(SHORT_FIRST, budget=128)
    first, *others = add_children(engine, 3)
    engine.add("stranger", 320)
    assert engine.waiting_in(Lane.LONG) == 4
    engine.run()
    assert engine.first_scheduled == [first, *others, "stranger"]
    assert engine.lanes() == {"long": 2, "short": 2}


@ALL
@pytest.mark.parametrize("budget", [512, 100], ids=["in steps that hold a prompt", "in steps that do not"])
def test_children_aborted_one_by_one_take_nothing_from_the_last(
    start: Start, policy: dict[str, Any], budget: int
) -> None:
    engine = start(policy, budget=budget)
    *aborted, last = add_children(engine, 4, max_tokens=12)
    engine.add("stranger", 320)
    survivor = engine.scheduler.requests[last]
    for name in aborted:
        engine.step()
        engine.abort(name)
        assert last in engine.scheduler.requests
    engine.run()
    assert survivor.num_output_tokens == 12
    assert {last, "stranger"} <= set(engine.finished)
