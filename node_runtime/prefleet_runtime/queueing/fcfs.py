"""First come, first served: what every engine does unless told otherwise.

Two lanes in strict order, arrival order inside each: immediate (negative priority, or begun already), all.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..contract import LengthKind, RuntimePolicy
from .base import Lane, RequestFacts, T
from .fifo import Entry, Fifo
from .store import StoredQueue


def is_immediate(facts: RequestFacts, trust_client_priority: bool) -> bool:
    """Whether a request must not wait (again): it has begun, or its priority is negative.

    That is the priority that the engine gave it, and the client's too if clients are trusted.
    """
    return facts.started or facts.priority < 0 or (trust_client_priority and facts.client_priority < 0)


def measure(facts: RequestFacts, kind: LengthKind) -> int:
    """The length of a request in tokens, at least 1."""
    return facts.uncached_tokens if kind is LengthKind.UNCACHED else max(1, facts.prompt_tokens)


class FirstComeFirstServed(StoredQueue[T]):
    """Arrival order, immediate requests first."""

    LANES = (Lane.IMMEDIATE, Lane.ALL)

    def __init__(self, policy: RuntimePolicy) -> None:
        super().__init__()
        self._length = policy.length
        self._trust = policy.trust_client_priority
        self._immediate = self._lanes[Lane.IMMEDIATE]
        self._all = self._lanes[Lane.ALL]

    def _classify(self, facts: RequestFacts) -> tuple[Fifo[T], int]:
        return self._immediate if is_immediate(facts, self._trust) else self._all, measure(facts, self._length)

    def _choose(self) -> Entry[T] | None:
        return self._immediate.first or self._all.first

    def _ordered(self) -> Iterator[Entry[T]]:
        yield from self._immediate
        yield from self._all
