"""Requests in arrival order, with removal anywhere and insertion at any place: a lane, or a bucket of equals.

Nearly every request arrives last and leaves first, so a `Fifo` is a deque by arrival number (`_tail`). What comes
back to a place in the middle goes to a small heap beside it (`_early`); the first is the smaller of the two heads.
An entry taken from the middle is only marked (`stored` is False): it is skipped when it surfaces, and swept out
with its like once they may be as many as those that are left. Hence the one rule for whoever stores entries: what
was taken out is never stored again; to put a request back, store its successor (`Entry.renewed`).

Cost: O(1) amortised for arrivals, heads and removals; O(log k) for what comes back, k being how many are back.
Memory: at most twice what is stored, and a constant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from typing import Generic

from .base import Lane, RequestFacts, T

_SLACK = 16


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """One request in a queue: its frozen key and where it is in its life.

    `seq` is its arrival number, `home` its lane, `length` what the policy compares (tokens), `cost` its uncached
    tokens and `processed` the processed-token counter, both when it was added; `turn` the number of its last pop.
    `stored`: it is in its lane (not out, not stepping aside); `ready`: it waits for nothing but its turn.
    `bucket` is for policies that keep equals together, `aged` (when it was popped) and `held` (back, by the share)
    for those that promote.
    """

    item: T
    facts: RequestFacts
    seq: int
    home: LaneFifo[T]
    length: int
    cost: int
    processed: int
    deferred: bool
    stored: bool = False
    ready: bool = False
    out: bool = False
    turn: int = 0
    bypasses: int = 0
    aged: bool = False
    held: bool = False
    bucket: Fifo[T] | None = None

    def __lt__(self, other: Entry[T]) -> bool:
        return self.seq < other.seq

    def renewed(self) -> Entry[T]:
        """The same request, to be stored again. It alone counts as ready from now on."""
        successor = Entry(
            self.item, self.facts, self.seq, self.home, self.length, self.cost, self.processed, self.deferred
        )
        successor.turn, successor.bypasses = self.turn, self.bypasses
        successor.aged, successor.held = self.aged, self.held
        successor.ready, self.ready, self.out = self.ready, False, False
        return successor


class Fifo(Generic[T]):
    """Stored entries in arrival order; `first` is the first of them."""

    __slots__ = ("_early", "_last", "_tail", "_taken", "first")

    def __init__(self) -> None:
        self.first: Entry[T] | None = None
        self._tail: deque[Entry[T]] = deque()
        self._last = 0
        self._early: list[Entry[T]] = []
        self._taken = 0

    def push(self, entry: Entry[T]) -> None:
        """Store at the place of its arrival number."""
        tail, seq = self._tail, entry.seq
        if not tail or seq > self._last:
            tail.append(entry)
            self._last = seq
        elif seq < tail[0].seq:
            tail.appendleft(entry)
        else:
            heappush(self._early, entry)
        if self.first is None or seq < self.first.seq:
            self.first = entry

    def drop(self, entry: Entry[T]) -> None:
        """Take out an entry, wherever it is: it was stored here and `stored` is False now."""
        if entry is self.first:
            self._settle()
            return
        self._taken += 1
        if self._taken > _SLACK + (len(self._tail) + len(self._early)) // 2:
            self._sweep()

    def some(self, limit: int) -> list[Entry[T]]:
        """The first, and some of those that follow it, `limit` at most. O(limit)."""
        if self.first is None:
            return []
        rest = (entry for entry in islice(self._tail, limit) if entry.stored and entry is not self.first)
        return [self.first, *islice(rest, limit - 1)]

    def __iter__(self) -> Iterator[Entry[T]]:
        """What is stored, in arrival order. O(n), and O(k log k) for the k that came back."""
        early = sorted(self._early)
        return (entry for entry in (merge(early, self._tail) if early else self._tail) if entry.stored)

    def _settle(self) -> None:
        """Forget what was taken at both heads, and find the first."""
        tail, early = self._tail, self._early
        while tail and not tail[0].stored:
            tail.popleft()
        while early and not early[0].stored:
            heappop(early)
        if early and (not tail or early[0].seq < tail[0].seq):
            self.first = early[0]
        else:
            self.first = tail[0] if tail else None

    def _sweep(self) -> None:
        self._tail = deque(entry for entry in self._tail if entry.stored)
        self._early = [entry for entry in self._early if entry.stored]
        heapify(self._early)
        self._taken = 0

    def _check(self) -> None:
        tail = [entry.seq for entry in self._tail]
        assert tail == sorted(tail), "the tail is not in arrival order"
        assert not tail or self._last >= tail[-1], "the tail ends behind its last number"
        assert self.first is next(iter(self), None), "the first is not the first"
        everything = [*self._tail, *self._early]
        taken = sum(not entry.stored for entry in everything)
        assert taken <= self._taken, "what was taken is counted wrongly"
        assert 2 * taken <= len(everything) + 2 * _SLACK, "too much that was taken is kept"
        assert len({id(entry) for entry in everything}) == len(everything), "a request is in two parts"


class LaneFifo(Fifo[T]):
    """The stored entries of one lane, and what the lane counts.

    `size` and `tokens` (the sum of the lengths) count all that waits, also what steps aside; `ready` and
    `ready_tokens` count the requests of this lane that wait for nothing but their turn.
    """

    __slots__ = ("lane", "ready", "ready_tokens", "size", "tokens")

    def __init__(self, lane: Lane) -> None:
        super().__init__()
        self.lane = lane
        self.size = 0
        self.tokens = 0
        self.ready = 0
        self.ready_tokens = 0
