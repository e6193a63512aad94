"""What all policies share: the table of requests, the lanes, the counters, the life of a request.

A policy is a subclass that says which lanes it has and answers: which lane has a request (`_lane_of`), who is
next (`_choose`), in what order is the rest (`_ordered`); and, where it has to, what it keeps beside the lanes
(`_insert`, `_discard`) and what follows from a step, a pop and a commit (`_fix_order`, `_leaves`, `_charge`).
Everything else, each check and each count, is done here and once.

One table holds every request by id, waiting or out; the lanes hold those that wait, in arrival order. The
answer of `_choose` is kept until something changes, so a peek and its pop cannot disagree.

A request's place is made of what is frozen when it is added: its arrival number, its uncached cost, and the
processed-token counter. All three stay when it is put back and when the policy is switched. What was not in the
queue before and is put at the front has a number below all others and counts as having been there at token 0.

*Ready* requests wait for nothing but their turn: not deferred by the engine, and not left out by an earlier
step. One popped in the present step is still ready until it is committed, since it has not been dispatched.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from ..contract import LengthKind, RuntimePolicy
from .base import MAX_BYPASSES, Counters, Dispatch, Lane, LaneGauge, PolicyQueue, RequestFacts, T
from .fifo import Entry, LaneFifo


class StoredQueue(PolicyQueue[T]):
    """The machinery of every policy; see the module's docstring for what a policy adds."""

    LANES: ClassVar[tuple[Lane, ...]]

    def __init__(self, policy: RuntimePolicy) -> None:
        self.counters = Counters()
        self._length = policy.length
        self._trust = policy.trust_client_priority
        self._table: dict[str, Entry[T]] = {}
        self._lanes: dict[Lane, LaneFifo[T]] = {lane: LaneFifo(lane) for lane in self.LANES}
        self._immediate = self._lanes[Lane.IMMEDIATE]
        self._next: Entry[T] | None = None
        self._popped: list[Entry[T]] = []
        self._aside: dict[int, Entry[T]] = {}
        self._last_seq = 0
        self._front_seq = 0
        self._turns = 0
        self._step_turn = 0
        self._now = float("-inf")
        self._processed = 0
        self._longs_left: int | None = None

    # What a policy answers.

    @abstractmethod
    def _lane_of(self, facts: RequestFacts, length: int) -> LaneFifo[T]:
        """The lane of a request that is not immediate."""

    @abstractmethod
    def _choose(self) -> Entry[T] | None:
        """The next request of this step, those that step aside left out."""

    @abstractmethod
    def _ordered(self) -> Iterator[Entry[T]]:
        """The stored requests as successive pops would give them."""

    def _insert(self, entry: Entry[T]) -> None:
        """Store an entry."""
        entry.home.push(entry)

    def _discard(self, entry: Entry[T]) -> None:
        """Take out an entry that was stored."""
        entry.home.drop(entry)

    def _fix_order(self) -> None:
        """A step begins: `_now` is its time, and nobody steps aside or is newly out."""

    def _leaves(self, entry: Entry[T]) -> None:
        """A request is popped for the first time in this step; `entry.turn` is still that of an earlier one."""

    def _charge(self, entry: Entry[T], tokens: int) -> bool:
        """A request is committed; True if that was a promotion."""
        return False

    def _rested(self, home: LaneFifo[T]) -> None:
        """No request of that lane is ready any more."""

    # The life of a request.

    def add(self, item: T, facts: RequestFacts) -> None:
        if facts.request_id in self._table:
            raise ValueError(f"request {facts.request_id} is in the queue already: remove it before adding it again")
        self._last_seq += 1
        self._admit(self._make(item, facts, self._last_seq, self._processed))

    def prepend(self, item: T, facts: RequestFacts) -> None:
        entry = self._table.get(facts.request_id)
        if entry is None:
            self._front_seq -= 1
            entry = self._make(item, facts, self._front_seq, 0)
        elif not entry.out:
            raise ValueError(f"request {facts.request_id} waits already: only what was popped can be put back")
        else:
            if facts.started:
                self._set_ready(entry, False)
            entry = entry.renewed()
            entry.item, entry.deferred = item, facts.deferred
            if facts.started:
                self._classify(entry, facts)
        self.counters.requeues += 1
        self._admit(entry)

    def begin_step(self, now: float, processed_prefill_tokens: int = 0) -> None:
        if self._popped:
            self._park()
        if self._aside:
            self._return()
        self._now = now
        if processed_prefill_tokens > self._processed:
            self._processed = processed_prefill_tokens
        self._step_turn = self._turns
        self._longs_left = None
        self._next = None
        self._fix_order()

    def peek(self) -> T:
        return (self._next or self._first()).item

    def pop(self) -> T:
        entry = self._next or self._first()
        self._withdraw(entry)
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
        self._forget(entry, request_id)
        lane = entry.home.lane
        self.counters.dispatches[lane] += 1
        self.counters.promotions += promoted
        return Dispatch(request_id, lane, max(0.0, now - entry.facts.arrival_s), entry.length, promoted)

    def remove(self, request_id: str) -> T | None:
        entry = self._table.get(request_id)
        return None if entry is None else self._forget(entry, request_id)

    def bypass_head(self) -> bool:
        entry = self._next or self._choose()
        if entry is None or entry.bypasses >= MAX_BYPASSES:
            return False
        entry.bypasses += 1
        self.counters.bypasses += 1
        entry.stored = False
        self._discard(entry)
        self._aside[entry.seq] = entry
        self._next = None
        return True

    def set_deferred(self, request_id: str, deferred: bool) -> None:
        entry = self._table.get(request_id)
        if entry is not None:
            entry.deferred = deferred
            self._set_ready(entry, not deferred and not entry.out)

    def limit_longs(self, count: int | None) -> None:
        self._longs_left = count
        self._next = None

    # What can be seen.

    def get(self, request_id: str) -> T | None:
        entry = self._table.get(request_id)
        return None if entry is None or entry.out else entry.item

    def ready(self, *lanes: Lane) -> tuple[int, int]:
        requests = tokens = 0
        for lane, fifo in self._lanes.items():
            if not lanes or lane in lanes:
                requests += fifo.ready
                tokens += fifo.ready_tokens
        return requests, tokens

    def heads_to_refresh(self, limit: int) -> list[tuple[T, RequestFacts]]:
        return []

    def refresh(self, request_id: str, cached_tokens: int) -> bool:
        return False

    def gauges(self) -> dict[Lane, LaneGauge]:
        return {lane: self._gauge(fifo) for lane, fifo in self._lanes.items()}

    def entries(self) -> Iterator[tuple[T, RequestFacts]]:
        waiting = sorted(entry for entry in self._table.values() if not entry.out)
        return ((entry.item, entry.facts) for entry in waiting)

    def __iter__(self) -> Iterator[T]:
        for entry in self._ordered():
            yield entry.item
        for lane in self._lanes.values():
            for entry in self._aside_of(lane):
                yield entry.item

    def __len__(self) -> int:
        return sum(lane.size for lane in self._lanes.values())

    def __bool__(self) -> bool:
        if self._next is None:
            self._next = self._choose()
        return self._next is not None

    def _gauge(self, lane: LaneFifo[T]) -> LaneGauge:
        heads = self._aside_of(lane)[:1] if self._aside else []
        if lane.first is not None:
            heads.append(lane.first)
        return LaneGauge(lane.size, lane.tokens, min(heads).facts.arrival_s if heads else None)

    def _aside_of(self, lane: LaneFifo[T]) -> list[Entry[T]]:
        return sorted(entry for entry in self._aside.values() if entry.home is lane)

    # Where entries go: the only places that touch the table and the lanes.

    def _first(self) -> Entry[T]:
        entry = self._next = self._choose()
        if entry is None:
            raise IndexError("no request can be scheduled in this step")
        return entry

    def _make(self, item: T, facts: RequestFacts, seq: int, processed: int) -> Entry[T]:
        cost = facts.uncached_tokens
        entry = Entry(item, facts, seq, self._immediate, cost, cost, processed, facts.deferred)
        self._classify(entry, facts)
        return entry

    def _classify(self, entry: Entry[T], facts: RequestFacts) -> None:
        """Lane and length, from the facts alone. An entry that has been stored is not classified anew."""
        entry.facts = facts
        entry.length = facts.uncached_tokens if self._length is LengthKind.UNCACHED else max(1, facts.prompt_tokens)
        immediate = facts.started or facts.priority < 0 or (self._trust and facts.client_priority < 0)
        entry.home = self._immediate if immediate else self._lane_of(facts, entry.length)

    def _admit(self, entry: Entry[T]) -> None:
        self._table[entry.facts.request_id] = entry
        home = entry.home
        home.size += 1
        home.tokens += entry.length
        entry.stored = True
        self._insert(entry)
        self._set_ready(entry, not entry.deferred)
        self._next = None

    def _withdraw(self, entry: Entry[T]) -> None:
        """A waiting request waits no more."""
        home = entry.home
        home.size -= 1
        home.tokens -= entry.length
        if entry.stored:
            entry.stored = False
            self._discard(entry)
        else:
            del self._aside[entry.seq]
        self._next = None

    def _forget(self, entry: Entry[T], request_id: str) -> T:
        """A life ends. The item is let go at once, also if the lane still holds the entry."""
        if not entry.out:
            self._withdraw(entry)
        entry.out = False
        self._set_ready(entry, False)
        del self._table[request_id]
        item = entry.item
        del entry.item
        return item

    def _set_ready(self, entry: Entry[T], ready: bool) -> None:
        if ready is not entry.ready:
            entry.ready = ready
            entry.home.ready += 1 if ready else -1
            entry.home.ready_tokens += entry.length if ready else -entry.length
            if not entry.home.ready:
                self._rested(entry.home)

    def _park(self) -> None:
        """Requests still out when the next step begins are held by the engine."""
        for entry in self._popped:
            if entry.out:
                self._set_ready(entry, False)
        self._popped.clear()

    def _return(self) -> None:
        """Those that stepped aside return to their places."""
        for entry in self._aside.values():
            entry = entry.renewed()
            entry.stored = True
            self._table[entry.facts.request_id] = entry
            self._insert(entry)
        self._aside.clear()

    def _take_over(self, old: StoredQueue[T]) -> None:
        """Move everything out of `old`, in arrival order; this queue must be new."""
        if self._table:
            raise ValueError("requests can be transferred to an empty queue only: make a new one")
        self._last_seq, self._front_seq, self._processed = old._last_seq, old._front_seq, old._processed
        for entry in sorted(old._table.values()):
            self._adopt(entry)
        for request_id in self._table:
            old.remove(request_id)
        self.counters, old.counters = old.counters, Counters()

    def _adopt(self, old: Entry[T]) -> None:
        entry = self._make(old.item, old.facts, old.seq, old.processed)
        entry.cost, entry.deferred, entry.bypasses = old.cost, old.deferred, old.bypasses
        if old.out:
            entry.out, entry.aged = True, old.aged
            self._table[entry.facts.request_id] = entry
        else:
            self._admit(entry)

    def _check(self) -> None:
        stored = [entry for lane in self._lanes.values() for entry in lane]
        aside = [entry for entry in self._aside.values() if not entry.stored and not entry.out]
        waiting = [entry for entry in self._table.values() if not entry.out]
        assert {id(entry) for entry in (*stored, *aside)} == {id(entry) for entry in waiting}, (
            "table and lanes disagree"
        )
        assert len(stored) + len(self._aside) == len(waiting) == len(self), "a request is stored twice"
        for lane in self._lanes.values():
            self._check_lane(lane)
        assert not any(entry.ready and entry.deferred for entry in self._table.values()), "deferred, yet ready"
        order = list(self._ordered())
        assert sorted(order) == sorted(stored), "the order leaves requests out"
        limited = self._longs_left is not None
        assert limited or next(iter(order), None) is self._choose(), "the order does not begin with the next request"
        assert self._next is None or self._next is self._choose(), "the order changed within a step"

    def _check_lane(self, lane: LaneFifo[T]) -> None:
        lane._check()
        assert all(entry.home is lane for entry in lane), "a request is in the wrong lane"
        members = [entry for entry in self._table.values() if entry.home is lane]
        waiting = [entry for entry in members if not entry.out]
        ready = [entry.length for entry in members if entry.ready]
        assert (lane.ready, lane.ready_tokens) == (len(ready), sum(ready)), "ready requests are counted wrongly"
        assert lane.size == len(waiting), "waiting requests are counted wrongly"
        assert lane.tokens == sum(entry.length for entry in waiting), "tokens do not add up"


def transfer(old: PolicyQueue[T], new: PolicyQueue[T]) -> None:
    """Move all requests, waiting and out, from `old` to the empty `new`, which re-orders them once.

    Each keeps its arrival, its facts and its frozen cost; the counters go along. `old` is empty afterwards.
    To be called between steps. O(n log n).
    """
    if not (isinstance(old, StoredQueue) and isinstance(new, StoredQueue)):
        raise TypeError("transfer moves requests between the queues that make_queue makes")
    new._take_over(old)
