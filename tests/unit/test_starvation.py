"""Who starves under overload, on one server that dispatches one request at a time.

Two streams arrive as fast as they are served and faster; a request's service takes its tokens times a
millisecond, so a second is 1,000 tokens of work. The bounds are derived beside each test.
"""

from __future__ import annotations

import pytest
from prefleet_runtime.contract import PolicyName, RuntimePolicy
from prefleet_runtime.queueing import Dispatch, Lane, PolicyQueue, RequestFacts, make_queue

SHORT, LONG = 100, 1000
SECONDS_A_TOKEN = 0.001


def overload(
    policy: RuntimePolicy, short_every_s: float, long_every_s: float, until_s: float, long: int = LONG
) -> list[Dispatch]:
    """All dispatches of a run in which shorts and longs arrive at fixed intervals."""
    queue: PolicyQueue[int] = make_queue(policy)
    arrivals = sorted(
        (number * every_s, tokens)
        for every_s, tokens in ((short_every_s, SHORT), (long_every_s, long))
        for number in range(int(until_s / every_s))
    )
    now, at, processed, dispatches = 0.0, 0, 0, []
    while now < until_s:
        while at < len(arrivals) and arrivals[at][0] <= now:
            queue.add(at, RequestFacts(str(at), *arrivals[at]))
            at += 1
        queue.begin_step(now, processed)
        request = queue.pop()
        tokens = arrivals[request][1]
        dispatches.append(queue.commit(str(request), now, tokens))
        now += tokens * SECONDS_A_TOKEN
        processed += tokens
    return [dispatch for dispatch in dispatches if dispatch is not None]


def srf(long_max_wait_ms: int, aged_share: float = 0.25) -> RuntimePolicy:
    return RuntimePolicy(
        generation=1,
        policy=PolicyName.SHORT_REQUEST_FIRST,
        threshold=500,
        long_max_wait_ms=long_max_wait_ms,
        aged_share=aged_share,
    )


def waits(dispatches: list[Dispatch], tokens: int) -> list[float]:
    return [dispatch.wait_s for dispatch in dispatches if dispatch.length == tokens]


def test_strict_short_first_starves_longs_under_an_overload_of_shorts() -> None:
    """Shorts alone offer 1.25 of the capacity; only the long that found the server idle is served."""
    dispatches = overload(srf(0), short_every_s=0.08, long_every_s=10, until_s=300)
    assert len(waits(dispatches, LONG)) <= 1


def test_a_wait_limit_serves_every_long_within_its_bound_under_an_overload_of_shorts() -> None:
    """Longs offer 0.1 of the capacity, less than their share of 0.25, so the debt of one is paid before the next
    ages: 750 tokens of it take 3,000 tokens of shorts, 3 s, and longs come every 10 s. Hence each goes once it
    has waited 5 s and the request then served has ended: 0.1 s for a short."""
    dispatches = overload(srf(5000), short_every_s=0.08, long_every_s=10, until_s=300)
    served = waits(dispatches, LONG)
    assert len(served) >= 29
    assert max(served) <= 5.0 + 0.1 + 1e-6


def by_ratio() -> RuntimePolicy:
    return RuntimePolicy(generation=1, policy=PolicyName.HRRN)


SHORTS_SATURATE = {"short_every_s": 0.08, "long_every_s": 5.0, "until_s": 400.0, "long": 200}
"""Shorts of 100 tokens alone offer 1.25 of the capacity, longs of 200 add 0.04."""


def test_response_ratios_serve_every_long_within_their_bound_under_an_overload_of_shorts() -> None:
    """A long of L tokens has waited for w tokens of work. A short of s is ahead of it only if it has waited for more
    than w s / L, so what overtakes arrived in the first w (1 - s / L) of that wait: at a load of r by shorts, r times
    as much work. With the backlog B that it found (and one request that had begun, and one more for rounding) it
    goes at the latest when w = B + r w (1 - s / L), that is w = B / (1 - r (1 - s / L)): here B / 0.375. At load
    1.29 the backlog has grown to 0.29 of the time by then."""
    dispatches = overload(by_ratio(), **SHORTS_SATURATE)
    rounding_s = 0.3
    bounds = [(0.29 * arrival_s + rounding_s) / 0.375 for arrival_s in range(0, 400, 5)]
    due = [bound for number, bound in enumerate(bounds) if 5 * number + bound < 400]
    served = waits(dispatches, 200)
    assert len(due) > 40
    assert len(served) >= len(due)
    assert all(wait <= bound for wait, bound in zip(served, bounds, strict=False))


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(srf(0), id="strict short-first"),
        pytest.param(
            RuntimePolicy(generation=1, policy=PolicyName.PROMOTE_SHORTEST), id="one request a step, the shortest"
        ),
    ],
)
def test_under_the_same_overload_short_first_serves_no_long(policy: RuntimePolicy) -> None:
    changed = policy.model_copy(update={"threshold": SHORT})
    assert len(waits(overload(changed, **SHORTS_SATURATE), 200)) <= 1


def test_response_ratios_starve_longs_that_are_too_long_for_an_overload_that_lasts() -> None:
    """The bound needs r (1 - s / L) < 1. With L = 1,000 and r = 1.25 it is 1.125: the shorts' own ratios grow faster
    than the long's. The overload has to end first, or be less than L / (L - s)."""
    assert len(waits(overload(by_ratio(), short_every_s=0.08, long_every_s=10, until_s=300), LONG)) <= 1
    assert len(waits(overload(by_ratio(), short_every_s=0.1 / 1.05, long_every_s=100, until_s=300), LONG)) >= 2


LONGS_SATURATE = {"short_every_s": 0.5, "long_every_s": 0.8, "until_s": 120.0}
"""Longs alone offer 1.25 of the capacity, shorts 0.2."""


def test_the_plain_rule_flips_to_long_first_under_an_overload_of_longs() -> None:
    """Once every long is aged nothing else is served: the last minute dispatches hardly a short."""
    dispatches = overload(srf(2000, aged_share=1.0), **LONGS_SATURATE)
    assert [dispatch.lane for dispatch in dispatches[-50:]].count(Lane.SHORT) == 0


def test_the_share_keeps_shorts_moving_under_an_overload_of_longs() -> None:
    """A short finds at most a long just begun (1 s); with the debt at 0 one aged long goes before it (1 s); in
    those 2 s up to 4 shorts gather, which all go before the next long: a short waits 2.4 s at the most."""
    dispatches = overload(srf(2000), **LONGS_SATURATE)
    assert len(waits(dispatches, SHORT)) >= 236
    assert max(waits(dispatches, SHORT)) <= 2.4


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_aged_longs_take_their_share_of_the_tokens_and_no_more(share: float) -> None:
    """Both kinds saturate; the debt bounds what longs may be ahead to one long."""
    dispatches = overload(srf(1, aged_share=share), short_every_s=0.05, long_every_s=0.5, until_s=400)
    long_tokens = LONG * len(waits(dispatches, LONG))
    total = long_tokens + SHORT * len(waits(dispatches, SHORT))
    assert share * total - LONG <= long_tokens <= share * total + 2 * LONG
