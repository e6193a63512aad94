"""Highest response ratio next, in numbers that can be checked by hand.

Each request is written as (cost, processed tokens at its arrival); they are named a, b, c in the order of arrival.
"""

from __future__ import annotations

import pytest
from prefleet_runtime.contract import PolicyName, RuntimePolicy
from prefleet_runtime.queueing import Lane, PolicyQueue, RequestFacts, make_queue


def hrrn() -> PolicyQueue[str]:
    return make_queue(RuntimePolicy(generation=1, policy=PolicyName.HRRN))


def queue_of(*arrivals: tuple[int, int]) -> PolicyQueue[str]:
    queue = hrrn()
    for name, (cost, processed) in zip("abcdefgh", arrivals, strict=False):
        queue.begin_step(0.0, processed)
        queue.add(name, RequestFacts(name, 0.0, cost))
    return queue


@pytest.mark.parametrize(
    ("arrivals", "processed", "order"),
    [
        pytest.param([(10, 0), (1, 0)], 0, "ab", id="with no work done all ratios are 0: arrival order"),
        pytest.param([(10, 0), (1, 0)], 1, "ba", id="of two that arrived together the cheaper goes first"),
        pytest.param([(100, 0), (10, 900)], 999, "ab", id="9.99 is ahead of 9.9"),
        pytest.param([(100, 0), (10, 900)], 1000, "ab", id="at the tie, 10 against 10, arrival decides"),
        pytest.param([(100, 0), (10, 900)], 1001, "ba", id="10.01 falls behind 10.1"),
        pytest.param([(10, 0), (10, 5), (10, 5)], 50, "abc", id="equal costs go in arrival order"),
        pytest.param([(10**17, 0), (10**17 - 2, 1)], 10**17, "ba", id="a ratio above 1 by less than a float can tell"),
        pytest.param([(10, 0), (1, 20)], 15, "ab", id="a counter that fell is taken to stand still"),
    ],
)
def test_the_order_of_a_step(arrivals: list[tuple[int, int]], processed: int, order: str) -> None:
    queue = queue_of(*arrivals)
    queue.begin_step(0.0, processed)
    assert "".join(queue) == order
    assert "".join(queue.pop() for _ in order) == order


def test_the_clock_does_not_matter() -> None:
    queue = queue_of((10, 0), (1, 0))
    queue.begin_step(1e9, 0)
    assert "".join(queue) == "ab"


def test_what_is_immediate_goes_first_in_arrival_order() -> None:
    queue = queue_of((10, 0), (1, 0))
    queue.add("x", RequestFacts("x", 0.0, 10**6, priority=-1))
    queue.add("y", RequestFacts("y", 0.0, 10**6, started=True))
    queue.prepend("z", RequestFacts("z", 0.0, 10**6, started=True))
    queue.begin_step(0.0, 100)
    assert "".join(queue) == "zxyba"
    assert queue.gauges()[Lane.IMMEDIATE].requests == 3


def test_the_cost_is_what_was_not_cached_on_arrival_and_stays() -> None:
    queue = queue_of((50, 0))
    queue.add("x", RequestFacts("x", 0.0, 1000, cached_tokens=990))
    assert queue.heads_to_refresh(4) == []
    assert queue.refresh("a", 49) is False
    queue.begin_step(0.0, 100)
    assert "".join(queue) == "xa"
    queue.prepend(queue.pop(), RequestFacts("x", 0.0, 1000, cached_tokens=0))
    assert "".join(queue) == "xa"


def test_an_arrival_within_a_step_counts_from_its_counter() -> None:
    queue = queue_of((10, 0))
    queue.begin_step(0.0, 100)
    queue.add("x", RequestFacts("x", 0.0, 1))
    assert "".join(queue) == "ax"
    queue.begin_step(0.0, 112)
    assert "".join(queue) == "xa"


def test_what_is_put_back_keeps_its_ratio() -> None:
    queue = queue_of((10, 0), (10, 0), (1, 0))
    queue.begin_step(0.0, 5)
    popped = [queue.pop() for _ in "cab"]
    for name in popped:
        queue.prepend(name, RequestFacts(name, 0.0, 1))
    assert "".join(queue) == "cab"
    queue.begin_step(0.0, 9)
    assert "".join(queue) == "cab"
