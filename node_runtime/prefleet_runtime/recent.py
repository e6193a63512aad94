"""The last requests that ended, as numbers: what the exporter serves under /recent, and replay-based tuning reads.

A request is noted when it ends, answered or aborted, in the order of the ends; the oldest is dropped when
`LIMIT` are kept. No text and no id is kept: while a request runs, its id leads to its waits, and with its end
that is gone. So memory is bounded: by `LIMIT` records of at most `RECORD_BYTES`, and by what the engine runs.

The engine's thread writes, any thread reads, and there is no lock: a record is immutable, appending one is
atomic, and a reader takes its own copy of the ring in a single call of the interpreter, then encodes record
by record, so that the engine's thread gets the interpreter in between.

Left out: requests that have not ended, and anything older than the ring.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .queueing import Dispatch, Lane

LIMIT = 8192
"""Requests kept: at 25 requests a second the last five minutes."""

RECORD_BYTES = 640
"""More than one record takes, with a wait in each of three lanes: the whole ring stays below 5 MiB."""


@dataclass(frozen=True, slots=True)
class RecentRequest:
    """One request that ended.

    `arrival_s` in seconds on the engine's clock; lengths in tokens. `cached_tokens`: prompt tokens that were not
    computed here, since a prefix cache or another node had them. `waits`: seconds from the arrival to the first
    dispatch out of each lane, in their order (a preempted request leaves `immediate` as well); none if it was
    aborted before.
    """

    arrival_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    waits: tuple[tuple[Lane, float], ...]

    def to_json(self) -> str:
        return json.dumps(
            {
                "arrival_s": self.arrival_s,
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "output_tokens": self.output_tokens,
                "waits_s": {lane.value: round(wait_s, 6) for lane, wait_s in self.waits},
            }
        )


@dataclass(frozen=True, slots=True)
class _Dispatched:
    """What is remembered of a request that runs."""

    prefill_tokens: int
    waits: tuple[tuple[Lane, float], ...]

    def again(self, dispatch: Dispatch) -> _Dispatched:
        if any(lane is dispatch.lane for lane, _ in self.waits):
            return self
        return _Dispatched(self.prefill_tokens, (*self.waits, (dispatch.lane, dispatch.wait_s)))


class RecentRequests:
    """The ring. `clock` reads the axis of the arrivals, so that a reader can tell how old they are."""

    def __init__(self, clock: Callable[[], float], limit: int = LIMIT) -> None:
        self._clock = clock
        self._ring: deque[RecentRequest] = deque(maxlen=limit)
        self._running: dict[str, _Dispatched] = {}
        self._ended = 0

    def dispatched(self, dispatch: Dispatch, tokens: int) -> None:
        """A waiting request was scheduled; `tokens`: all that is left of its prompt."""
        before = self._running.get(dispatch.request_id)
        if before is None:
            self._running[dispatch.request_id] = _Dispatched(tokens, ((dispatch.lane, dispatch.wait_s),))
        else:
            self._running[dispatch.request_id] = before.again(dispatch)

    def ended(self, request_id: str, arrival_s: float, prompt_tokens: int, output_tokens: int) -> None:
        """A request left the engine. To be told once."""
        ran = self._running.pop(request_id, None)
        cached, waits = (0, ()) if ran is None else (max(0, prompt_tokens - ran.prefill_tokens), ran.waits)
        self._ring.append(RecentRequest(arrival_s, prompt_tokens, cached, output_tokens, waits))
        self._ended += 1

    def latest(self) -> list[RecentRequest]:
        """What is kept, the last to end at the end. Safe from any thread."""
        return list(self._ring.copy())

    def to_json(self) -> bytes:
        """One JSON object, a request a line. Safe from any thread."""
        ended, requests = self._ended, self.latest()
        head = f'{{"now_s": {self._clock()!r}, "limit": {self._ring.maxlen}, "ended_total": {ended}, "requests": ['
        return (head + ",".join("\n" + request.to_json() for request in requests) + "\n]}\n").encode()
