"""Traces made longer, faster or shorter, request by request: nothing is held in memory.

What must be known of the whole trace first (its span, its count) takes a pass over it beforehand. Every result starts
at 0 and its times never fall, like a trace's; it can be read once, and made again.

Left out: changing prompts. So those of a repetition are those of the first round, blocks and all, and a prefix cache
that is large enough knows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from .base import Trace, TraceError, TraceRequest, mean_gap_s


@dataclass(frozen=True, slots=True)
class Extent:
    """How many requests a trace has, and the seconds from the first to the last arrival."""

    requests: int
    span_s: float


def extent(trace: Iterable[TraceRequest]) -> Extent:
    """One pass over the trace."""
    count, last_s = 0, 0.0
    for request in trace:
        count, last_s = count + 1, request.at_s
    return Extent(count, last_s)


def repeated(trace: Trace, *, times: int | None = None, requests: int | None = None) -> Iterator[TraceRequest]:
    """The trace again and again, each time a mean gap after the end of the former: `times`, or to `requests` in all."""
    if (times is None) == (requests is None) or min(times or 0, requests or 0) < 0:
        raise ValueError("give either times or requests, at least 0")
    return islice(_rounds(trace, times), requests)


def _rounds(trace: Trace, times: int | None) -> Iterator[TraceRequest]:
    start_s, rounds = 0.0, 0
    while times is None or rounds < times:
        count, last_s = 0, 0.0
        for request in trace:
            count, last_s = count + 1, request.at_s
            yield _moved(request, start_s + last_s) if rounds else request
        start_s += last_s + mean_gap_s(last_s, count)
        rounds += 1


def stretched(requests: Iterable[TraceRequest], factor: float) -> Iterator[TraceRequest]:
    """Every gap times `factor`: below 1 the load rises."""
    if not 0 < factor < float("inf"):
        raise ValueError("the factor is a positive number")
    return (_moved(request, request.at_s * factor) for request in requests)


def prefill_only(requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """Every request with one output token, the one that its prefill gives."""
    return (TraceRequest(request.at_s, request.prompt_tokens, 1, request.blocks) for request in requests)


def at_rate(trace: Trace, rate: float) -> Iterator[TraceRequest]:
    """The trace with its gaps stretched so that it has `rate` requests a second on average.

    Raises:
        TraceError: all its requests arrive at once, so that it has no rate to change.
    """
    if not 0 < rate < float("inf"):
        raise ValueError("the rate is a positive number")
    whole = extent(trace)
    if whole.span_s <= 0:
        raise TraceError(f"{trace.name}: all requests arrive at once; a rate needs arrivals at different times")
    return stretched(trace, 1 / (rate * mean_gap_s(whole.span_s, whole.requests)))


def first_half(trace: Trace, by: Literal["count", "time"] = "count") -> Iterator[TraceRequest]:
    """The requests before the middle: of the count (the smaller half of an odd one), or of the span."""
    whole = extent(trace)
    if by == "count":
        yield from islice(trace, whole.requests // 2)
        return
    for request in trace:
        if request.at_s >= whole.span_s / 2:
            return
        yield request


def second_half(trace: Trace, by: Literal["count", "time"] = "count") -> Iterator[TraceRequest]:
    """The others, their times counted from the first of them."""
    whole = extent(trace)
    start_s: float | None = None
    for number, request in enumerate(trace):
        late = number >= whole.requests // 2 if by == "count" else request.at_s >= whole.span_s / 2
        if late:
            start_s = request.at_s if start_s is None else start_s
            yield _moved(request, request.at_s - start_s)


def _moved(request: TraceRequest, at_s: float) -> TraceRequest:
    """The same at another time; a third of what `dataclasses.replace` takes, and a replay does it for every request."""
    return TraceRequest(at_s, request.prompt_tokens, request.output_tokens, request.blocks)
