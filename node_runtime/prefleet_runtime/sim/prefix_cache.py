"""The prefix cache of a simulated engine: which leading blocks of a prompt are computed already.

A cached block stands for `per_block` KV blocks. While requests use it, it is *referenced* and takes room; once the last
of them ended it is kept as long as nobody needs the room (*idle*), the one that has been idle longest going first. A
prompt's blocks become known when its prefill is complete.

Hashes are chained as an engine's are: one is equal only if all before it are. So a match ends at the first unknown one.

Invariant (`Engine.check_integrity`): idle blocks count as free KV blocks; referenced ones do not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """See the module. `idle_kv_blocks`: KV blocks that could be evicted."""

    __slots__ = ("_idle", "_references", "per_block")

    def __init__(self, per_block: int) -> None:
        if per_block < 1:
            raise ValueError(f"per_block is {per_block}: a cached block holds at least one KV block")
        self.per_block = per_block
        self._references: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def idle_kv_blocks(self) -> int:
        return len(self._idle) * self.per_block

    @property
    def referenced_kv_blocks(self) -> int:
        return len(self._references) * self.per_block

    def match(self, hashes: Sequence[int]) -> int:
        """How many leading blocks are here."""
        for number, block in enumerate(hashes):
            if block not in self._references and block not in self._idle:
                return number
        return len(hashes)

    def idle_among(self, hashes: Sequence[int]) -> int:
        """How many KV blocks a use of these would take from what counts as free."""
        return self.per_block * sum(block in self._idle for block in hashes)

    def use(self, hashes: Sequence[int]) -> None:
        """One more request uses these blocks, all of which are here."""
        for block in hashes:
            if block in self._idle:
                del self._idle[block]
                self._references[block] = 1
            else:
                self._references[block] += 1

    def publish(self, hashes: Sequence[int]) -> list[int]:
        """A request has computed these: those that were unknown are its own contribution, in use by it."""
        new = [block for block in hashes if block not in self._references and block not in self._idle]
        self._references.update(dict.fromkeys(new, 1))
        return new

    def leave(self, hashes: Sequence[int]) -> int:
        """A request uses these no more; answers how many KV blocks became idle."""
        before = len(self._idle)
        # The last block of a prefix is of least use alone: it goes first.
        for block in reversed(hashes):
            self._references[block] -= 1
            if not self._references[block]:
                del self._references[block]
                self._idle[block] = None
        return self.per_block * (len(self._idle) - before)

    def evict_until(self, kv_blocks: int) -> None:
        """Forget idle blocks until at most `kv_blocks` are idle."""
        while len(self._idle) * self.per_block > kv_blocks:
            self._idle.popitem(last=False)
