"""First come, first served, but the one shortest request goes before the rest in each step.

Order of a step: immediate requests in arrival order; then the shortest of the others, the first of equals; then
the rest in arrival order. Which one is promoted is fixed when the step begins, as the order is: once it has been
popped the rest follows in arrival order, and a shorter one that arrives meanwhile has to wait for the next step.
A promoted request that steps aside, is aborted or has begun loses that place; nobody else takes it in this step.

The shortest is found without a heap of requests: requests of one length are a bucket in arrival order, and a
heap holds each length once. It moves only when a length comes or goes, so a request costs O(1), and O(log k) with
k lengths where it is the first or the last of its length.

What it does badly: one promotion a step is all that short requests get, so behind a deep queue most of them wait
as long as under FCFS. And a step that has room for one request only takes the shortest: where every step is such
a step and shorter ones keep coming, the oldest starves.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic

from ..contract import RuntimePolicy
from .base import Lane, RequestFacts, T
from .fifo import Entry, Fifo, LaneFifo
from .store import StoredQueue

_SLACK = 16


class LengthBuckets(Generic[T]):
    """Stored requests by length. `heap` holds the length of every bucket once, that of an emptied one until it
    surfaces or most are empty."""

    __slots__ = ("_buckets", "_empty", "_heap")

    def __init__(self) -> None:
        self._buckets: dict[int, Fifo[T]] = {}
        self._heap: list[int] = []
        self._empty = 0

    def push(self, entry: Entry[T]) -> None:
        """Store in the bucket of its length."""
        bucket = self._buckets.get(entry.length)
        if bucket is None:
            bucket = self._buckets[entry.length] = Fifo()
            heappush(self._heap, entry.length)
        elif bucket.first is None:
            self._empty -= 1
        entry.bucket = bucket
        bucket.push(entry)

    def drop(self, entry: Entry[T]) -> None:
        """Take out; as for `Fifo.drop`, `stored` is False already."""
        bucket = entry.bucket
        assert bucket is not None
        bucket.drop(entry)
        if bucket.first is None:
            self._empty += 1
            if 2 * self._empty > len(self._heap) + _SLACK:
                self._sweep()

    def shortest(self) -> Entry[T] | None:
        """The first of the shortest."""
        while self._heap:
            first = self._buckets[self._heap[0]].first
            if first is not None:
                return first
            del self._buckets[heappop(self._heap)]
            self._empty -= 1
        return None

    def _sweep(self) -> None:
        self._buckets = {length: bucket for length, bucket in self._buckets.items() if bucket.first is not None}
        self._heap = list(self._buckets)
        heapify(self._heap)
        self._empty = 0

    def _check(self) -> None:
        assert sorted(self._heap) == sorted(self._buckets), "the heap does not hold each length once"
        assert self._empty == sum(bucket.first is None for bucket in self._buckets.values()), "empty buckets miscounted"
        assert 2 * self._empty <= len(self._heap) + _SLACK, "too many empty buckets are kept"
        for length, bucket in self._buckets.items():
            bucket._check()
            assert all(entry.length == length and entry.bucket is bucket for entry in bucket), "in the wrong bucket"


class PromoteShortest(StoredQueue[T]):
    """Immediate, then the shortest, then arrival order."""

    LANES = (Lane.IMMEDIATE, Lane.ALL)

    def __init__(self, policy: RuntimePolicy) -> None:
        super().__init__(policy)
        self._all = self._lanes[Lane.ALL]
        self._by_length: LengthBuckets[T] = LengthBuckets()
        self._promoted: Entry[T] | None = None

    def _lane_of(self, facts: RequestFacts, length: int) -> LaneFifo[T]:
        return self._all

    def _insert(self, entry: Entry[T]) -> None:
        entry.home.push(entry)
        if entry.home is self._all:
            self._by_length.push(entry)
            if self._promoted is not None and entry.seq == self._promoted.seq:  # put back: in its place again
                self._promoted = entry

    def _discard(self, entry: Entry[T]) -> None:
        entry.home.drop(entry)
        if entry.bucket is not None:
            self._by_length.drop(entry)

    def _fix_order(self) -> None:
        self._promoted = self._by_length.shortest()

    def _choose(self) -> Entry[T] | None:
        immediate = self._immediate.first
        if immediate is not None:
            return immediate
        promoted = self._promoted
        return promoted if promoted is not None and promoted.stored else self._all.first

    def _ordered(self) -> Iterator[Entry[T]]:
        yield from self._immediate
        promoted = self._promoted
        if promoted is not None and promoted.stored:
            yield promoted
        yield from (entry for entry in self._all if entry is not promoted)

    def _check(self) -> None:
        super()._check()
        self._by_length._check()
        stored = [entry for bucket in self._by_length._buckets.values() for entry in bucket]
        assert sorted(stored) == list(self._all), "lane and buckets disagree"
