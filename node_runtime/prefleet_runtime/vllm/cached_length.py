"""How many tokens of a waiting request's prompt the prefix cache holds at this moment.

With one group of full attention, block hashes are chained: a block can hit only if all before it do, so the
length of the hit is found by bisection over the request's block hashes, in a few microseconds whatever it is.
With anything else (sliding windows, Mamba layers, several groups, sharded contexts, a drafter that drops the
last block) the KV-cache manager is asked, which costs up to half a millisecond on a long hit but is right; that
is for each new request and for one waiting long a step (`heads_looked_at`), where bisection affords several.

An evicted block in the middle makes the answer approximate: bisection may then find a shorter or a longer hit
than a walk from the front. It decides a lane, never what is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.core.kv_cache_coordinator import UnitaryKVCacheCoordinator
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

from ..governor import HEADS_LOOKED_AT

CachedLength = Callable[[Any], int]


def cached_length(kv_cache_manager: Any) -> CachedLength:
    """The cheapest exact-enough way to tell a request's cached tokens with this KV-cache manager."""
    if not kv_cache_manager.enable_caching:
        return lambda request: 0
    lookup = _bisecting(kv_cache_manager) if _is_one_plain_group(kv_cache_manager) else _asking(kv_cache_manager)
    return lambda request: 0 if request.skip_reading_prefix_cache else lookup(request)


def heads_looked_at(kv_cache_manager: Any) -> int:
    """How many waiting longs are worth a look in each step, given what one look costs."""
    return HEADS_LOOKED_AT if _is_one_plain_group(kv_cache_manager) else 1


def _is_one_plain_group(kv_cache_manager: Any) -> bool:
    coordinator = kv_cache_manager.coordinator
    return (
        isinstance(coordinator, UnitaryKVCacheCoordinator)
        and type(coordinator.kv_cache_spec) in (FullAttentionSpec, MLAAttentionSpec)
        and coordinator.block_size == kv_cache_manager.block_pool.hash_block_size
        and not kv_cache_manager.use_eagle
    )


def _bisecting(kv_cache_manager: Any) -> CachedLength:
    block_size: int = kv_cache_manager.coordinator.block_size
    get_cached_block = kv_cache_manager.block_pool.get_cached_block

    def lookup(request: Any) -> int:
        # The last token is always computed, for its logits: a block that holds it does not count.
        hit, miss = 0, min(len(request.block_hashes), (request.num_tokens - 1) // block_size) + 1
        while miss - hit > 1:
            middle = (hit + miss) // 2
            if get_cached_block(request.block_hashes[middle - 1], [0]) is not None:
                hit = middle
            else:
                miss = middle
        return hit * block_size

    return lookup


def _asking(kv_cache_manager: Any) -> CachedLength:
    def lookup(request: Any) -> int:
        if getattr(request, "kv_cache_report_mode", "incremental") == "full":
            return 0  # such a look-up emits an event for each block found: it may not be made twice
        _, tokens, *_ = kv_cache_manager.get_computed_blocks(request)
        return int(tokens)

    return lookup
