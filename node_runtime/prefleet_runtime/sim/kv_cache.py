"""The KV cache of a simulated engine: whose the blocks are, and what of a prompt is there already.

A block is free, a request's own, held for another pod, or the prefix cache's. A request starts only if its whole
prompt `fits`, sharing the blocks that the prefix cache has, and takes blocks of its own chunk by chunk, as vLLM does:
nothing keeps the rest for it. What ends gives back.

Invariant (`check`): these four add up to the cache; idle blocks of the prefix cache count as free and are evicted as
soon as room is needed, so there are never more of them than free ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prefleet_runtime.sim.prefix_cache import PrefixCache
from prefleet_runtime.sim.state import BLOCK_TOKENS, Held, Limits, SimRequest, blocks_for


class KvCache:
    """See the module. `free`: blocks that can be had at once."""

    __slots__ = ("_block_tokens", "_prefixes", "free", "total")

    def __init__(self, limits: Limits) -> None:
        self.total = self.free = limits.blocks
        self._block_tokens = limits.prefix_block_tokens
        self._prefixes = PrefixCache(self._block_tokens // BLOCK_TOKENS) if self._block_tokens else None

    def cached_tokens(self, request: SimRequest) -> int:
        """How much of a prompt could be shared now, in whole blocks; its last token is always computed."""
        return len(self._shareable(request)) * self._block_tokens

    def fits(self, request: SimRequest) -> bool:
        """Whether a request that has no blocks could start."""
        blocks = blocks_for(request.known_tokens)
        shared = self._shareable(request)
        if shared and self._prefixes is not None:
            blocks += self._prefixes.idle_among(shared) - len(shared) * self._prefixes.per_block
        return blocks <= self.free

    def start(self, request: SimRequest) -> None:
        """Begin a request that `fits`: what it shares is computed already; its own blocks come by `grow`."""
        shared = self._shareable(request)
        if shared and self._prefixes is not None:
            self.free -= self._prefixes.idle_among(shared)
            self._prefixes.use(shared)
            request.shared = list(shared)
            request.computed = request.cached_tokens = len(shared) * self._block_tokens
            self._prefixes.evict_until(self.free)

    def grow(self, request: SimRequest, tokens: int) -> bool:
        """Give what `tokens` more need; False, and nothing happens, if there is no room."""
        missing = blocks_for(request.computed + tokens) - request.blocks
        if request.shared and self._prefixes is not None:
            missing -= len(request.shared) * self._prefixes.per_block
        if missing <= 0:
            return True
        if missing > self.free:
            return False
        self._take(request, missing)
        return True

    def publish(self, request: SimRequest) -> None:
        """A prompt is computed: its blocks are the prefix cache's from now on, but those that it knew already."""
        if self._prefixes is not None:
            new = self._prefixes.publish(request.prefix[len(request.shared) :])
            request.shared += new
            request.blocks -= len(new) * self._prefixes.per_block

    def release(self, request: SimRequest) -> None:
        """Take back whatever a request has."""
        self.free += request.blocks + self._leave(request.shared)
        request.blocks, request.shared = 0, []

    def hold(self, request: SimRequest, expires_s: float) -> Held:
        """Take over what a request has, for another pod."""
        held = Held(request.blocks, expires_s, request.shared)
        request.blocks, request.shared = 0, []
        return held

    def release_held(self, held: Held) -> None:
        """The other pod needs it no more."""
        self.free += held.blocks + self._leave(held.shared)

    def check(self, requests: Iterable[SimRequest], held: Iterable[Held]) -> None:
        """Raise AssertionError if the invariant is broken."""
        owned = sum(request.blocks for request in requests) + sum(kept.blocks for kept in held)
        shared = self._prefixes.referenced_kv_blocks if self._prefixes is not None else 0
        idle = self._prefixes.idle_kv_blocks if self._prefixes is not None else 0
        total = self.free + owned + shared
        assert total == self.total, f"{total} blocks are accounted for, the cache has {self.total}"
        assert self.free >= idle, f"{self.free} blocks are free, and {idle} of them idle"

    def _shareable(self, request: SimRequest) -> Sequence[int]:
        if self._prefixes is None or not request.prefix or request.remote_kv:
            return ()
        most = (request.prompt_tokens - 1) // self._block_tokens
        return request.prefix[: min(most, self._prefixes.match(request.prefix))]

    def _take(self, request: SimRequest, blocks: int) -> None:
        self.free -= blocks
        request.blocks += blocks
        if self._prefixes is not None:
            self._prefixes.evict_until(self.free)

    def _leave(self, shared: Sequence[int]) -> int:
        return self._prefixes.leave(shared) if shared and self._prefixes is not None else 0
