"""First come, first served: what every engine does unless told otherwise.

Two lanes in strict order, arrival order inside each: immediate (negative priority, or begun already), all.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..contract import RuntimePolicy
from .base import Lane, RequestFacts, T
from .fifo import Entry, LaneFifo
from .store import StoredQueue


class FirstComeFirstServed(StoredQueue[T]):
    """Arrival order, immediate requests first."""

    LANES = (Lane.IMMEDIATE, Lane.ALL)

    def __init__(self, policy: RuntimePolicy) -> None:
        super().__init__(policy)
        self._all = self._lanes[Lane.ALL]

    def _lane_of(self, facts: RequestFacts, length: int) -> LaneFifo[T]:
        return self._all

    def _choose(self) -> Entry[T] | None:
        return self._immediate.first or self._all.first

    def _ordered(self) -> Iterator[Entry[T]]:
        yield from self._immediate
        yield from self._all
