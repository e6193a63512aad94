"""What longs get of a step while shorts contend: tables, and what holds for every step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefleet_runtime.contract import LongChunk, PolicyName, RuntimePolicy
from prefleet_runtime.stage import UNLIMITED, Arbiter, Prefill, StepBudget, StepView

BUDGET = 1000


Started = tuple[str, Prefill]


def long(tokens: int) -> Started:
    return "long", Prefill(tokens)


def short(tokens: int) -> Started:
    return "short", Prefill(tokens)


def arbiter(long_chunk: LongChunk = LongChunk.YIELD, **more: Any) -> Arbiter:
    settings: dict[str, Any] = {"policy": PolicyName.SHORT_REQUEST_FIRST, "threshold": 300, **more}
    return Arbiter(RuntimePolicy(generation=1, long_chunk=long_chunk, **settings))


def view(*started: Started, waiting: int = 0, tokens: int = 0, longs: int = 0, **more: Any) -> StepView:
    return StepView(
        budget=BUDGET,
        shorts=[prefill for lane, prefill in started if lane == "short"],
        longs=[prefill for lane, prefill in started if lane == "long"],
        waiting_shorts=waiting,
        waiting_short_tokens=tokens,
        waiting_longs=longs,
        **more,
    )


@pytest.mark.parametrize(
    ("step", "chunk", "new_longs"),
    [
        pytest.param(view(long(5000), waiting=2, tokens=200), 800, 0, id="a long takes what waiting shorts leave"),
        pytest.param(view(long(5000), short(100)), 900, 0, id="and what those in prefill leave"),
        pytest.param(view(long(5000), waiting=20, tokens=2000), 250, 0, id="it gets a quarter however many wait"),
        pytest.param(
            view(long(5000), waiting=1, tokens=100, decodes=100, decode_tokens=100), 800, 0, id="after the decodes"
        ),
        # 700 and the long: at 500 each the step is full; at 300, what the short leaves, 400 tokens were lost.
        pytest.param(view(long(5000), waiting=1, tokens=700), 500, 0, id="no part of a step is lost to a big short"),
        # 250 each fill the step: three shorts of 600, of which two are enough, and the long.
        pytest.param(view(long(5000), waiting=3, tokens=1800), 334, 0, id="nor to several big ones"),
    ],
)
def test_a_long_yields(step: StepView, chunk: int, new_longs: int) -> None:
    budget = arbiter().plan(step)
    assert budget == StepBudget(chunk_tokens=chunk, running_longs=1, new_longs=new_longs, in_order=True)


@pytest.mark.parametrize(
    ("mode", "step", "going", "chunk", "starting"),
    [
        pytest.param(
            LongChunk.YIELD, view(longs=3, waiting=1, tokens=100), 0, 900, 1, id="one may start where none has"
        ),
        pytest.param(
            LongChunk.YIELD, view(long(50), waiting=1, tokens=100), 1, 850, 1, id="one may follow where one ends"
        ),
        pytest.param(
            LongChunk.YIELD,
            view(long(50), long(5000), long(5000), waiting=1, tokens=100),
            *(2, 850, 0),
            id="a started one before one that waits",
        ),
        pytest.param(
            LongChunk.YIELD,
            view(long(700), long(5000), waiting=1, tokens=100),
            *(1, 700, 1),
            id="but not where it would get more than is left: one that starts comes behind the shorts",
        ),
        pytest.param(
            LongChunk.CAP, view(long(50), long(5000), waiting=1, tokens=100), 2, 200, 0, id="a cap is for all together"
        ),
        pytest.param(
            LongChunk.CAP, view(long(200), long(5000), waiting=1, tokens=100), 1, 200, 0, id="and is not exceeded"
        ),
        pytest.param(LongChunk.CAP, view(long(200), waiting=1, tokens=100), 1, 200, 0, id="nor by one that starts"),
    ],
)
def test_another_long_follows_where_one_ends(
    mode: LongChunk, step: StepView, going: int, chunk: int, starting: int
) -> None:
    expected = StepBudget(chunk_tokens=chunk, running_longs=going, new_longs=starting, in_order=True)
    assert arbiter(mode).plan(step) == expected


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(view(long(5000), long(5000), longs=7), id="no short in sight"),
        pytest.param(view(waiting=5, tokens=500), id="no long in sight"),
        pytest.param(view(), id="nothing in sight"),
    ],
)
@pytest.mark.parametrize("mode", [LongChunk.YIELD, LongChunk.CAP])
def test_without_a_contest_only_the_order_is_set(mode: LongChunk, step: StepView) -> None:
    assert arbiter(mode).plan(step) == StepBudget(in_order=True)


def test_a_cap_is_hard_and_can_be_chosen() -> None:
    step = view(long(5000), waiting=1, tokens=100)
    assert arbiter(LongChunk.CAP).plan(step).chunk_tokens == 250
    assert arbiter(LongChunk.CAP, long_chunk_tokens=64).plan(step).chunk_tokens == 64


def test_shorts_in_prefill_do_not_take_the_least_of_a_long() -> None:
    budget = arbiter().plan(view(long(5000), short(300), short(300), short(300)))
    assert budget.long_first
    assert budget.chunk_tokens == 250


def test_others_are_held_and_counted_once_a_step() -> None:
    rule = arbiter()
    for _ in range(3):
        rule.plan(view(long(5000), long(5000), long(5000), waiting=1, tokens=10))
    assert rule.counters.held == 6


@pytest.mark.parametrize("name", [PolicyName.FCFS, PolicyName.HRRN, PolicyName.PROMOTE_SHORTEST])
def test_policies_without_lanes_leave_steps_to_the_engine(name: PolicyName) -> None:
    rule = Arbiter(RuntimePolicy(generation=1, policy=name))
    assert rule.is_idle
    assert rule.plan(view(long(5000), waiting=1, tokens=10)) == UNLIMITED


def test_off_leaves_steps_to_the_engine() -> None:
    assert arbiter(LongChunk.OFF).is_idle


PREFILLS = st.lists(st.builds(Prefill, st.integers(1, 9000), st.integers(0, 9000)), max_size=5)


@st.composite
def steps(draw: st.DrawFn) -> StepView:
    waiting = draw(st.integers(0, 50))
    decodes = draw(st.integers(0, 900))
    return StepView(
        budget=BUDGET,
        decodes=decodes,
        decode_tokens=decodes,
        shorts=draw(PREFILLS),
        longs=draw(PREFILLS),
        waiting_shorts=waiting,
        waiting_short_tokens=draw(st.integers(waiting, 300 * waiting)) if waiting else 0,
        waiting_longs=draw(st.integers(0, 3)),
    )


def spend(step: StepView, budget: StepBudget) -> dict[str, int]:
    """Tokens by kind when an engine goes through a step as vLLM does: decodes, started prefills, waiting shorts."""
    room = min(step.room, BUDGET if budget.prefill_tokens is None else budget.prefill_tokens)
    chunk = BUDGET if budget.chunk_tokens is None else budget.chunk_tokens
    running = BUDGET if budget.running_longs is None else budget.running_longs
    spent = {"decode": step.decode_tokens, "short": 0, "long": 0, "room": room}
    started = [(False, prefill) for prefill in step.shorts] + [(True, prefill) for prefill in step.longs]
    for is_long, prefill in sorted(started, key=lambda one: budget.rank(True, one[0])):
        if is_long:
            running -= 1
            if running < 0:
                continue
        tokens = min(prefill.tokens, chunk, room)
        spent["long" if is_long else "short"] += tokens
        room -= tokens
    for number in range(step.waiting_shorts):
        share = step.waiting_short_tokens // step.waiting_shorts + (
            number < step.waiting_short_tokens % step.waiting_shorts
        )
        tokens = min(share, chunk, room)
        spent["short"] += tokens
        room -= tokens
    return spent


@settings(deadline=None, max_examples=1000)
@given(steps())
def test_decodes_go_one_long_goes_on_shorts_are_served_and_nothing_is_lost(step: StepView) -> None:
    spent = spend(step, arbiter().plan(step))
    assert spent["decode"] == step.decode_tokens
    assert spent["short"] + spent["long"] <= spent["room"] == step.room
    shorts = sum(prefill.tokens for prefill in step.shorts) + step.waiting_short_tokens
    first = next((prefill.tokens for prefill in step.longs), 0)
    if first:
        least = min(first, step.room, -(-250 * step.room // BUDGET))
        assert spent["long"] >= least, "the long did not get its least"
    if shorts:
        assert spent["short"] >= min(shorts, step.room // 3), "shorts did not get their part"
    if not step.waiting_longs:
        rounding = step.waiting_shorts  # waiting shorts are known by their average: a token each may be cut
        assert spent["short"] + spent["long"] >= min(step.room, shorts + first) - rounding, "part of the step is lost"


@settings(deadline=None)
@given(steps())
def test_a_cap_holds_longs_to_the_chunk_while_shorts_contend(step: StepView) -> None:
    spent = spend(step, arbiter(LongChunk.CAP).plan(step))
    contended = step.waiting_shorts or len(step.shorts)
    if contended:
        assert spent["long"] <= 250
    if step.room and len(step.longs):
        assert spent["long"] >= 1
