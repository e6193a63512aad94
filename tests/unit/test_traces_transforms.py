"""Traces made longer, faster and shorter: lazily, with times that start at 0 and never fall."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefleet_runtime.sim.traces.base import Trace, TraceError, TraceRequest
from prefleet_runtime.sim.traces.transforms import (
    at_rate,
    extent,
    first_half,
    prefill_only,
    repeated,
    second_half,
    stretched,
)


class Listed(Trace):
    """Requests at the given times, each with a prompt of its number; `given` counts how many were asked for."""

    def __init__(self, *times_s: float) -> None:
        super().__init__("listed", "list", 0, len(times_s))
        self.times_s = times_s
        self.given = 0

    @property
    def fraction_read(self) -> float:
        return 1.0

    def __iter__(self) -> Iterator[TraceRequest]:
        for number, at_s in enumerate(self.times_s, 1):
            self.given += 1
            yield TraceRequest(at_s, number, 1, (number,))


def times(requests: Iterator[TraceRequest]) -> list[float]:
    return [request.at_s for request in requests]


def test_a_repetition_begins_a_mean_gap_after_the_end() -> None:
    trace = Listed(0, 1, 4)
    assert times(repeated(trace, times=2)) == [0, 1, 4, 6, 7, 10]
    assert [request.prompt_tokens for request in repeated(trace, times=2)] == [1, 2, 3, 1, 2, 3]


def test_repetitions_can_be_counted_in_requests() -> None:
    assert times(repeated(Listed(0, 1, 4), requests=5)) == [0, 1, 4, 6, 7]
    assert times(repeated(Listed(0, 1, 4), requests=2)) == [0, 1]


def test_a_lone_request_is_repeated_every_second() -> None:
    assert times(repeated(Listed(0), times=3)) == [0, 1, 2]


def test_a_repetition_asks_for_no_more_than_is_read() -> None:
    trace = Listed(0, 1, 4)
    assert len(list(islice(repeated(trace, times=10**9), 4))) == 4
    assert trace.given == 4


def test_prefill_alone_asks_for_one_token_and_keeps_the_rest() -> None:
    requests = [TraceRequest(0.0, 100, 30, (1, 2)), TraceRequest(2.5, 7, 1)]
    assert list(prefill_only(requests)) == [TraceRequest(0.0, 100, 1, (1, 2)), TraceRequest(2.5, 7, 1)]


def test_stretching_multiplies_the_gaps_and_keeps_the_rest() -> None:
    assert list(stretched(Listed(0, 1, 4), 0.5)) == [
        TraceRequest(0, 1, 1, (1,)),
        TraceRequest(0.5, 2, 1, (2,)),
        TraceRequest(2, 3, 1, (3,)),
    ]


def test_a_rate_is_reached_by_stretching() -> None:
    # Three requests have two gaps: at 4 a second they end after half a second.
    assert times(at_rate(Listed(0, 1, 4), 4)) == [0, 0.125, 0.5]


def test_requests_that_arrive_at_once_have_no_rate_to_change() -> None:
    with pytest.raises(TraceError, match="listed: all requests arrive at once"):
        at_rate(Listed(0, 0, 0), 4)


@pytest.mark.parametrize(
    ("by", "first", "second"),
    [("count", [0, 1], [0, 1, 8]), ("time", [0, 1, 2, 3], [0])],
)
def test_the_halves_are_of_the_count_or_of_the_time(
    by: Literal["count", "time"], first: list[float], second: list[float]
) -> None:
    trace = Listed(0, 1, 2, 3, 10)
    assert times(first_half(trace, by)) == first
    assert times(second_half(trace, by)) == second


@pytest.mark.parametrize(
    "make",
    [
        lambda: repeated(Listed(0)),
        lambda: repeated(Listed(0), times=1, requests=1),
        lambda: repeated(Listed(0), times=-1),
        lambda: stretched(Listed(0), 0),
        lambda: stretched(Listed(0), float("nan")),
        lambda: at_rate(Listed(0, 1), 0),
    ],
)
def test_a_mistake_of_the_caller_is_no_trace_error(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError) as mistake:
        make()
    assert not isinstance(mistake.value, TraceError)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.sampled_from(["count", "time"]))
def test_the_halves_make_the_whole_and_each_is_a_trace(times_s: list[float], by: Literal["count", "time"]) -> None:
    first_s = min(times_s)
    trace = Listed(*(at_s - first_s for at_s in sorted(times_s)))
    halves = [list(half(trace, by)) for half in (first_half, second_half)]
    assert [request.prompt_tokens for half in halves for request in half] == list(range(1, len(times_s) + 1))
    assert all(half[0].at_s == 0 for half in halves if half)
    for half in [*halves, list(repeated(trace, times=3))]:
        assert all(before.at_s <= after.at_s for before, after in pairwise(half))


def test_the_extent_is_count_and_span() -> None:
    whole = extent(Listed(0, 1, 4))
    assert (whole.requests, whole.span_s) == (3, 4)
