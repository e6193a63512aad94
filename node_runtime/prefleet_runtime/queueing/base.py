"""The one interface of all queue policies.

Names follow vLLM's `RequestQueue` (add, pop, peek, prepend, remove), so that the engine's adapter is
thin. A policy *orders*, the queue *stores*: a request's key (its lane, its cost) is frozen while it is
in the queue, and arrival order breaks every tie.

Life of a request: `add` -> (`pop` -> `prepend`)* -> `pop` -> `commit`. A pop alone dispatches nothing:
an engine looks at a request, finds no room for it and puts it back, many times. What was really
scheduled is told to the queue by `commit` after the step; only then do counters and the share debt move.
A popped request that is put back keeps its place. `remove` ends a life at any point.

Invariants (checked by `_check()` in every conformance test):
- between two `begin_step` calls the order does not change under peek and pop, whatever the clock does;
- every request added is exactly once in the queue, or out (popped, neither committed nor removed);
- `len` counts what waits, also what is hidden for this step; the gauges agree with what is stored;
- every operation costs O(log n) amortised or better, removal of any request included.

Left out: what an engine does with a request once it runs (see the step budget), and the clock: `now` is
always an argument, in seconds on one monotonic or wall axis that the caller chooses and keeps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Lane(StrEnum):
    """Where a request waits. `ALL` is the lane of policies that have no threshold."""

    IMMEDIATE = "immediate"
    SHORT = "short"
    LONG = "long"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a policy may know of a request, frozen when it is added.

    Units: `arrival_s` in seconds on the caller's axis; lengths in tokens. `started`: preempted, prefill
    already begun, or output already produced (a prefix-cache hit alone is no start). `deferred`: the
    engine holds it back for a reason of its own (a grammar being compiled, remote KV on its way).
    """

    request_id: str
    arrival_s: float
    prompt_tokens: int
    cached_tokens: int = 0
    priority: int = 0
    started: bool = False
    deferred: bool = False

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens still to compute, at least 1."""
        return max(1, self.prompt_tokens - self.cached_tokens)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One committed dispatch: which lane it left, how long it waited (seconds), whether it was promoted.

    `promoted`: it was an aged-long request and shorts were waiting. `length` is what the policy compared
    with its threshold (tokens).
    """

    request_id: str
    lane: Lane
    wait_s: float
    length: int
    promoted: bool = False


@dataclass(slots=True)
class Counters:
    """Monotonic counts kept by the queue itself."""

    dispatches: dict[Lane, int] = field(default_factory=dict)
    promotions: int = 0
    degradations: int = 0
    requeues: int = 0
    bypasses: int = 0


@dataclass(frozen=True, slots=True)
class LaneGauge:
    """What waits in one lane: requests, prompt tokens as the policy measures them, oldest wait in seconds."""

    requests: int
    tokens: int
    oldest_wait_s: float


class PolicyQueue(ABC, Generic[T]):
    """A queue of waiting requests in policy order. `item` is whatever the engine calls a request."""

    counters: Counters

    @abstractmethod
    def add(self, item: T, facts: RequestFacts) -> None:
        """Store a new request. Raises ValueError if `facts.request_id` is already in the queue or out."""

    @abstractmethod
    def prepend(self, item: T, facts: RequestFacts) -> None:
        """Put a popped request back in its place (counted as a re-queue), or admit a preempted one as immediate.

        A request that is out and not `started` keeps its frozen key and place; with `started` it is classified
        anew. Several requests put back in one step keep their order among themselves.
        """

    @abstractmethod
    def begin_step(self, now: float, processed_prefill_tokens: int = 0) -> None:
        """Fix the order for the step that begins at `now`.

        `processed_prefill_tokens`: all tokens of submitted steps that carried prefill so far, a monotonic
        counter (work-based policies age by it).
        """

    @abstractmethod
    def peek(self) -> T:
        """The next request in policy order. Raises IndexError if nothing can be scheduled in this step."""

    @abstractmethod
    def pop(self) -> T:
        """Take out what `peek` showed. Raises IndexError like `peek`."""

    @abstractmethod
    def commit(self, request_id: str, now: float, tokens: int) -> Dispatch | None:
        """A popped request was really scheduled at `now` with `tokens` prefill tokens: count it.

        Returns None for a request that is not out (a running request, an unknown one).
        """

    @abstractmethod
    def remove(self, request_id: str) -> T | None:
        """Forget a request wherever it is (waiting, hidden or out); None if it is unknown."""

    @abstractmethod
    def bypass_head(self) -> None:
        """The head did not fit: it steps aside until the next `begin_step`, a bounded number of times in a row."""

    @abstractmethod
    def get(self, request_id: str) -> T | None:
        """The waiting request of that id, or None."""

    @abstractmethod
    def set_deferred(self, request_id: str, deferred: bool) -> None:
        """Tell whether the engine holds a waiting request back; a deferred short is no waiting short."""

    @abstractmethod
    def gauges(self, now: float) -> dict[Lane, LaneGauge]:
        """What waits, by lane, at `now`; every lane of the policy is present, also when empty. O(lanes)."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[T, RequestFacts]]:
        """Waiting requests with their facts in arrival order: what a policy switch carries over."""

    @abstractmethod
    def __iter__(self) -> Iterator[T]:
        """Waiting requests in policy order as of the last `begin_step`."""

    @abstractmethod
    def __len__(self) -> int:
        """Waiting requests, hidden ones included."""

    @abstractmethod
    def __bool__(self) -> bool:
        """Whether `peek` would answer."""

    @abstractmethod
    def _check(self) -> None:
        """Raise AssertionError if an invariant is broken. O(n); for tests."""
