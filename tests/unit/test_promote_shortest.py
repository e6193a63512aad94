"""promote_shortest in tables. Each request is its length in tokens, named a, b, c in the order of arrival."""

from __future__ import annotations

import pytest
from prefleet_runtime.contract import LengthKind, PolicyName, RuntimePolicy
from prefleet_runtime.queueing import PolicyQueue, RequestFacts, make_queue


def queue_of(*lengths: int, length: LengthKind = LengthKind.UNCACHED) -> PolicyQueue[str]:
    queue: PolicyQueue[str] = make_queue(RuntimePolicy(generation=1, policy=PolicyName.PROMOTE_SHORTEST, length=length))
    for name, tokens in zip("abcdefgh", lengths, strict=False):
        queue.add(name, RequestFacts(name, 0.0, tokens))
    return queue


@pytest.mark.parametrize(
    ("lengths", "order"),
    [
        pytest.param([30, 20, 10, 20], "cabd", id="the shortest first, the rest in arrival order"),
        pytest.param([30, 10, 10, 20], "bacd", id="of equals the first"),
        pytest.param([10, 30, 20], "abc", id="the shortest may be the oldest"),
        pytest.param([10], "a", id="one alone"),
        pytest.param([], "", id="none"),
    ],
)
def test_the_order_of_a_step(lengths: list[int], order: str) -> None:
    queue = queue_of(*lengths)
    queue.begin_step(0.0)
    assert "".join(queue) == order
    assert "".join(queue.pop() for _ in order) == order


def test_one_is_promoted_in_each_step() -> None:
    queue = queue_of(50, 40, 30, 20, 10)
    order = ""
    for _ in range(5):
        queue.begin_step(0.0)
        order += queue.pop()
        queue.commit(order[-1], 0.0, 1)
    assert order == "edcba"


def test_what_is_immediate_goes_before_the_shortest_and_is_never_it() -> None:
    queue = queue_of(30, 20)
    queue.add("x", RequestFacts("x", 0.0, 99, priority=-1))
    queue.add("y", RequestFacts("y", 0.0, 1, started=True))
    queue.begin_step(0.0)
    assert "".join(queue) == "xyba"


def test_a_shorter_one_that_arrives_within_a_step_waits_for_the_next() -> None:
    queue = queue_of(30, 20)
    queue.begin_step(0.0)
    queue.add("x", RequestFacts("x", 0.0, 1))
    assert "".join(queue) == "bax"
    queue.begin_step(0.0)
    assert "".join(queue) == "xab"


@pytest.mark.parametrize("away", ["aborted", "stepped aside", "popped"])
def test_nobody_takes_the_place_of_the_promoted_within_a_step(away: str) -> None:
    queue = queue_of(30, 20, 10)
    queue.begin_step(0.0)
    if away == "aborted":
        queue.remove("c")
    elif away == "stepped aside":
        queue.bypass_head()
    else:
        queue.pop()
    assert queue.peek() == "a"


def test_the_promoted_takes_its_place_again_when_it_is_put_back() -> None:
    queue = queue_of(30, 20, 10)
    queue.begin_step(0.0)
    popped = [queue.pop(), queue.pop()]
    for name in popped:
        queue.prepend(name, RequestFacts(name, 0.0, 1))
    assert "".join(queue) == "cab"


def test_length_is_uncached_or_the_prompt() -> None:
    for kind, order in ((LengthKind.UNCACHED, "xa"), (LengthKind.PROMPT, "ax")):
        queue = queue_of(100, length=kind)
        queue.add("x", RequestFacts("x", 0.0, 200, cached_tokens=150))
        queue.begin_step(0.0)
        assert "".join(queue) == order


def test_lengths_that_are_gone_do_not_pile_up() -> None:
    """A short that never leaves must not keep every length that was aborted behind it."""
    queue = queue_of(1)
    for tokens in range(2, 3000):
        queue.add("x", RequestFacts("x", 0.0, tokens))
        queue.remove("x")
        queue._check()
    queue.begin_step(0.0)
    assert "".join(queue) == "a"
