"""The policies without a threshold, and what they are told: work done, and what clients ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prefleet_runtime.queueing import Lane

from tests.vllm.inproc.conftest import FIRST_COME, SHORT_FIRST, Start
from tests.vllm.inproc.engine import Engine, make_request

SHORTEST: dict[str, Any] = {"policy": "promote_shortest"}
RATIO: dict[str, Any] = {"policy": "hrrn"}
WITHOUT_THRESHOLD = pytest.mark.parametrize("policy", [SHORTEST, RATIO], ids=["promote_shortest", "hrrn"])
ALL = pytest.mark.parametrize(
    "policy",
    [FIRST_COME, SHORTEST, RATIO, SHORT_FIRST],
    ids=["fcfs", "promote_shortest", "hrrn", "short_request_first"],
)
TRUST = {"trust_client_priority": True}


def add_mix(engine: Engine) -> None:
    for name, tokens in (("long", 600), ("middle", 300), ("long too", 600), ("short", 40), ("short too", 40)):
        engine.add(name, tokens)


def told_to_the_queue(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processed tokens that each step from now on begins with."""
    told: list[int] = []
    governor = engine.scheduler.prefleet.governor
    begin_step = governor.begin_step

    def spy(now: float, processed_prefill_tokens: int = 0) -> None:
        told.append(processed_prefill_tokens)
        begin_step(now, processed_prefill_tokens)

    monkeypatch.setattr(governor, "begin_step", spy)
    return told


def test_promote_shortest_takes_one_short_in_each_step_and_else_keeps_the_order(start: Start) -> None:
    """512 tokens a step: 40 for the short and 472 of the long; then its other 128, a decode, and 40 and 300."""
    engine = start(SHORTEST)
    add_mix(engine)
    assert engine.step() == ["short", "long"]
    engine.run()
    assert engine.first_scheduled == ["short", "long", "short too", "middle", "long too"]


def test_hrrn_takes_who_has_waited_for_most_work_in_proportion_to_its_own(start: Start) -> None:
    """Before any work all ratios are 0 and the first goes; after its 512 tokens the shorts stand highest: 512/40."""
    engine = start(RATIO)
    add_mix(engine)
    assert engine.step() == ["long"]
    engine.run()
    assert engine.first_scheduled == ["long", "short", "short too", "middle", "long too"]


def test_hrrn_lets_no_newcomer_pass_one_that_has_waited_for_its_own_length(start: Start) -> None:
    engine = start(RATIO, budget=100, max_seqs=1)
    engine.add("first", 400)
    engine.step()
    engine.add("waits", 300)
    while engine.scheduler.running:
        engine.step()
    engine.add("newcomer", 20)
    engine.run()
    assert engine.first_scheduled == ["first", "waits", "newcomer"]


@WITHOUT_THRESHOLD
def test_what_goes_is_counted_in_the_lane_all(start: Start, policy: dict[str, Any]) -> None:
    engine = start(policy)
    add_mix(engine)
    assert engine.waiting_in(Lane.ALL) == 5
    engine.run()
    assert engine.lanes() == {"all": 5}
    assert (engine.counters.promotions, engine.counters.degradations) == (0, 0)
    metrics = engine.metrics()
    assert metrics['prefleet_queue_wait_seconds_count{lane="all"}'] == 5
    assert metrics["prefleet_policy_threshold_tokens"] == 0
    assert metrics[f'prefleet_policy_info{{generation="1",policy="{policy["policy"]}"}}'] == 1


@WITHOUT_THRESHOLD
def test_preempted_requests_come_back_first_and_all_finish(start: Start, policy: dict[str, Any]) -> None:
    engine = start(policy, blocks=21)
    engine.add("a", 140, max_tokens=60)
    engine.add("b", 140, max_tokens=60)
    engine.run()
    assert sorted(engine.finished) == ["a", "b"]
    assert engine.counters.requeues >= 1
    assert engine.lanes()["immediate"] >= 1
    assert engine.lanes()["all"] == 2


@WITHOUT_THRESHOLD
def test_aborts_of_whoever_waits_leave_nothing_behind(start: Start, policy: dict[str, Any]) -> None:
    engine = start(policy, budget=100)
    add_mix(engine)
    engine.step()
    waiting = [request.request_id for request in engine.scheduler.waiting]
    engine.abort(waiting[0], waiting[-1], waiting[0])
    assert engine.waiting == len(waiting) - 2
    engine.run()
    assert len(engine.finished) == 3


