"""The busiest stretch of a trace, and a load that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefleet_operator.replay.setting import SettingError
from prefleet_operator.replay.workload import Asked, busiest, prepare
from prefleet_runtime.sim.traces import TraceRequest, open_trace
from rich.console import Console


def request(at_s: float, tokens: int = 100) -> TraceRequest:
    return TraceRequest(at_s, tokens, 1)


CALM = [request(10.0 * n) for n in range(10)]
BURST = [request(100 + n) for n in range(5)]
HEAVY = [request(200 + 10.0 * n, 5000) for n in range(5)]


@pytest.mark.parametrize(
    ("requests", "first"),
    [
        ([*CALM, *BURST], BURST[0]),
        ([*CALM, *BURST, *HEAVY], HEAVY[0]),
        ([*CALM, *[request(500.0)] * 5], request(500.0)),
    ],
    ids=["a burst", "fewer but longer prompts", "all at once"],
)
def test_the_busiest_stretch_brings_most_tokens_a_second(requests, first):
    window = busiest(requests, 5)
    start = requests.index(first)
    assert [each.prompt_tokens for each in window] == [each.prompt_tokens for each in requests[start : start + 5]]
    assert [each.at_s for each in window] == [each.at_s - first.at_s for each in requests[start : start + 5]]


def test_a_trace_that_is_shorter_is_its_own_window():
    assert busiest(CALM, 100) == CALM
    assert busiest([], 100) == []


def test_what_arrives_at_once_cannot_be_stretched_to_a_load(tmp_path: Path):
    file = tmp_path / "burst.csv"
    file.write_text("time,prompt,output\n" + "7,100,5\n" * 20)
    trace, silent = open_trace(str(file)), Console(quiet=True)
    with pytest.raises(SettingError, match="arrive at once, which no load can stretch: leave it out"):
        prepare(Asked(trace=str(file), load=0.5), trace, silent)
    assert [each.at_s for each in prepare(Asked(trace=str(file)), trace, silent).requests] == [0.0] * 20
