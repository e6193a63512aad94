"""What all policies share: the table of requests, the lanes, the counters, the life of a request.

A policy is a subclass that says which lanes it has and answers four questions: which lane and length has a
request (`_classify`), who is next (`_choose`), in what order is the rest (`_ordered`), and what follows from a
commit (`_charge`). Everything else, each check and each count, is done here and once.

One table holds every request by id, waiting or out; the lanes hold those that wait, in arrival order. The
answer of `_choose` is kept until something changes, so a peek and its pop cannot disagree.

*Ready* requests wait for nothing but their turn: not deferred by the engine, and not left out by an earlier
step. One popped in the present step is still ready until it is committed, since it has not been dispatched.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from operator import attrgetter
from typing import ClassVar

from .base import MAX_BYPASSES, Counters, Dispatch, Lane, LaneGauge, PolicyQueue, RequestFacts, T
from .fifo import Entry, Fifo


class StoredQueue(PolicyQueue[T]):
    """The machinery of every policy; see the module's docstring for what a policy adds."""

    LANES: ClassVar[tuple[Lane, ...]]

    def __init__(self) -> None:
        self.counters = Counters()
        self._table: dict[str, Entry[T]] = {}
        self._lanes: dict[Lane, Fifo[T]] = {lane: Fifo(lane) for lane in self.LANES}
        self._next: Entry[T] | None = None
        self._popped: list[Entry[T]] = []
        self._hiding = False
        self._last_seq = 0
        self._front_seq = 0
        self._turns = 0
        self._step_turn = 0
        self._now = float("-inf")

    # What a policy answers.

    @abstractmethod
    def _classify(self, facts: RequestFacts) -> tuple[Fifo[T], int]:
        """The lane and the length of a request, from its facts alone."""

    @abstractmethod
    def _choose(self) -> Entry[T] | None:
        """The next request of this step, hidden ones left out."""

    @abstractmethod
    def _ordered(self) -> Iterator[Entry[T]]:
        """The requests that wait and are not hidden, as successive pops would give them."""

    def _fix_order(self) -> None:
        """A step begins: `_now` is its time, and nobody is hidden or newly out."""

    def _leaves(self, entry: Entry[T]) -> None:
        """A request is popped for the first time in this step; `entry.turn` is still that of an earlier one."""

    def _charge(self, entry: Entry[T], tokens: int) -> bool:
        """A request is committed; True if that was a promotion."""
        return False

    def _rested(self, home: Fifo[T]) -> None:
        """No request of that lane is ready any more."""

    # The life of a request.

    def add(self, item: T, facts: RequestFacts) -> None:
        if facts.request_id in self._table:
            raise ValueError(f"request {facts.request_id} is in the queue already: remove it before adding it again")
        self._last_seq += 1
        self._admit(self._make(item, facts, self._last_seq))

    def prepend(self, item: T, facts: RequestFacts) -> None:
        entry = self._table.get(facts.request_id)
        if entry is None:
            self._front_seq -= 1
            entry = self._make(item, facts, self._front_seq)
        elif not entry.out:
            raise ValueError(f"request {facts.request_id} waits already: only what was popped can be put back")
        elif facts.started:
            self._set_ready(entry, False)
            self._rekey(entry, facts)
        entry.item, entry.deferred, entry.out = item, facts.deferred, False
        self.counters.requeues += 1
        self._admit(entry)

    def begin_step(self, now: float, processed_prefill_tokens: int = 0) -> None:
        if self._popped:
            self._park()
        if self._hiding:
            self._unhide()
        self._now = now
        self._step_turn = self._turns
        self._next = None
        self._fix_order()

    def peek(self) -> T:
        return self._first().item

    def pop(self) -> T:
        entry = self._first()
        self._discard(entry)
        self._next = None
        entry.out = True
        self._popped.append(entry)
        if entry.turn <= self._step_turn:
            self._leaves(entry)
            self._turns += 1
            entry.turn = self._turns
        return entry.item

    def commit(self, request_id: str, now: float, tokens: int) -> Dispatch | None:
        entry = self._table.get(request_id)
        if entry is None or not entry.out:
            return None
        promoted = self._charge(entry, tokens)
        self._release(entry)
        entry.out = False
        self.counters.dispatches[entry.home.lane] += 1
        self.counters.promotions += promoted
        wait_s = max(0.0, now - entry.facts.arrival_s)
        return Dispatch(request_id, entry.home.lane, wait_s, entry.length, promoted)

    def remove(self, request_id: str) -> T | None:
        entry = self._table.get(request_id)
        if entry is None:
            return None
        self._release(entry)
        entry.out = False
        return entry.item

    def bypass_head(self) -> bool:
        entry = self._next or self._choose()
        if entry is None or entry.bypasses >= MAX_BYPASSES:
            return False
        entry.bypasses += 1
        self.counters.bypasses += 1
        entry.home.hide(entry)
        self._hiding = True
        self._next = None
        return True

    def set_deferred(self, request_id: str, deferred: bool) -> None:
        entry = self._table.get(request_id)
        if entry is not None:
            entry.deferred = deferred
            self._set_ready(entry, not deferred and not entry.out)

    # What can be seen.

    def get(self, request_id: str) -> T | None:
        entry = self._table.get(request_id)
        return None if entry is None or entry.out else entry.item

    def heads_to_refresh(self, limit: int) -> list[tuple[T, RequestFacts]]:
        return []

    def refresh(self, request_id: str, cached_tokens: int) -> bool:
        return False

    def gauges(self) -> dict[Lane, LaneGauge]:
        return {lane: _gauge(fifo) for lane, fifo in self._lanes.items()}

    def entries(self) -> Iterator[tuple[T, RequestFacts]]:
        waiting = (entry for entry in self._table.values() if not entry.out)
        return ((entry.item, entry.facts) for entry in sorted(waiting, key=attrgetter("seq")))

    def __iter__(self) -> Iterator[T]:
        for entry in self._ordered():
            yield entry.item
        for fifo in self._lanes.values():
            for entry in fifo.hidden():
                yield entry.item

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __bool__(self) -> bool:
        return (self._next or self._choose()) is not None

    # Where entries go: the only places that touch the table and the lanes.

    def _first(self) -> Entry[T]:
        entry = self._next
        if entry is None:
            entry = self._next = self._choose()
            if entry is None:
                raise IndexError("no request can be scheduled in this step")
        return entry

    def _make(self, item: T, facts: RequestFacts, seq: int) -> Entry[T]:
        return Entry(item, facts, seq, *self._classify(facts), facts.uncached_tokens, facts.deferred)

    def _rekey(self, entry: Entry[T], facts: RequestFacts) -> None:
        entry.facts, entry.cost = facts, facts.uncached_tokens
        entry.home, entry.length = self._classify(facts)

    def _admit(self, entry: Entry[T]) -> None:
        self._table[entry.facts.request_id] = entry
        self._insert(entry)
        self._set_ready(entry, not entry.deferred)
        self._next = None

    def _insert(self, entry: Entry[T]) -> None:
        entry.home.push(entry)

    def _discard(self, entry: Entry[T]) -> None:
        entry.home.drop(entry)

    def _set_ready(self, entry: Entry[T], ready: bool) -> None:
        if ready is not entry.ready:
            entry.ready = ready
            entry.home.ready += 1 if ready else -1
            if not entry.home.ready:
                self._rested(entry.home)

    def _park(self) -> None:
        """Requests still out when the next step begins are held by the engine."""
        for entry in self._popped:
            if entry.out:
                self._set_ready(entry, False)
        self._popped.clear()

    def _unhide(self) -> None:
        for fifo in self._lanes.values():
            fifo.unhide()
        self._hiding = False

    def _take_over(self, old: StoredQueue[T]) -> None:
        """Move everything out of `old`, in arrival order; this queue must be new."""
        if self._table:
            raise ValueError("requests can be transferred to an empty queue only: make a new one")
        self.counters, old.counters = old.counters, Counters()
        self._last_seq, self._front_seq = old._last_seq, old._front_seq
        for entry in sorted(old._table.values(), key=attrgetter("seq")):
            old._release(entry)
            self._rekey(entry, entry.facts)
            entry.turn, entry.held = 0, False
            if entry.out:
                self._table[entry.facts.request_id] = entry
            else:
                self._admit(entry)

    def _release(self, entry: Entry[T]) -> None:
        if not entry.out:
            self._discard(entry)
        self._set_ready(entry, False)
        self._next = None
        del self._table[entry.facts.request_id]

    def _check(self) -> None:
        stored = [entry for fifo in self._lanes.values() for entry in (*fifo, *fifo.hidden())]
        waiting = [entry for entry in self._table.values() if not entry.out]
        assert {id(entry) for entry in stored} == {id(entry) for entry in waiting}, "table and lanes disagree"
        assert len(stored) == len(waiting) == len(self), "a request is stored twice"
        for fifo in self._lanes.values():
            fifo._check()
            members = [entry for entry in self._table.values() if entry.home is fifo]
            assert fifo.ready == sum(entry.ready for entry in members), "ready requests are counted wrongly"
            assert all(entry.home is fifo for entry in fifo), "a request is in the wrong lane"
        assert not any(entry.ready and entry.deferred for entry in self._table.values()), "deferred, yet ready"
        assert len({id(entry) for entry in self._ordered()}) == len(self) - sum(
            len(fifo.hidden()) for fifo in self._lanes.values()
        ), "the order leaves requests out"
        assert next(self._ordered(), None) is self._choose(), "the order does not begin with the next request"
        assert self._next is None or self._next is self._choose(), "the order changed within a step"


def _gauge(fifo: Fifo[T]) -> LaneGauge:
    oldest = fifo.oldest()
    return LaneGauge(len(fifo), fifo.tokens, None if oldest is None else oldest.facts.arrival_s)


def transfer(old: PolicyQueue[T], new: PolicyQueue[T]) -> None:
    """Move all requests, waiting and out, from `old` to the empty `new`, which re-orders them once.

    Each keeps its arrival and its facts (so its cost stays frozen); the counters go along. `old` is empty
    afterwards. To be called between steps. O(n log n).
    """
    if not (isinstance(old, StoredQueue) and isinstance(new, StoredQueue)):
        raise TypeError("transfer moves requests between the queues that make_queue makes")
    new._take_over(old)