def test_a_switch_through_all_policies_loses_nobody(start: Start) -> None:
    engine = start(FIRST_COME, budget=100)
    add_mix(engine)
    for generation, policy in enumerate((RATIO, SHORT_FIRST, SHORTEST, RATIO, FIRST_COME, SHORTEST), 2):
        engine.take_policy(generation, **policy)
        engine.step()
        engine.queue._check()
    engine.run()
    assert len(engine.finished) == 5
    assert sum(engine.lanes().values()) == 5


@ALL
@pytest.mark.parametrize("trusted", [False, True], ids=["ignored unless trusted", "heeded where trusted"])
def test_a_priority_set_by_a_client_is(start: Start, policy: dict[str, Any], trusted: bool) -> None:
    """One seat and equal lengths: the order is that of arrival unless a negative priority changes it."""
    engine = start(policy | {"trust_client_priority": trusted}, max_seqs=1)
    for name, priority in (("first", 0), ("second", 3), ("favoured", -5), ("favoured too", -9)):
        engine.add(name, 40, priority=priority)
    engine.run()
    favoured = ["favoured", "favoured too"]
    assert engine.first_scheduled == [*favoured, "first", "second"] if trusted else ["first", "second", *favoured]
    assert engine.lanes().get("immediate", 0) == (2 if trusted else 0)


def test_trust_that_is_taken_back_is_taken_from_what_waits(start: Start) -> None:
    engine = start(FIRST_COME | TRUST, max_seqs=1)
    engine.add("runs", 40, max_tokens=4)
    engine.step()
    engine.add("first", 40)
    engine.add("favoured", 40, priority=-1)
    assert engine.waiting_in(Lane.IMMEDIATE) == 1
    engine.take_policy(2, **FIRST_COME)
    engine.run()
    assert engine.first_scheduled == ["runs", "first", "favoured"]


@ALL
def test_the_next_segment_of_a_session_goes_before_what_waits(start: Start, policy: dict[str, Any]) -> None:
    """It has begun, and holds KV blocks: a prompt in segments must not queue once for each of them."""
    engine = start(policy, max_seqs=2)
    engine.add("session", 40, max_tokens=1, resumable=True)
    while engine.scheduler.running or not engine.first_scheduled:
        engine.step()
    engine.add("runs", 40, max_tokens=30)
    engine.add("waits", 20)
    engine.add("waits too", 20)
    engine.step()
    segment = make_request("session", list(range(30)), max_tokens=1, resumable=True)
    engine.scheduler.add_request(segment)
    assert "session" in engine.step()
    assert engine.waiting == 2
    engine.abort("session")
    engine.run()


def steps_with_prefill(engine: Engine) -> Iterator[tuple[bool, int]]:
    """Run to the end; for each step whether it carried prefill, and its tokens, as the engine itself has it."""
    scheduler = engine.scheduler
    while scheduler.has_unfinished_requests():
        chunked = {name for name, request in scheduler.requests.items() if request.is_prefill_chunk}
        running = {request.request_id for request in scheduler.running}
        output = scheduler.schedule()
        names = set(output.num_scheduled_tokens)
        yield bool(names & chunked or names - running), output.total_num_scheduled_tokens
        if names:
            engine._in_flight.append((output, {name: engine._answer(name) for name in output.num_scheduled_tokens}))
        while engine._in_flight and (not names or len(engine._in_flight) >= engine._depth):
            engine._complete()
    while engine._in_flight:
        engine._complete()


@pytest.mark.parametrize("blocks", [1000, 21], ids=["with room for all", "with preemptions"])
def test_the_work_counter_takes_all_tokens_of_steps_that_carry_prefill(
    start: Start, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    """In chunks so small that a preempted request, computed again, has one beyond its prompt."""
    engine = start(RATIO, blocks=blocks, budget=36)
    told = told_to_the_queue(engine, monkeypatch)
    for name in "ab":
        engine.add(name, 140, max_tokens=60)
    steps = list(steps_with_prefill(engine))
    expected = [0]
    for prefill, tokens in steps:
        expected.append(expected[-1] + tokens * prefill)
    assert told == expected[:-1]
    assert 0 < expected[-1] < sum(tokens for _, tokens in steps), "some steps carry prefill, some do not"
    assert bool(engine.counters.requeues) is (blocks < 1000)
