"""A switch of the policy, or of its settings, with requests waiting: between all pairs."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from prefleet_runtime.contract import LengthKind, PolicyName, RuntimePolicy
from prefleet_runtime.queueing import Lane, PolicyQueue, RequestFacts, make_queue, transfer

PAIRS = list(product(PolicyName, repeat=2))
NOW, PROCESSED = 20.0, 5000

WAITING = [
    RequestFacts("long", 0.0, 4000),
    RequestFacts("cached", 1.0, 3000, cached_tokens=2940),
    RequestFacts("short", 2.0, 50),
    RequestFacts("elevated", 3.0, 800, priority=-1),
    RequestFacts("deferred", 4.0, 20, deferred=True),
    RequestFacts("begun", 5.0, 900, started=True),
    RequestFacts("middle", 6.0, 400),
    RequestFacts("short too", 7.0, 50),
]


def policy(name: PolicyName, **changes: Any) -> RuntimePolicy:
    return RuntimePolicy(**{"generation": 1, "policy": name, "threshold": 100, "long_max_wait_ms": 15000, **changes})


def history(settings: RuntimePolicy) -> PolicyQueue[str]:
    """A queue that saw everything: each of `WAITING` arrived 500 tokens after the one before it, one is out."""
    queue: PolicyQueue[str] = make_queue(settings)
    queue.add("out", RequestFacts("out", 0.0, 30, priority=-1))
    queue.begin_step(0.0, 0)
    assert queue.pop() == "out"
    for number, facts in enumerate(WAITING):
        queue.begin_step(facts.arrival_s, 500 * number)
        queue.add(facts.request_id, facts)
    return queue


def order_of(queue: PolicyQueue[str]) -> list[str]:
    queue.begin_step(NOW, PROCESSED)
    queue._check()
    return list(queue)


def switched(queue: PolicyQueue[str], settings: RuntimePolicy) -> PolicyQueue[str]:
    other: PolicyQueue[str] = make_queue(settings)
    transfer(queue, other)
    assert len(queue) == 0
    return other


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_switch_orders_as_if_the_new_policy_had_been_there_from_the_start(old: PolicyName, new: PolicyName) -> None:
    queue = switched(history(policy(old)), policy(new))
    assert order_of(queue) == order_of(history(policy(new)))
    assert [facts for _, facts in queue.entries()] == WAITING
    queue.prepend("out", RequestFacts("out", 0.0, 30, priority=-1))
    assert order_of(queue)[0] == "out"


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_switch_there_and_back_leaves_the_order(old: PolicyName, new: PolicyName) -> None:
    queue = history(policy(old))
    before = order_of(queue)
    assert order_of(switched(switched(queue, policy(new)), policy(old))) == before


@pytest.mark.parametrize(
    ("changes", "shorts"),
    [
        pytest.param({"threshold": 30}, 1, id="a lower threshold makes shorts long"),
        pytest.param({"threshold": 400}, 5, id="a higher threshold makes longs short"),
        pytest.param({"length": LengthKind.PROMPT}, 3, id="the raw prompt makes a cached one long"),
    ],
)
def test_a_switch_of_settings_classifies_anew(changes: dict[str, Any], shorts: int) -> None:
    srf = PolicyName.SHORT_REQUEST_FIRST
    queue = switched(history(policy(srf)), policy(srf, **changes))
    assert queue.gauges()[Lane.SHORT].requests == shorts
    assert order_of(queue) == order_of(history(policy(srf, **changes)))


def test_a_cost_stays_frozen_though_more_of_the_prompt_was_found_cached() -> None:
    """short_request_first lets a cached long become short; the cost that hrrn divides by is that of its arrival."""
    queue = history(policy(PolicyName.HRRN))
    before = order_of(queue)
    queue = switched(queue, policy(PolicyName.SHORT_REQUEST_FIRST))
    assert queue.refresh("long", 3990) is True
    assert order_of(switched(queue, policy(PolicyName.HRRN))) == before


def test_a_deep_queue_loses_nobody() -> None:
    queue: PolicyQueue[int] = make_queue(policy(PolicyName.HRRN))
    for number in range(5000):
        queue.begin_step(0.0, 10 * number)
        queue.add(number, RequestFacts(str(number), 0.0, 1 + number * 7919 % 3000))
    for name in (*PolicyName, PolicyName.HRRN):
        other: PolicyQueue[int] = make_queue(policy(name))
        transfer(queue, other)
        queue = other
        queue._check()
        assert sorted(queue) == list(range(5000))
        assert [item for item, _ in queue.entries()] == list(range(5000))
