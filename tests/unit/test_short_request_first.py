"""short_request_first in tables: lanes, ages, the share, and what put-backs and deferrals change.

Requests are written as words: `s` short (10 tokens), `l` long (1,000 tokens), then a number. The threshold is
100 tokens and a long is aged after 5 s. All arrive at 0 s, in the order written, unless a test says otherwise.
"""

from __future__ import annotations

from typing import Any

import pytest
from prefleet_runtime.contract import LengthKind, PolicyName, RuntimePolicy
from prefleet_runtime.queueing import MAX_BYPASSES, Lane, PolicyQueue, RequestFacts, make_queue, transfer

YOUNG, AGED = 4.999, 5.0


def policy(**changes: Any) -> RuntimePolicy:
    fixed = {"generation": 1, "policy": PolicyName.SHORT_REQUEST_FIRST, "threshold": 100, "long_max_wait_ms": 5000}
    return RuntimePolicy(**{**fixed, **changes})


def facts(name: str, arrival_s: float = 0.0, **more: Any) -> RequestFacts:
    return RequestFacts(name, arrival_s, more.pop("prompt_tokens", 10 if name[0] == "s" else 1000), **more)


def queue_of(words: str, **changes: Any) -> PolicyQueue[str]:
    queue: PolicyQueue[str] = make_queue(policy(**changes))
    for name in words.split():
        queue.add(name, facts(name))
    return queue


def order(queue: PolicyQueue[str]) -> str:
    return " ".join(queue)


def dispatch(queue: PolicyQueue[str], now: float, *tokens: int) -> str:
    """One step that schedules the next len(tokens) requests."""
    queue.begin_step(now)
    popped = [queue.pop() for _ in tokens]
    for name, count in zip(popped, tokens, strict=True):
        queue.commit(name, now, count)
    return " ".join(popped)


@pytest.mark.parametrize(
    ("request_facts", "lane"),
    [
        pytest.param({"prompt_tokens": 100}, Lane.SHORT, id="a length at the threshold is short"),
        pytest.param({"prompt_tokens": 101}, Lane.LONG, id="a length above the threshold is long"),
        pytest.param({"prompt_tokens": 500, "cached_tokens": 400}, Lane.SHORT, id="what is cached does not count"),
        pytest.param({"prompt_tokens": 500, "cached_tokens": 399}, Lane.LONG, id="a cache hit alone is not immediate"),
        pytest.param({"prompt_tokens": 0}, Lane.SHORT, id="an empty prompt counts as one token"),
        pytest.param({"prompt_tokens": 9000, "started": True}, Lane.IMMEDIATE, id="what has begun is immediate"),
        pytest.param({"prompt_tokens": 9000, "priority": -1}, Lane.IMMEDIATE, id="negative priority is immediate"),
        pytest.param({"prompt_tokens": 9000, "priority": 7}, Lane.LONG, id="a positive priority changes nothing"),
    ],
)
def test_a_request_is_classified_when_it_is_added(request_facts: dict[str, Any], lane: Lane) -> None:
    queue = queue_of("")
    queue.add("x", facts("x", **request_facts))
    assert [each for each, gauge in queue.gauges().items() if gauge.requests] == [lane]


def test_prompt_length_ignores_the_cache() -> None:
    queue = queue_of("", length=LengthKind.PROMPT)
    queue.add("x", facts("x", prompt_tokens=500, cached_tokens=499))
    assert queue.gauges()[Lane.LONG].tokens == 500
    assert queue.heads_to_refresh(4) == []


@pytest.mark.parametrize(
    ("words", "now", "changes", "expected"),
    [
        pytest.param("l1 s1 l2 s2", YOUNG, {}, "s1 s2 l1 l2", id="shorts first, arrival order inside each lane"),
        pytest.param("s1 l1", AGED, {"aged_share": 1.0}, "l1 s1", id="a long that waited its limit goes first"),
        pytest.param("s1 l1", YOUNG, {"aged_share": 1.0}, "s1 l1", id="a long short of its limit does not"),
        pytest.param("s1 l1", 1e9, {"long_max_wait_ms": 0}, "s1 l1", id="a limit of 0 turns promotion off"),
        pytest.param("s1 l1 l2", AGED, {"aged_share": 1.0}, "l1 l2 s1", id="at share 1 all aged go first"),
        pytest.param("s1 l1 l2", AGED, {}, "l1 s1 l2", id="below 1 one aged goes, the next waits for the shorts"),
        pytest.param("l1 l2", AGED, {}, "l1 l2", id="with no short waiting the share holds nobody back"),
    ],
)
def test_the_order_of_a_step(words: str, now: float, changes: dict[str, Any], expected: str) -> None:
    queue = queue_of(words, **changes)
    queue.begin_step(now)
    assert order(queue) == expected
    assert " ".join(queue.pop() for _ in range(len(queue))) == expected


