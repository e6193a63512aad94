"""What is scheduled first, and what is counted for it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from prefleet_runtime.queueing import Lane
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from tests.vllm.inproc.conftest import FIRST_COME, SHORT_FIRST, Start
from tests.vllm.inproc.engine import Engine


def add_mix(engine: Engine, longs: int = 3, shorts: int = 4) -> None:
    for number in range(longs):
        engine.add(f"long-{number}", 600)
    for number in range(shorts):
        engine.add(f"short-{number}", 40)


@pytest.mark.parametrize(
    ("policy", "first"),
    [
        pytest.param(FIRST_COME, ["long-0", "long-1"], id="first come first served takes the longs"),
        pytest.param(SHORT_FIRST, ["short-0", "short-1"], id="short request first takes the shorts"),
    ],
)
def test_waiting_requests_are_scheduled_in_policy_order(start: Start, policy: dict[str, Any], first: list[str]) -> None:
    engine = start(policy)
    add_mix(engine)
    engine.run()
    assert engine.first_scheduled[:2] == first
    assert sorted(engine.finished) == sorted(engine.first_scheduled)


def test_dispatches_are_counted_once_each_from_what_was_scheduled(start: Start) -> None:
    engine = start()
    add_mix(engine)
    engine.run()
    assert engine.lanes() == {"short": 4, "long": 3}


def test_the_scheduler_is_the_one_that_the_engine_would_run(start: Start, asynchronous: bool) -> None:
    assert isinstance(start().scheduler, AsyncScheduler) is asynchronous


def test_waits_are_measured_from_arrival(start: Start) -> None:
    engine = start()
    engine.add("long ago", 40, arrival_time=time.time() - 100)
    engine.run()
    waited = engine.metrics()['prefleet_queue_wait_seconds_sum{lane="short"}']
    assert 100 <= waited < 110


def test_a_new_policy_is_taken_between_two_steps(start: Start) -> None:
    engine = start(FIRST_COME, budget=300)
    add_mix(engine, longs=3, shorts=2)
    engine.step()
    engine.take_policy(2, **SHORT_FIRST)
    engine.run()
    assert engine.first_scheduled == ["long-0", "short-0", "short-1", "long-1", "long-2"]
    assert engine.lanes() == {"all": 1, "short": 2, "long": 2}


def test_a_long_whose_prefix_has_been_cached_meanwhile_becomes_short(start: Start) -> None:
    engine = start(budget=256)
    prefix = list(range(5000, 5512))
    engine.add("first of the family", 560, prefix=prefix)
    engine.step()
    engine.add("stranger", 560)
    engine.add("sibling", 560, prefix=prefix)
    assert engine.waiting_in(Lane.LONG) == 2
    engine.run()
    assert engine.first_scheduled == ["first of the family", "sibling", "stranger"]
    assert engine.lanes() == {"long": 2, "short": 1}


@pytest.mark.parametrize("shared", [0, 15, 16, 160, 320, 336], ids=lambda shared: f"{shared} tokens shared")
@pytest.mark.parametrize("window", [None, 64], ids=["full attention alone", "and layers with a sliding window"])
def test_the_cached_length_is_what_the_cache_manager_finds(start: Start, shared: int, window: int | None) -> None:
    engine = start(window=window)
    prefix = list(range(7000, 7336))
    engine.add("writer", 400, prefix=prefix)
    engine.run()
    request = engine.add("reader", 336, prefix=prefix[:shared])
    _, expected, *_ = engine.scheduler.kv_cache_manager.get_computed_blocks(request)
    assert engine.scheduler.prefleet.cached_tokens(request) == expected
    engine.run()


@pytest.mark.parametrize(
    ("window", "looks"),
    [
        pytest.param(None, 4, id="a cheap look is taken at several heads"),
        pytest.param(64, 1, id="a costly one at the first alone"),
    ],
)
def test_a_step_spends_little_on_looking_up_what_waits(start: Start, window: int | None, looks: int) -> None:
    engine = start(window=window, budget=64)
    add_mix(engine, longs=6, shorts=0)
    looked_up: list[str] = []
    engine.scheduler.prefleet.cached_tokens = lambda request: looked_up.append(request.request_id) or 0
    engine.step()
    assert len(looked_up) == looks
    engine.run()
