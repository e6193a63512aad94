"""vLLM 0.28 to 0.30: what stands in for `Scheduler.skipped_waiting`.

Those releases move whatever a scan passes over, and whatever is blocked when it arrives, into a second queue, which
goes before `waiting`. A request that waits for its grammar would so leave our queue and jump it when the grammar is
there. Later releases put it back into `waiting`, and keep aside (`kv_holding_waiting`) only what holds KV blocks.

This queue makes the older ones do the same: what holds KV blocks stays in it, first come first served, and everything
else goes to our queue, in its place. `deferred` is what later releases call `deferred_waiting`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.request import Request, RequestStatus

from .waiting_queue import WaitingQueue

_HOLDING = frozenset({RequestStatus.WAITING_FOR_REMOTE_KVS, RequestStatus.WAITING_FOR_STREAMING_REQ})


class SkippedWaiting(FCFSRequestQueue):  # type: ignore[misc]  # vllm has no types here
    """The queue; what it holds itself holds KV blocks."""

    def __init__(self, waiting: WaitingQueue) -> None:
        super().__init__()
        self._waiting = waiting
        self._passed_on: dict[str, Request] = {}

    def deferred(self) -> Iterator[Request]:
        """Requests of our queue that the engine held back at some time, and that still wait."""
        self._passed_on = {name: request for name, request in self._passed_on.items() if self._waiting.holds(request)}
        return iter(self._passed_on.values())

    def add_request(self, request: Request) -> None:
        if _holds_blocks(request):
            super().add_request(request)
        else:
            self._waiting.add_request(request)
            self._passed_on[request.request_id] = request

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        # The scan hands them over last first, as vLLM's own queue takes them.
        for request in requests:
            if _holds_blocks(request):
                super().prepend_request(request)
            else:
                self._waiting.prepend_request(request)
                self._passed_on[request.request_id] = request


def _holds_blocks(request: Request) -> bool:
    return bool(request.status in _HOLDING or request.num_computed_tokens)