def test_a_step_serves_both_kinds_at_the_share() -> None:
    """A short of 10 pays 2.5 of the debt of 750 that a long of 1,000 makes: 300 shorts later, the next long."""
    shorts = [f"s{number}" for number in range(700)]
    queue = queue_of(" ".join(["l1", "l2", "l3", *shorts]))
    queue.begin_step(AGED)
    places = [place for place, name in enumerate(queue) if name[0] == "l"]
    assert places == [0, 301, 602]


def test_nothing_is_aged_before_the_first_step() -> None:
    assert order(queue_of("l1 s1")) == "s1 l1"


@pytest.mark.parametrize(
    ("words", "steps", "after"),
    [
        pytest.param("l1 l2 s1 s2", [(1000,)], "s1 s2 l2", id="an aged dispatch while shorts wait makes a debt"),
        pytest.param("l1 l2 s1 s2", [(1000,), (3000,)], "l2 s2", id="shorts pay it off by s for each token"),
        pytest.param("l1 l2 s1 s2", [(1000,), (2996,)], "s2 l2", id="one token of debt left holds the next aged"),
        pytest.param("l1 l2 s1 s2 s3", [(1000,), (9000,)], "l2 s2 s3", id="the debt is paid in full"),
        pytest.param("l1 l2 s1 s2", [(1000,), (10,), (10,)], "l2", id="once no short waits the longs go freely"),
        pytest.param(
            "l1 l2 s1", [(1000, 10)], "l2", id="the last short clears the debt in the step that dispatches it"
        ),
    ],
)
def test_the_debt_of_the_aged(words: str, steps: list[tuple[int, ...]], after: str) -> None:
    queue = queue_of(words)
    for tokens in steps:
        dispatch(queue, AGED, *tokens)
    queue.begin_step(AGED)
    assert order(queue) == after


def test_a_debt_never_falls_below_zero() -> None:
    """Shorts cannot save up for longs: after any number of them one aged goes, and then the shorts again."""
    queue = queue_of("s1 s2 s3 s4 l1 l2")
    dispatch(queue, YOUNG, 9000, 9000)
    queue.begin_step(AGED)
    assert order(queue) == "l1 s3 s4 l2"


def test_a_debt_is_cleared_when_no_short_waits() -> None:
    queue = queue_of("l1 l2 s1 s2")
    dispatch(queue, AGED, 1000)
    queue.remove("s1")
    queue.set_deferred("s2", True)
    queue.add("s3", facts("s3"))
    queue.begin_step(AGED)
    assert order(queue).startswith("l2")


def test_a_deferred_short_is_no_waiting_short() -> None:
    queue = queue_of("l1 l2 s1")
    queue.set_deferred("s1", True)
    assert dispatch(queue, AGED, 1000, 1000) == "l1 l2"
    assert queue.counters.promotions == 0


def test_a_short_left_out_by_an_earlier_step_is_no_waiting_short() -> None:
    queue = queue_of("s1 l1 l2")
    queue.begin_step(YOUNG)
    assert queue.pop() == "s1"
    assert dispatch(queue, AGED, 1000, 1000) == "l1 l2"
    assert queue.counters.promotions == 0
    assert queue.commit("s1", AGED, 10) is not None


def test_put_back_requests_keep_their_places_whatever_the_order() -> None:
    queue = queue_of("l1 l2 s1 s2")
    queue.begin_step(AGED)
    before = order(queue)
    popped = [queue.pop() for _ in range(3)]
    for name in (popped[1], popped[0], popped[2]):
        queue.prepend(name, facts(name))
    assert order(queue) == before
    assert queue.counters.requeues == 3


def test_a_put_back_leaves_the_order_of_the_rest() -> None:
    """The debt of an aged long that came back is projected once: 500 is paid by ten shorts of 100 at a half."""
    queue = queue_of("l1 l2", aged_share=0.5)
    for number in range(15):
        queue.add(f"s{number}", facts(f"s{number}", prompt_tokens=100))
    queue.begin_step(AGED)
    before = order(queue)
    assert before.split().index("l2") == 11
    queue.prepend(queue.pop(), facts("l1"))
    assert order(queue) == before


def test_a_preempted_request_goes_before_all() -> None:
    queue = queue_of("s1 l1")
    queue.add("e", facts("e", priority=-1))
    queue.prepend("p2", facts("p2", prompt_tokens=5000, started=True))
    queue.prepend("p1", facts("p1", prompt_tokens=5000, started=True))
    queue.begin_step(AGED)
    assert order(queue) == "p1 p2 e l1 s1"


def test_a_cached_long_head_becomes_short_at_the_place_of_its_arrival() -> None:
    queue = queue_of("s1 l1 l2 s2 l3")
    assert [name for name, _ in queue.heads_to_refresh(2)] == ["l1", "l2"]
    assert queue.refresh("l1", 950) is True
    assert queue.refresh("l2", 100) is False
    queue.begin_step(YOUNG)
    assert order(queue) == "s1 l1 s2 l2 l3"


