"""Highest response ratio next: who has waited longest for what it costs.

Immediate requests first, in arrival order; then by the most prefill work done since a request arrived, for each
token that it costs itself:

    (processed - processed at its arrival) / cost        equal ratios: the one that arrived first

`processed` counts the tokens of all submitted steps that carried prefill, so nothing depends on a clock. The cost
is the uncached part of the prompt, at least 1, frozen when the request is added. `processed` is fixed when a step
begins, and so is the order of the step. A request that arrives within the step counts from its counter.

What may overtake a long of L tokens: of requests of s tokens, those that arrived in the first 1 - s/L of its wait.
So under a load r of them it waits at most 1 / (1 - r (1 - s/L)) times the backlog that it found, where r is less
than L / (L - s).

Nothing is sorted. Ratios are straight lines in `processed`: of equal costs the first to arrive is always ahead,
so they are one bucket in arrival order, and a tournament finds the highest line among the heads of the buckets
(`tournament.py`). All comparisons are of whole numbers. With k different costs: O(1) for what is not the head of
its bucket, else O(log k) amortised. Iterating in policy order sorts.

What it does badly: under an overload every wait grows in proportion to the cost, that of shorts too; and one by
shorts at L / (L - s) or more starves the long while it lasts. A cost that turns out wrong (the cached part was
evicted) is never corrected.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cmp_to_key

from ..contract import RuntimePolicy
from .base import Lane, RequestFacts, T
from .fifo import Entry, Fifo, LaneFifo
from .store import StoredQueue
from .tournament import Tournament


class HighestResponseRatioNext(StoredQueue[T]):
    """Immediate, then by ratio."""

    LANES = (Lane.IMMEDIATE, Lane.ALL)

    def __init__(self, policy: RuntimePolicy) -> None:
        super().__init__(policy)
        self._all = self._lanes[Lane.ALL]
        self._by_cost: dict[int, Fifo[T]] = {}
        self._heads: Tournament[Entry[T]] = Tournament()

    def _lane_of(self, facts: RequestFacts, length: int) -> LaneFifo[T]:
        return self._all

    def _insert(self, entry: Entry[T]) -> None:
        entry.home.push(entry)
        if entry.home is not self._all:
            return
        bucket = self._by_cost.get(entry.cost)
        if bucket is None:
            bucket = self._by_cost[entry.cost] = Fifo()
        entry.bucket = bucket
        bucket.push(entry)
        if bucket.first is entry:
            self._heads.set((entry.processed, entry.cost, entry.seq, entry))

    def _discard(self, entry: Entry[T]) -> None:
        entry.home.drop(entry)
        bucket = entry.bucket
        if bucket is None:
            return
        was_first = bucket.first is entry
        bucket.drop(entry)
        head = bucket.first
        if head is None:
            del self._by_cost[entry.cost]
            self._heads.remove(entry.cost)
        elif was_first:
            self._heads.set((head.processed, head.cost, head.seq, head))

    def _choose(self) -> Entry[T] | None:
        return self._immediate.first or self._heads.ahead(self._processed)

    def _ordered(self) -> Iterator[Entry[T]]:
        yield from self._immediate
        yield from sorted(self._all, key=cmp_to_key(self._compare))

    def _compare(self, one: Entry[T], other: Entry[T]) -> int:
        """Negative if `one` goes first."""
        behind = (self._processed - other.processed) * one.cost - (self._processed - one.processed) * other.cost
        return behind or one.seq - other.seq

    def _check(self) -> None:
        super()._check()
        self._heads._check()
        heads = {cost: bucket.first for cost, bucket in self._by_cost.items()}
        assert self._heads.lines() == heads, "the tournament does not hold the heads of the buckets"
        for cost, bucket in self._by_cost.items():
            bucket._check()
            assert all(entry.cost == cost and entry.bucket is bucket for entry in bucket), "in the wrong bucket"
            starts = [entry.processed for entry in bucket]
            assert starts == sorted(starts), "a bucket is not in order of its ratios"
        stored = [entry for bucket in self._by_cost.values() for entry in bucket]
        assert sorted(stored) == list(self._all), "lane and buckets disagree"
