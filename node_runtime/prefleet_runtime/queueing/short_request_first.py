"""Short requests first, without starving long ones.

Lanes in the order immediate > aged-long > short > long, arrival order inside each. A request is classified
when it is added: immediate if it has begun (preempted, prefill begun, output produced) or has a negative
priority, short if its length is at most the threshold, else long. A prefix-cache hit makes nothing immediate;
it shortens the length, if that is counted in uncached tokens, and a waiting long whose cached part has grown
may become short between steps (`refresh`), at the place of its arrival.

The first long is aged once it has waited `long_max_wait_ms` (0: never); those behind it follow in turn, so
that a clock that steps cannot break arrival order. While shorts wait, aged-longs are held to their share
(`share.py`). Which are aged and whether shorts wait is fixed when a step begins. Within the step each pop
moves a projected debt as if it were dispatched with its uncached tokens, so that one step serves both kinds
in the order that single steps would; a request put back takes its turn again. The real debt moves only with
commits, by the tokens really set in motion.

The step budget may limit how many longs a step may start (`limit_longs`); an aged-long that its share allows is
exempt while shorts wait, so a limit cannot make it wait longer than this policy says.

What it does badly: a load of longs alone gains nothing, and under saturation longs wait beyond their limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..contract import LengthKind, RuntimePolicy
from .base import Lane, RequestFacts, T
from .fifo import Entry, LaneFifo
from .share import AgedShare
from .store import StoredQueue


class ShortRequestFirst(StoredQueue[T]):
    """Immediate, then aged-longs within their share, then shorts, then longs."""

    LANES = (Lane.IMMEDIATE, Lane.SHORT, Lane.LONG)

    def __init__(self, policy: RuntimePolicy) -> None:
        super().__init__(policy)
        if policy.threshold is None:
            raise ValueError("short_request_first needs a threshold in tokens")
        self._threshold = policy.threshold
        self._max_wait_s = policy.long_max_wait_ms / 1000 if policy.long_max_wait_ms else float("inf")
        self._share = AgedShare(policy.aged_share)
        self._short = self._lanes[Lane.SHORT]
        self._long = self._lanes[Lane.LONG]
        self._contended = False
        self._projected = 0.0

    def heads_to_refresh(self, limit: int) -> list[tuple[T, RequestFacts]]:
        if self._length is LengthKind.PROMPT:
            return []
        return [(entry.item, entry.facts) for entry in self._long.some(limit)]

    def refresh(self, request_id: str, cached_tokens: int) -> bool:
        entry = self._table.get(request_id)
        if entry is None or entry.out or entry.home is not self._long:
            return False
        facts = replace(entry.facts, cached_tokens=max(cached_tokens, entry.facts.cached_tokens))
        if facts.uncached_tokens > self._threshold or self._length is LengthKind.PROMPT:
            return False
        self._withdraw(entry)
        self._set_ready(entry, False)
        entry = entry.renewed()
        self._classify(entry, facts)
        self._admit(entry)
        return True

    def _lane_of(self, facts: RequestFacts, length: int) -> LaneFifo[T]:
        return self._short if length <= self._threshold else self._long

    def _fix_order(self) -> None:
        self._contended = self._short.ready > 0
        self._projected = self._share.debt
        if self._projected > 0:
            self._hold_back()

    def _choose(self) -> Entry[T] | None:
        immediate = self._immediate.first
        if immediate is not None:
            return immediate
        short, long = self._short.first, self._long.first
        if long is not None and not self._may_go(long):
            long = None
        if short is None or long is None:
            return short or long
        return long if self._long_leads(short, long, self._projected) else short

    def _ordered(self) -> Iterator[Entry[T]]:
        yield from self._immediate
        shorts, longs = iter(self._short), iter(self._long)
        short, long = next(shorts, None), next(longs, None)
        projected = self._projected
        while short is not None and long is not None:
            entry = long if self._long_leads(short, long, projected) else short
            yield entry
            projected = self._project(entry, projected)
            if entry is long:
                long = next(longs, None)
            else:
                short = next(shorts, None)
        yield from (entry for entry in (short, *shorts, long, *longs) if entry is not None)

    def _leaves(self, entry: Entry[T]) -> None:
        entry.aged = entry.home is self._long and self._is_aged(entry)
        if self._contended and (self._projected > 0 or entry.aged):
            self._projected = self._project(entry, self._projected)
        if self._longs_left and entry.home is self._long and not entry.deferred:
            self._longs_left -= 1

    def _charge(self, entry: Entry[T], tokens: int) -> bool:
        if entry.home is self._short:
            self._share.short_dispatched(tokens)
            return False
        if entry.home is not self._long or not entry.aged or not self._short.ready:
            return False
        self.counters.degradations += self._share.promoted(tokens, entry.held)
        return True

    def _rested(self, home: LaneFifo[T]) -> None:
        if home is self._short:
            self._share.no_short_waits()

    def _is_aged(self, entry: Entry[T]) -> bool:
        return self._now - entry.facts.arrival_s >= self._max_wait_s

    def _may_go(self, long: Entry[T]) -> bool:
        """Whether the limit on new longs lets the first one through in this step."""
        if self._longs_left != 0 or long.turn > self._step_turn:
            return True
        return self._contended and self._projected <= 0 and self._is_aged(long)

    def _long_leads(self, short: Entry[T], long: Entry[T], projected: float) -> bool:
        """Whether the first long goes before the first short in this step, at a projected debt."""
        if short.turn > self._step_turn or long.turn > self._step_turn:  # put back in this step: as they were popped
            return short.turn <= self._step_turn or self._step_turn < long.turn < short.turn
        return self._is_aged(long) and (projected <= 0 or not self._contended)

    def _project(self, entry: Entry[T], debt: float) -> float:
        """The projected debt once `entry` has gone; one that had its turn in this step is counted already."""
        if entry.turn > self._step_turn:
            return debt
        if entry.home is self._short:
            return self._share.after_short(debt, entry.facts.uncached_tokens)
        if entry.home is self._long and self._is_aged(entry):
            return self._share.after_aged(debt, entry.facts.uncached_tokens)
        return debt

    def _hold_back(self) -> None:
        """Note, once for each, that the first aged-long has to wait for its share."""
        long = self._long.first
        if long is not None and not long.held and self._contended and self._is_aged(long):
            long.held = True
            self.counters.degradations += self._share.held()

    def _check(self) -> None:
        super()._check()
        assert self._share.debt >= 0, "the debt fell below 0"
        assert self._short.ready or self._share.debt == 0, "a debt is left though no short waits"