def test_a_head_steps_aside_for_one_step_and_a_bounded_number_of_times() -> None:
    queue = queue_of("l1 s1 s2", aged_share=1.0)
    for _ in range(MAX_BYPASSES):
        queue.begin_step(AGED)
        assert queue.bypass_head() is True
        assert queue.peek() == "s1"
        assert len(queue) == 3
    queue.begin_step(AGED)
    assert queue.bypass_head() is False
    assert queue.peek() == "l1"
    assert queue.counters.bypasses == MAX_BYPASSES


def test_a_queue_whose_only_request_stepped_aside_answers_no_but_is_not_empty() -> None:
    queue = queue_of("s1")
    queue.begin_step(0)
    assert queue.bypass_head() is True
    assert queue.bypass_head() is False
    assert not queue
    assert len(queue) == 1
    with pytest.raises(IndexError, match="no request can be scheduled"):
        queue.peek()


@pytest.mark.parametrize(
    ("words", "share", "steps", "episodes"),
    [
        pytest.param("l1 l2 l3 s1", 1.0, [1, 1], 0, id="two promotions in a row are none"),
        pytest.param("l1 l2 l3 s1", 1.0, [1, 1, 1], 1, id="three promotions in a row are one"),
        pytest.param("l1 l2 l3 l4 l5 l6 s1", 1.0, [1] * 6, 1, id="a run of six is still one episode"),
        pytest.param("l1 l2 l3 l4 s1", 0.25, [1, 1], 0, id="one held back is none"),
        pytest.param("l1 l2 l3 l4 s1 s2 s3 s4 s5", 0.25, [1, 1, 1, 1, 1, 1], 1, id="three held back in a row are one"),
    ],
)
def test_degradation(words: str, share: float, steps: list[int], episodes: int) -> None:
    """Each step dispatches one request; a long weighs 1,000 tokens, a short 3,000: it pays for one long."""
    queue = queue_of(words, aged_share=share)
    for _ in steps:
        queue.begin_step(AGED)
        name = queue.pop()
        queue.commit(name, AGED, 1000 if name[0] == "l" else 3000)
    queue.begin_step(AGED)
    assert queue.counters.degradations == episodes


def test_one_long_held_back_over_many_steps_counts_once() -> None:
    queue = queue_of("l1 l2 s1 s2 s3 s4 s5")
    for _ in range(5):
        dispatch(queue, AGED, 1000)
    assert queue.counters.degradations == 0


def test_an_aged_long_that_was_not_held_ends_the_row() -> None:
    """l2, l3 are held; l4 ages only after the debt is paid, so it goes at once; l5 is held: no three in a row."""
    queue = queue_of("l1 l2 l3 s1 s2 s3 s4 s5")
    for _ in range(3):
        assert dispatch(queue, AGED, 1000)[0] == "l"
        assert dispatch(queue, AGED, 3000)[0] == "s"
    queue.add("l4", facts("l4", arrival_s=AGED))
    queue.add("l5", facts("l5", arrival_s=AGED))
    assert dispatch(queue, 2 * AGED, 1000) == "l4"
    queue.begin_step(2 * AGED)
    assert order(queue).startswith("s4")
    assert queue.counters.degradations == 0


def test_a_short_between_ends_the_run_of_promotions_at_share_1() -> None:
    queue = queue_of("l1 l2 s1 s2", aged_share=1.0)
    dispatch(queue, AGED, 1000, 1000, 10)
    for name in ("l3", "l4"):
        queue.add(name, facts(name))
    dispatch(queue, AGED, 1000, 1000)
    assert (queue.counters.promotions, queue.counters.degradations) == (4, 0)


def test_a_promotion_is_told_with_its_wait_from_arrival() -> None:
    queue = queue_of("l1 s1")
    queue.begin_step(AGED)
    dispatched = queue.commit(queue.pop(), 6.0, 1000)
    assert dispatched is not None
    assert (dispatched.promoted, dispatched.wait_s, dispatched.lane) == (True, 6.0, Lane.LONG)


def test_an_unknown_or_running_request_commits_nothing() -> None:
    queue = queue_of("s1")
    assert queue.commit("nobody", 0, 1) is None
    assert queue.commit("s1", 0, 1) is None
    assert sum(queue.counters.dispatches.values()) == 0


def test_a_switch_orders_anew_and_keeps_arrivals_counters_and_what_is_out() -> None:
    queue = queue_of("l1 s1 l2 s2 s3")
    queue.begin_step(YOUNG)
    queue.commit(queue.pop(), YOUNG, 10)
    away = queue.pop()
    other: PolicyQueue[str] = make_queue(RuntimePolicy(generation=2))
    transfer(queue, other)
    other.begin_step(YOUNG)
    assert order(other) == "l1 l2 s3"
    assert other.counters.dispatches[Lane.SHORT] == 1
    other.prepend(away, facts(away))
    assert order(other) == "l1 l2 s2 s3"
    with pytest.raises(ValueError, match="empty queue"):
        transfer(make_queue(policy()), other)
