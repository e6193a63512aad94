"""What the look-up of a cached length costs: look-ups in the block pool are counted, microseconds only printed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil, log2
from statistics import median
from time import perf_counter_ns
from typing import Any

import pytest
from prefleet_runtime.vllm.cached_length import cached_length
from vllm.v1.request import Request

from tests.vllm.inproc.conftest import FIRST_COME, Start
from tests.vllm.inproc.engine import BLOCK, Engine

CACHED_BLOCKS = 500
CACHED_TOKENS = CACHED_BLOCKS * BLOCK
MOST_LOOKUPS = ceil(log2(CACHED_BLOCKS)) + 1
PREFIX = list(range(CACHED_TOKENS))
REPEATS = 300


@pytest.fixture
def engine(start: Start) -> Engine:
    """8,000 tokens are cached."""
    engine = start(FIRST_COME, budget=8192)
    engine.add("writer", CACHED_TOKENS + 1, prefix=PREFIX, max_tokens=1)
    engine.run()
    return engine


def reader(engine: Engine, shared_blocks: int) -> Request:
    """A request of 8,001 tokens or more that begins with some of the cached ones; it only waits."""
    request = engine.add(f"shares {shared_blocks}", CACHED_TOKENS + 1, prefix=PREFIX[: shared_blocks * BLOCK])
    engine.abort(request.request_id)
    return request


@pytest.mark.parametrize("shared", [0, 1, 2, 249, 250, 251, 498, 499, 500], ids=lambda shared: f"{shared} blocks")
def test_lookups_grow_with_the_logarithm_of_what_is_cached(
    engine: Engine, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = engine.scheduler.kv_cache_manager
    get_cached_block = manager.block_pool.get_cached_block
    lookups: list[Any] = []
    monkeypatch.setattr(
        manager.block_pool,
        "get_cached_block",
        lambda block_hash, groups: lookups.append(block_hash) or get_cached_block(block_hash, groups),
    )
    assert cached_length(manager)(reader(engine, shared)) == shared * BLOCK
    assert 0 < len(lookups) <= MOST_LOOKUPS


def test_a_lookup_of_8000_cached_tokens_is_measured(engine: Engine) -> None:
    """Beside asking the cache manager, which walks all of the blocks. No bar: the machine may be busy."""
    request = reader(engine, CACHED_BLOCKS)
    cached_tokens, ask = engine.scheduler.prefleet.cached_tokens, engine.scheduler.kv_cache_manager.get_computed_blocks
    assert cached_tokens(request) == ask(request)[1] == CACHED_TOKENS
    ours, asked = (microseconds(partial(look_up, request)) for look_up in (cached_tokens, ask))
    print(f"\na look-up at {CACHED_TOKENS} cached tokens: {ours:.1f} us, by the cache manager {asked:.0f} us (medians)")


def microseconds(call: Callable[[], Any]) -> float:
    """The median time of a call."""
    times = []
    for _ in range(REPEATS):
        begun = perf_counter_ns()
        call()
        times.append(perf_counter_ns() - begun)
    return median(times) / 1000
