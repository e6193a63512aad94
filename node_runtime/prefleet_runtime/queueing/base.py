"""The one interface of all queue policies.

Names follow vLLM's `RequestQueue` (add, pop, peek, prepend, remove), so that the engine's adapter is
thin. A policy *orders*, the queue *stores*: a request's key (its lane, its cost) is frozen while it is
in the queue, and arrival order breaks every tie. Arrival order is the order of `add`, not of clocks.

Life of a request: `add` -> (`pop` -> `prepend`)* -> `pop` -> `commit`. A pop alone dispatches nothing:
an engine looks at a request, finds no room for it and puts it back, many times. What was really
scheduled is told to the queue by `commit` after the step, in the order of the pops; only then do counters
and the share debt move. A popped request that is put back keeps its place. `remove` ends a life at any point.
A request may stay out for many steps (its KV cache is on its way from another node): from the next
`begin_step` on it counts as held by the engine.

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

MAX_BYPASSES = 8
"""How often one request may step aside for lack of room; after that it holds its place until it fits."""


class Lane(StrEnum):
    """Where a request waits. `ALL` is the lane of policies that have no threshold."""

    IMMEDIATE = "immediate"
    SHORT = "short"
    LONG = "long"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a policy may know of a request, frozen when it is added.

    Units: `arrival_s` in seconds on the caller's axis; lengths in tokens. `priority`: negative goes first, all else
    is equal; set by the engine's adapter for what must not wait again (a continuation, a resumed request), never
    copied from a client. `client_priority`: what the client asked for, of the same meaning where the policy has
    `trust_client_priority` and of none elsewhere; told in any case, so that a switch of that setting reaches also
    what waits already. `started`: preempted, prefill already begun, or output already produced (a prefix-cache hit
    alone is no start). `deferred`: the engine holds it back for a reason of its own (a grammar being compiled,
    remote KV on its way).
    """

    request_id: str
    arrival_s: float
    prompt_tokens: int
    cached_tokens: int = 0
    priority: int = 0
    client_priority: int = 0
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
    """Monotonic counts kept by the queue itself, carried over when the policy is switched."""

    dispatches: dict[Lane, int] = field(default_factory=lambda: dict.fromkeys(Lane, 0))
    promotions: int = 0
    degradations: int = 0
    requeues: int = 0
    bypasses: int = 0


@dataclass(frozen=True, slots=True)
class LaneGauge:
    """What waits in one lane: requests, their lengths in tokens, and when the first in the lane arrived."""

    requests: int = 0
    tokens: int = 0
    oldest_arrival_s: float | None = None

    def oldest_wait_s(self, now: float) -> float:
        """How long the first in the lane has waited at `now`; 0 if nothing waits."""
        return 0.0 if self.oldest_arrival_s is None else max(0.0, now - self.oldest_arrival_s)


class PolicyQueue(ABC, Generic[T]):
    """A queue of waiting requests in policy order. `item` is whatever the engine calls a request."""

    counters: Counters

    @abstractmethod
    def add(self, item: T, facts: RequestFacts) -> None:
        """Store a new request. Raises ValueError if `facts.request_id` is already in the queue or out."""

    @abstractmethod
    def prepend(self, item: T, facts: RequestFacts) -> None:
        """Put a popped request back in its place, or admit a preempted one; each is counted as a re-queue.

        A request that is out and not `started` keeps its frozen key and place; with `started` it is classified
        anew. One that is not out goes to the front of its lane. Several requests put back in one step keep
        their order among themselves. Raises ValueError if the request waits already.
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
        """A popped request was really scheduled at `now`: count it.

        `tokens`: the prefill tokens that this sets in motion: what is left of the prompt, not only the first
        chunk. Returns None for a request that is not out (a running request, an unknown one).
        """

    @abstractmethod
    def remove(self, request_id: str) -> T | None:
        """Forget a request wherever it is (waiting, hidden or out); None if it is unknown."""

    @abstractmethod
    def bypass_head(self) -> bool:
        """The head did not fit: it steps aside until the next `begin_step`.

        False, and nothing happens, once it has done so `MAX_BYPASSES` times (it would starve behind smaller
        ones), or if there is no head.
        """

    @abstractmethod
    def get(self, request_id: str) -> T | None:
        """The waiting request of that id, or None."""

    @abstractmethod
    def set_deferred(self, request_id: str, deferred: bool) -> None:
        """Tell whether the engine holds a waiting request back; a deferred short is no waiting short.

        Unknown requests are ignored. The order of the present step stays.
        """

    @abstractmethod
    def ready(self, *lanes: Lane) -> tuple[int, int]:
        """Requests, and their lengths in tokens, that wait for nothing but their turn; in all lanes if none is named.

        A lane that the policy does not have holds nothing.
        """

    def ready_for(self, seats: int) -> tuple[int, int, int]:
        """Shorts that `seats` have place for, their lengths in tokens (their share of all shorts'), and ready others.

        Where a policy has no threshold all that is not immediate counts as short.
        """
        shorts, tokens = self.ready(Lane.SHORT, Lane.ALL)
        others, _ = self.ready(Lane.LONG, Lane.IMMEDIATE)
        seated = min(shorts, seats)
        return seated, tokens * seated // max(1, shorts), others

    @abstractmethod
    def limit_longs(self, count: int | None) -> None:
        """Until the next `begin_step` offer at most `count` waiting longs; None lifts the limit.

        Beyond it an aged-long is offered still, while shorts wait and its share allows it. Longs that the engine
        holds back take nothing of the count. Policies without a long lane ignore it.
        """

    @abstractmethod
    def heads_to_refresh(self, limit: int) -> list[tuple[T, RequestFacts]]:
        """At most `limit` first waiting requests whose place a larger cached part could better; often none."""

    @abstractmethod
    def refresh(self, request_id: str, cached_tokens: int) -> bool:
        """Tell, between steps, how much of a waiting request is cached now; True if it became short."""

    @abstractmethod
    def gauges(self) -> dict[Lane, LaneGauge]:
        """What waits, by lane; every lane of the policy is present, also when empty."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[T, RequestFacts]]:
        """Waiting requests with their facts in arrival order."""

    @abstractmethod
    def __iter__(self) -> Iterator[T]:
        """Waiting requests in policy order as of the last `begin_step`; those hidden for this step come last."""

    @abstractmethod
    def __len__(self) -> int:
        """Waiting requests, hidden ones included."""

    @abstractmethod
    def __bool__(self) -> bool:
        """Whether `peek` would answer."""

    @abstractmethod
    def _check(self) -> None:
        """Raise AssertionError if an invariant is broken. O(n); for tests."""
