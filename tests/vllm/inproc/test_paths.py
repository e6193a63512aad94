"""The roads off the straight one: preemption, a full KV cache, aborts, grammars."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from prefleet_runtime.queueing import Lane
from prefleet_runtime.queueing.base import MAX_BYPASSES
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from tests.vllm.inproc.conftest import FIRST_COME, SHORT_FIRST, Start
from tests.vllm.inproc.engine import BLOCK, Engine


class AnyGrammar(StructuredOutputGrammar):
    """A compiled grammar that accepts every token."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens

    def rollback(self, num_tokens: int) -> None:
        """It has no state."""

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        """Nothing is masked."""

    def is_terminated(self) -> bool:
        return False

    def reset(self) -> None:
        """It has no state."""


def add_with_pending_grammar(engine: Engine, name: str, tokens: int) -> Future[Any]:
    """Add a request with structured output; its grammar is what the answered future brings."""
    request = engine.add(name, tokens, grammar=True)
    compiling: Future[Any] = Future()
    request.structured_output_request.grammar = compiling
    return compiling


def test_preempted_requests_come_back_first_and_all_finish(start: Start) -> None:
    engine = start(blocks=21)
    engine.add("a", 140, max_tokens=60)
    engine.add("b", 140, max_tokens=60)
    engine.run()
    assert sorted(engine.finished) == ["a", "b"]
    assert engine.lanes()["immediate"] >= 1
    assert engine.lanes()["long"] == 2


def fill_kv_cache(engine: Engine) -> None:
    """One running request that holds 40 of 60 blocks and decodes for a while."""
    engine.add("holder", 38 * BLOCK, max_tokens=2 * BLOCK)
    while engine.scheduler.requests["holder"].num_output_tokens == 0:
        engine.step()


def test_a_head_without_room_steps_aside_for_smaller_ones(start: Start) -> None:
    engine = start(FIRST_COME, blocks=61, budget=1024)
    fill_kv_cache(engine)
    engine.add("too big for now", 50 * BLOCK)
    engine.add("small", BLOCK)
    engine.step()
    assert "small" not in engine.first_scheduled
    engine.step()
    assert "small" in engine.first_scheduled
    assert engine.counters.bypasses == 1
    engine.run()
    assert engine.first_scheduled == ["holder", "small", "too big for now"]


def test_a_head_steps_aside_a_bounded_number_of_times(start: Start) -> None:
    engine = start(FIRST_COME, blocks=61, budget=1024)
    fill_kv_cache(engine)
    engine.add("too big for now", 50 * BLOCK)
    for number in range(2 * MAX_BYPASSES):
        engine.add(f"small-{number}", BLOCK, max_tokens=1)
        engine.step()
    assert engine.counters.bypasses == MAX_BYPASSES
    assert f"small-{2 * MAX_BYPASSES - 1}" not in engine.first_scheduled
    engine.run()


def test_a_head_is_never_hidden_from_an_engine_in_which_nothing_runs(start: Start) -> None:
    engine = start(FIRST_COME, blocks=61, budget=1024)
    fill_kv_cache(engine)
    engine.add("too big for now", 50 * BLOCK)
    engine.add("small", 12 * BLOCK)
    engine.step()
    engine.abort("holder")
    engine.step()
    engine.run()
    assert engine.first_scheduled[:2] == ["holder", "too big for now"]


def test_an_abort_of_a_waiting_request_leaves_nothing_behind(start: Start) -> None:
    engine = start(budget=64)
    engine.add("long", 300)
    engine.add("other", 300)
    engine.step()
    engine.abort("other")
    assert engine.waiting == 0
    engine.run()
    assert engine.lanes() == {"long": 1}


def test_aborts_may_be_repeated_and_may_name_unknown_requests(start: Start) -> None:
    engine = start()
    engine.add("a", 40)
    engine.abort("a", "a", "never seen")
    engine.abort("a")
    engine.add("b", 40)
    engine.step()
    engine.abort("b")
    engine.abort("b")
    engine.run()
    engine.add("a", 40)
    engine.run()
    assert engine.first_scheduled == ["b", "a"]


def waits(engine: Engine) -> None:
    engine.add("runs", 900, max_tokens=9)
    engine.step()
    engine.add("aborted", 900)
    engine.step()


def is_in_prefill(engine: Engine) -> None:
    engine.add("aborted", 900)
    engine.step()
    assert engine.scheduler.requests["aborted"].is_prefill_chunk


def decodes(engine: Engine) -> None:
    engine.add("aborted", 40, max_tokens=30)
    while engine.scheduler.requests["aborted"].num_output_tokens < 2:
        engine.step()


def was_preempted(engine: Engine) -> None:
    decodes(engine)
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)


@pytest.mark.parametrize(
    "state", [waits, is_in_prefill, decodes, was_preempted], ids=lambda state: state.__name__.replace("_", " ")
)
@pytest.mark.parametrize("steps", [0, 1], ids=["before the next step", "with steps between them"])
def test_an_abort_that_arrives_three_times_ends_a_request_once(
    start: Start, state: Callable[[Engine], None], steps: int
) -> None:
    """Of one that runs, an asynchronous engine has a step in flight, whose answer comes after the first abort."""
    engine = start(budget=200)
    state(engine)
    if engine.asynchronous and state is not waits:
        assert engine.steps_in_flight == 1
    engine.add("other", 300, max_tokens=5)
    for _ in range(3):
        engine.abort("aborted")
        for _ in range(steps):
            engine.step()
    engine.run()
    ended = [request.prompt_tokens for request in engine.scheduler.prefleet.governor.recent.latest()]
    assert len(ended) == len(engine.first_scheduled) + (state is waits)
    assert "other" in engine.finished
    assert "aborted" not in engine.finished


