"""One lane: requests in arrival order, with removal anywhere and insertion at any place.

Nearly every request arrives last and leaves first, so the lane is an `OrderedDict` by arrival number (`_tail`).
What comes back out of order (put back after a pop, moved from another lane) goes to a small heap beside it
(`_early`, `_heap`); the first of the lane is the smaller of the two heads. A request taken from the middle of
the heap is only forgotten there: its number is skipped when it surfaces, and the heap is rebuilt once most of
it is such numbers. Requests may step aside (`hide_first`): they are counted, but not first, until `unhide`.

Cost: O(1) for arrivals, heads and removals; O(log k) amortised for what comes back, k being how many are back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from operator import attrgetter
from typing import Generic

from .base import Lane, RequestFacts, T

_SLACK = 16


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """One request in a queue: its frozen key and where it is in its life.

    `seq` is its arrival number, `home` its lane, `length` what the policy compares (tokens), `cost` its uncached
    tokens, `turn` the number of its last pop. `ready`: it waits for nothing but its turn. `aged` (when it was
    popped) and `held` (back, by the share) are for policies that promote.
    """

    item: T
    facts: RequestFacts
    seq: int
    home: Fifo[T]
    length: int
    cost: int
    deferred: bool
    ready: bool = False
    out: bool = False
    turn: int = 0
    bypasses: int = 0
    aged: bool = False
    held: bool = False


class Fifo(Generic[T]):
    """The requests of one lane that wait, in arrival order.

    `first` is the first that is not hidden; `tokens` sums the lengths, hidden ones included. `ready` belongs to
    the queue: requests of this lane that wait for nothing but their turn.
    """

    __slots__ = ("_early", "_heap", "_hidden", "_last", "_tail", "first", "lane", "ready", "tokens")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.first: Entry[T] | None = None
        self._tail: OrderedDict[int, Entry[T]] = OrderedDict()
        self._last = 0
        self._early: dict[int, Entry[T]] = {}
        self._heap: list[int] = []
        self._hidden: dict[int, Entry[T]] = {}
        self.tokens = 0
        self.ready = 0

    def push(self, entry: Entry[T]) -> None:
        """Store at the place of its arrival number."""
        self.tokens += entry.length
        self._place(entry)

    def drop(self, entry: Entry[T]) -> None:
        """Take out a stored entry, wherever it is."""
        self.tokens -= entry.length
        if self._tail.pop(entry.seq, None) is None and self._hidden.pop(entry.seq, None) is None:
            del self._early[entry.seq]
            self._shrink()
        if entry is self.first:
            self.first = self._find_first()

    def some(self, limit: int) -> list[Entry[T]]:
        """The first, and some of those that follow it, `limit` at most. O(limit)."""
        if self.first is None:
            return []
        rest = (entry for entry in islice(self._tail.values(), limit) if entry is not self.first)
        return [self.first, *islice(rest, limit - 1)]

    def oldest(self) -> Entry[T] | None:
        """The first, hidden ones included. O(hidden)."""
        if not self._hidden:
            return self.first
        return min((*self._hidden.values(), *filter(None, [self.first])), key=attrgetter("seq"))

    def hide(self, entry: Entry[T]) -> None:
        """Let a stored entry step aside."""
        self.drop(entry)
        self.tokens += entry.length
        self._hidden[entry.seq] = entry

    def unhide(self) -> None:
        """Those that stepped aside return to their places."""
        while self._hidden:
            self._place(self._hidden.popitem()[1])

    def hidden(self) -> list[Entry[T]]:
        """Those that stepped aside, in arrival order."""
        return sorted(self._hidden.values(), key=attrgetter("seq"))

    def __iter__(self) -> Iterator[Entry[T]]:
        """All that are not hidden, in arrival order. O(n), and O(k log k) for the k that came back."""
        if not self._early:
            return iter(self._tail.values())
        return iter(sorted([*self._early.values(), *self._tail.values()], key=attrgetter("seq")))

    def __len__(self) -> int:
        return len(self._tail) + len(self._early) + len(self._hidden)

    def _place(self, entry: Entry[T]) -> None:
        if entry.seq > self._last or not self._tail:
            self._tail[entry.seq] = entry
            self._last = entry.seq
        else:
            self._early[entry.seq] = entry
            heappush(self._heap, entry.seq)
        if self.first is None or entry.seq < self.first.seq:
            self.first = entry

    def _find_first(self) -> Entry[T] | None:
        tail = next(iter(self._tail.values()), None)
        if not self._early:
            return tail
        while self._heap[0] not in self._early:
            heappop(self._heap)
        early = self._early[self._heap[0]]
        return early if tail is None or early.seq < tail.seq else tail

    def _shrink(self) -> None:
        if len(self._heap) > 2 * len(self._early) + _SLACK:
            self._heap = list(self._early)
            heapify(self._heap)

    def _check(self) -> None:
        seqs = list(self._tail)
        assert seqs == sorted(seqs), "the tail is not in arrival order"
        assert not seqs or self._last >= seqs[-1], "the tail ends behind its last number"
        assert self._early.keys() <= set(self._heap), "what came back is not in the heap"
        assert len(self._heap) <= 2 * len(self._early) + _SLACK + 1, "the heap keeps too many forgotten numbers"
        assert self.first is next(iter(self), None), "the first is not the first"
        parts = (self._tail, self._early, self._hidden)
        assert len(set().union(*parts)) == len(self), "a request is in two parts of a lane"
        assert self.tokens == sum(entry.length for part in parts for entry in part.values()), "tokens do not add up"
