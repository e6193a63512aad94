"""vLLM's `RequestQueue` over the governor's queue: what stands in for `Scheduler.waiting`.

Only translation happens here. Four things differ from vLLM's own queues:

- `bool` tells whether anything can be scheduled in this step (a head that steps aside is hidden), while `len`
  counts all that waits; the engine decides by `len` whether it is idle;
- removing a request that is not here is allowed: an abort reaches both waiting queues, and may be repeated;
- adding a request that waits already puts it at the end: the engine does so to a session whose last output comes
  when it has been preempted, and takes it out again afterwards;
- a popped request that moves to `kv_holding_waiting` (its KV cache is on its way) stays "out" of the
  governor's queue until it is scheduled or aborted.

A request that was preempted is marked as started and goes first. The continuation of a session does so without
us: it holds KV blocks, and the engine drains `kv_holding_waiting` before this queue.

A client's priority (the field `priority` of its request, or the header X-Vllm-Priority) is told to the queue,
which heeds it only if the policy trusts clients; its sign alone counts. The engine lets any value through: the
help of its API says that one other than 0 is an error under `--scheduling-policy fcfs`, its code (0.32) does not
check. Whom the engine preempts is its own business: the last that started, whatever its priority.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus

from ..governor import Governor
from ..queueing import RequestFacts
from .cached_length import CachedLength
from .faults import Faults

BLOCKED = frozenset(
    {
        RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
        RequestStatus.WAITING_FOR_REMOTE_KVS,
        RequestStatus.WAITING_FOR_STREAMING_REQ,
    }
)


class WaitingQueue(RequestQueue):  # type: ignore[misc]  # vllm has no types here
    """The adapter. `governor.queue` is read afresh for every call: a policy switch replaces it.

    `no_room` (request id -> KV blocks that were free when it found no room) and `put_back` (what the engine popped
    and put back since the step began) are what is known of requests that wait; `Steps` reads and clears them.
    """

    def __init__(self, governor: Governor[Request], cached_tokens: CachedLength, faults: Faults) -> None:
        self._governor = governor
        self._cached_tokens = cached_tokens
        self._faults = faults
        self.no_room: dict[str, int] = {}
        self.put_back: set[str] = set()

    def add_request(self, request: Request) -> None:
        if self._governor.queue.get(request.request_id) is not None:
            self.remove_request(request)
        cached_tokens = 0
        if not has_started(request):
            with self._faults.survived("looking up what is cached of a new request"):
                cached_tokens = self._cached_tokens(request)
        facts = facts_of(request, cached_tokens)
        self._governor.add(request, facts, counts=not is_void(request))

    def pop_request(self) -> Request:
        return self._governor.queue.pop()

    def peek_request(self) -> Request:
        return self._governor.queue.peek()

    def prepend_request(self, request: Request) -> None:
        # No look-up: one put back keeps the length it was added with, one preempted goes first whatever its length.
        self._governor.prepend(request, facts_of(request, cached_tokens=0))
        self.put_back.add(request.request_id)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: Request) -> None:
        self._governor.remove(request.request_id)
        self.no_room.pop(request.request_id, None)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.remove_request(request)

    def holds(self, request: Request) -> bool:
        """Whether this very request waits here."""
        return self._governor.queue.get(request.request_id) is request

    def __bool__(self) -> bool:
        return bool(self._governor.queue)

    def __len__(self) -> int:
        return len(self._governor.queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._governor.queue)


def facts_of(request: Request, cached_tokens: int) -> RequestFacts:
    """What the queue may know of a request."""
    return RequestFacts(
        request_id=request.request_id,
        arrival_s=request.arrival_time,
        prompt_tokens=request.num_prompt_tokens,
        cached_tokens=cached_tokens,
        client_priority=request.priority,
        started=has_started(request),
        deferred=is_deferred(request),
    )


def is_void(request: Request) -> bool:
    """Whether nobody waits for an answer: the engine adds a request of one token and aborts it at once, so that its
    connector lets go of a KV cache whose own request never came in, or went away."""
    return bool(request.abort_immediately)


def has_started(request: Request) -> bool:
    """Preempted, prefill begun, or output produced; a prefix-cache hit alone is no start."""
    return bool(request.num_preemptions or request.num_computed_tokens or request.num_output_tokens)


def is_deferred(request: Request) -> bool:
    """Whether the engine itself holds this request back at this moment."""
    if request.status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        return request.structured_output_request.grammar is None
    return request.status in BLOCKED