def test_an_abort_of_a_request_that_steps_aside_is_complete(start: Start) -> None:
    engine = start(FIRST_COME, blocks=61, budget=1024)
    fill_kv_cache(engine)
    engine.add("too big for now", 50 * BLOCK)
    engine.add("small", BLOCK)
    engine.step()
    engine.step()
    engine.abort("too big for now")
    engine.run()


def test_a_short_whose_grammar_is_being_compiled_holds_no_long_back(start: Start) -> None:
    engine = start(SHORT_FIRST | {"long_max_wait_ms": 1}, budget=200)
    compiling = add_with_pending_grammar(engine, "held", 40)
    for name in ("long", "another long"):
        engine.add(name, 300, arrival_time=time.time() - 10)
    while len(engine.first_scheduled) < 2:
        engine.step()
    assert engine.first_scheduled == ["long", "another long"]
    assert engine.counters.promotions == 0  # a promotion passes shorts that could go
    assert engine.waiting == 1
    compiling.set_result(AnyGrammar())
    engine.run()
    assert engine.lanes() == {"short": 1, "long": 2}


def test_a_short_whose_grammar_is_ready_waits_like_any_other_also_when_it_lacks_room(start: Start) -> None:
    engine = start(SHORT_FIRST | {"long_max_wait_ms": 1}, blocks=61, budget=1024)
    fill_kv_cache(engine)
    compiling = add_with_pending_grammar(engine, "short", 100)
    engine.step()
    compiling.set_result(AnyGrammar())
    engine.add("filler", 19 * BLOCK, max_tokens=2 * BLOCK, arrival_time=time.time() - 10)
    engine.step()  # the filler leaves no room, and so the short stays behind
    engine.add("long", 200, arrival_time=time.time() - 10)
    engine.run()
    assert engine.first_scheduled == ["holder", "filler", "short", "long"]  # the filler took all of the longs' share


def test_a_request_whose_grammar_is_ready_takes_its_place(start: Start) -> None:
    engine = start(budget=200)
    compiling = add_with_pending_grammar(engine, "held", 40)
    engine.add("long", 300)
    engine.step()
    engine.add("another long", 300)
    compiling.set_result(AnyGrammar())
    engine.run()
    assert engine.first_scheduled == ["long", "held", "another long"]


def test_a_request_that_waits_for_its_grammar_can_be_aborted(start: Start) -> None:
    engine = start()
    add_with_pending_grammar(engine, "held", 40)
    engine.step()
    engine.abort("held")
    engine.run()
    assert engine.waiting_in(Lane.SHORT) == 0


def test_a_session_that_is_queued_again_while_it_waits_is_there_once(start: Start) -> None:
    # vLLM does so when the last output of a turn arrives after the session was preempted, then removes it.
    engine = start()
    session = engine.add("session", 40)
    engine.scheduler._enqueue_waiting_request(session)
    assert engine.waiting == 1
    engine.run()
    assert engine.lanes() == {"short": 1}


def test_a_request_put_back_is_not_looked_up_in_the_prefix_cache_again(start: Start) -> None:
    engine = start()
    compiling = add_with_pending_grammar(engine, "held", 40)
    looked_up: list[str] = []
    engine.scheduler.waiting._cached_tokens = lambda request: looked_up.append(request.request_id) or 0
    for _ in range(3):
        engine.step()
    assert engine.counters.requeues == 3
    assert looked_up == []
    compiling.set_result(AnyGrammar())
    engine.run()


def test_a_request_that_lacked_room_and_ended_otherwise_is_forgotten(start: Start) -> None:
    engine = start(FIRST_COME, blocks=61, budget=1024)
    fill_kv_cache(engine)
    stopped = engine.add("stopped", 50 * BLOCK)
    engine.step()
    assert list(engine.scheduler.waiting.no_room) == ["stopped"]
    engine.scheduler.waiting.remove_requests([stopped])  # as vLLM does when a late output ends a preempted request
    assert not engine.scheduler.waiting.no_room
    engine.abort("stopped")
    engine.run()


def test_running_requests_that_are_reset_start_again_before_all_others(start: Start) -> None:
    engine = start(budget=128)
    engine.add("running", 300, max_tokens=4)
    engine.step()
    engine.add("short", 40)
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert engine.waiting_in(Lane.IMMEDIATE) == 1
    engine.run()
    assert engine.lanes() == {"immediate": 1, "short": 1, "long": 1}


def test_whatever_ends_is_among_the_recent_requests_once(start: Start) -> None:
    prefix = list(range(4 * BLOCK))
    engine = start()
    engine.add("first", 4 * BLOCK + 9, max_tokens=3, prefix=prefix)
    engine.run()
    engine.add("cached", 4 * BLOCK + 9, prefix=prefix)
    engine.add("runs", 40, max_tokens=50)
    engine.step()
    engine.add("waits", 30)
    engine.abort("runs", "waits")
    engine.abort("waits", "nobody")
    engine.run()
    recent = engine.scheduler.prefleet.governor.recent
    ended = {request.prompt_tokens: request for request in recent.latest()}
    told = [(r.prompt_tokens, r.cached_tokens, [lane for lane, _ in r.waits]) for r in recent.latest()]
    assert sorted(told) == sorted(
        [(73, 0, [Lane.SHORT]), (73, 4 * BLOCK, [Lane.SHORT]), (40, 0, [Lane.SHORT]), (30, 0, [])]
    )
    assert (ended[30].output_tokens, ended[73].output_tokens) == (0, 2)
    assert not recent._running
