"""The prefix cache: leading blocks are shared while used, kept while there is room, and accounted for always."""

from __future__ import annotations

from random import Random

import pytest
from prefleet_runtime.contract import RuntimePolicy
from prefleet_runtime.queueing import make_queue
from prefleet_runtime.sim.cost_model import DEFAULT_PROFILE
from prefleet_runtime.sim.engine import Engine, PlainQueue
from prefleet_runtime.sim.prefix_cache import PrefixCache
from prefleet_runtime.sim.state import Limits, SimRequest

BLOCK = 64
PROMPT = 10 * BLOCK + 5


def engine(kv_tokens: int = 100 * BLOCK) -> Engine:
    queue = PlainQueue(make_queue(RuntimePolicy(generation=1)))
    return Engine(DEFAULT_PROFILE, Limits(kv_cache_tokens=kv_tokens, prefix_block_tokens=BLOCK), queue)


def request(name: str, prefix: list[int], prompt: int = PROMPT, output: int = 1) -> SimRequest:
    return SimRequest(name, prompt, output, 0.0, prefix=prefix)


def run(subject: Engine, *requests: SimRequest) -> list[int]:
    """Prefill tokens of each step until all are done."""
    for each in requests:
        subject.submit(each)
    steps = []
    while (plan := subject.schedule(0.0)) is not None:
        steps.append(plan.prefill_tokens)
        subject.finish(plan, 0.0)
        subject.check_integrity()
    return steps


def test_what_one_request_computed_the_next_finds() -> None:
    subject = engine()
    assert run(subject, request("a", list(range(10)))) == [PROMPT]
    other = request("b", [*range(6), 97, 98, 99, 100])
    assert run(subject, other) == [PROMPT - 6 * BLOCK]
    assert other.cached_tokens == 6 * BLOCK


def test_the_last_token_is_always_computed() -> None:
    subject = engine()
    whole = list(range(10))
    run(subject, request("a", whole, prompt=10 * BLOCK))
    assert run(subject, request("b", whole, prompt=10 * BLOCK)) == [BLOCK]


def test_a_block_counts_only_after_all_before_it() -> None:
    subject = engine()
    run(subject, request("a", list(range(10))))
    assert run(subject, request("b", [99, *range(1, 10)])) == [PROMPT]


def test_what_was_not_used_for_longest_makes_room() -> None:
    subject = engine(kv_tokens=25 * BLOCK)
    run(subject, request("a", list(range(10))))
    run(subject, request("b", list(range(100, 110))))
    run(subject, request("a again", list(range(10))))
    run(subject, request("c", list(range(200, 210))))
    assert subject.kv.cached_tokens(request("a", list(range(10)))) == 10 * BLOCK
    assert subject.kv.cached_tokens(request("b", list(range(100, 110)))) < 10 * BLOCK


def test_requests_that_run_together_share_no_prefill_but_leave_one_copy() -> None:
    subject = engine()
    twins = [request(name, list(range(10)), output=3) for name in "ab"]
    assert run(subject, *twins)[0] == 2 * PROMPT
    assert subject.kv.free == subject.kv.total


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_in_a_small_cache_whatever_happens(seed: int) -> None:
    rng, subject, now = Random(seed), engine(kv_tokens=30 * BLOCK), 0.0
    live: list[str] = []
    for number in range(150):
        chain = [rng.randrange(3) * 100 + depth for depth in range(rng.randrange(1, 9))]
        prompt = len(chain) * BLOCK + rng.randrange(1, BLOCK)
        live.append(str(number))
        subject.submit(
            SimRequest(live[-1], prompt, rng.randrange(1, 200), now, keep_kv=rng.random() < 0.2, prefix=chain)
        )
        for _ in range(rng.randrange(4)):
            plan = subject.schedule(now)
            if plan is not None:
                now += plan.cost_s
                subject.finish(plan, now)
        if rng.random() < 0.2:
            name = rng.choice(live)
            subject.abort(name)
            subject.release(name)
        subject.check_integrity()
    while subject.unfinished or subject.held:
        plan = subject.schedule(now)
        if plan is None:
            now = max(now, subject.next_event_s() or now)  # the last leases may have ended in this very step
            continue
        now += plan.cost_s
        subject.finish(plan, now)
    subject.check_integrity()
    assert subject.kv.free == subject.kv.total


def test_a_cached_block_holds_whole_kv_blocks() -> None:
    with pytest.raises(ValueError, match="prefix_block_tokens is 24"):
        Limits(prefix_block_tokens=24)
    with pytest.raises(ValueError, match="per_block"):
        PrefixCache(0)
