"""Streaming input: a session whose prompt comes in segments keeps its KV blocks and its seat between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prefleet_runtime.queueing import Lane
from vllm.v1.request import RequestStatus

from tests.vllm.inproc.conftest import FIRST_COME, SHORT_FIRST, Start
from tests.vllm.inproc.engine import Engine, make_request
from tests.vllm.inproc.test_budget import CAP, STALL, YIELD
from tests.vllm.inproc.test_policies import ALL

NAME = "session"


def send(engine: Engine, tokens: int, max_tokens: int = 1) -> None:
    """The next segment of the session; the first one begins it."""
    segment = make_request(NAME, list(range(tokens)), max_tokens=max_tokens, resumable=True)
    engine.scheduler.add_request(segment)


def close(engine: Engine) -> None:
    """The client has sent all: the session ends with the answer to its last segment."""
    engine.scheduler.add_request(make_request(NAME, [0], resumable=False))


def status(engine: Engine) -> RequestStatus:
    return engine.scheduler.requests[NAME].status


def pause(engine: Engine, tokens: int = 40) -> None:
    """Begin the session and let it wait for its next segment."""
    send(engine, tokens)
    while status(engine) is not RequestStatus.WAITING_FOR_STREAMING_REQ:
        engine.step()


def crowd(engine: Engine) -> None:
    """Others that wait, more than there are seats."""
    for number in range(4):
        engine.add(f"long-{number}", 600)
        engine.add(f"short-{number}", 40)


@ALL
def test_segments_that_come_one_by_one_go_before_all_that_waits(start: Start, policy: dict[str, Any]) -> None:
    engine = start(policy, max_seqs=3)
    pause(engine)
    crowd(engine)
    for tokens in (30, 70, 20):
        engine.step()
        send(engine, tokens)
        assert NAME in engine.step()
        while status(engine) is not RequestStatus.WAITING_FOR_STREAMING_REQ:
            engine.step()
    assert engine.scheduler.requests[NAME].num_prompt_tokens == 40 + 30 + 70 + 20
    close(engine)
    engine.run()
    assert len(engine.finished) == 8  # a session that is closed while it waits is no answer of a step
    assert sum(engine.lanes().values()) == 9, "a session leaves the queue once"


@ALL
def test_segments_that_come_too_early_follow_each_other(start: Start, policy: dict[str, Any]) -> None:
    engine = start(policy, max_seqs=3)
    crowd(engine)
    for tokens in (150, 30, 70):
        send(engine, tokens, max_tokens=2)
    close(engine)
    session = engine.scheduler.requests[NAME]
    engine.run()
    assert session.num_prompt_tokens == 150 + 1 + 30 + 1 + 70  # of two answered tokens the last one is dropped
    assert session.status is RequestStatus.FINISHED_LENGTH_CAPPED
    assert sorted(engine.finished) == sorted([NAME, *(f"{kind}-{n}" for kind in ("long", "short") for n in range(4))])


def not_started(engine: Engine) -> None:
    engine.add("runs", 600)
    engine.step()
    send(engine, 700)


def in_prefill(engine: Engine) -> None:
    send(engine, 1200)
    engine.step()
    assert engine.scheduler.requests[NAME].is_prefill_chunk


def in_decode(engine: Engine) -> None:
    send(engine, 40, max_tokens=30)
    while not engine.scheduler.requests[NAME].num_output_tokens:
        engine.step()


def in_decode_with_a_segment_behind(engine: Engine) -> None:
    in_decode(engine)
    send(engine, 40)


def between_segments(engine: Engine) -> None:
    pause(engine)


def with_a_segment_not_yet_scheduled(engine: Engine) -> None:
    pause(engine)
    send(engine, 40)
    assert status(engine) is RequestStatus.WAITING


def in_the_prefill_of_a_later_segment(engine: Engine) -> None:
    pause(engine)
    send(engine, 1200)
    engine.step()
    assert engine.scheduler.requests[NAME].is_prefill_chunk


def preempted(engine: Engine) -> None:
    in_decode(engine)
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert status(engine) is RequestStatus.PREEMPTED


def preempted_with_a_segment_behind(engine: Engine) -> None:
    preempted(engine)
    send(engine, 40)


STATES = (
    not_started,
    in_prefill,
    in_decode,
    in_decode_with_a_segment_behind,
    between_segments,
    with_a_segment_not_yet_scheduled,
    in_the_prefill_of_a_later_segment,
    preempted,
    preempted_with_a_segment_behind,
)


@pytest.mark.parametrize("reach", STATES, ids=lambda reach: reach.__name__.replace("_", " "))
@pytest.mark.parametrize("others", [False, True], ids=["alone", "in a crowd"])
def test_an_abort(start: Start, reach: Callable[[Engine], None], others: bool) -> None:
    engine = start(SHORT_FIRST)
    reach(engine)
    if others:
        crowd(engine)
    engine.abort(NAME, NAME)
    engine.abort(NAME)
    engine.run()
    assert sum(name.startswith(("long", "short")) for name in engine.finished) == (8 if others else 0)


@pytest.mark.parametrize("reach", STATES, ids=lambda reach: reach.__name__.replace("_", " "))
def test_the_last_segment_comes(start: Start, reach: Callable[[Engine], None]) -> None:
    engine = start(SHORT_FIRST)
    reach(engine)
    crowd(engine)
    session = engine.scheduler.requests[NAME]
    close(engine)
    engine.run()
    assert session.is_finished()
    assert engine.waiting_in(Lane.IMMEDIATE) == 0


def test_a_session_between_segments_keeps_its_seat_and_no_long_yields_to_a_short_that_has_none(start: Start) -> None:
    engine = start(CAP, max_seqs=2)
    pause(engine)
    engine.add("long", 4000)
    engine.step()
    engine.add("short", 40)
    engine.step()
    assert engine.tokens == {"long": 512}
    close(engine)
    engine.step()
    assert engine.tokens == {"long": 128, "short": 40}
    engine.run()


def test_the_next_segment_stalls_no_decode_beyond_the_limit(start: Start) -> None:
    """A step that is not yet known to be fast carries 64 tokens of prefill beside decodes."""
    engine = start(FIRST_COME | STALL)
    engine.add("decodes", 40, max_tokens=30)
    pause(engine)
    send(engine, 2000)
    engine.step()
    assert engine.tokens == {"decodes": 1, NAME: 64}
    close(engine)
    engine.run()


def test_a_long_segment_yields_to_shorts_from_its_first_step_on(start: Start) -> None:
    engine = start(YIELD)
    pause(engine)
    send(engine, 2000)
    engine.add("short", 40)
    engine.step()
    assert engine.tokens == {NAME: 472, "short": 40}
    close(engine)
    engine.run()
