"""The demo's workload: the mix that the README promises, and traces that are read or refused."""

from pathlib import Path

import pytest
from prefleet_runtime.sim.traces import TraceError, TraceRequest, open_trace

from tests.support.demo.workload import (
    BURST_CYCLE_S,
    BURST_FACTOR,
    LONG_BOUNDS,
    SHORT_BOUNDS,
    bursty_mix,
    quantile,
    trace_requests,
)


def _service_s(tokens: int) -> float:
    return tokens / 10_000


def test_mix_keeps_its_shape() -> None:
    requests = bursty_mix(seed=7, duration_s=600, load=0.8, service_s=_service_s, pods=2)
    longs = [r for r in requests if r.prompt_tokens >= LONG_BOUNDS[0]]
    shorts = [r for r in requests if r.prompt_tokens <= SHORT_BOUNDS[1]]
    assert len(longs) + len(shorts) == len(requests)
    assert len(longs) / len(requests) == pytest.approx(0.25, abs=0.03)
    work_s = sum(_service_s(r.prompt_tokens) for r in requests)
    assert work_s / (2 * 600) == pytest.approx(0.8, rel=0.1)
    assert all(r.at_s % BURST_CYCLE_S <= BURST_CYCLE_S / BURST_FACTOR for r in requests)


def test_same_seed_gives_the_same_requests() -> None:
    first, second = (bursty_mix(3, 60, 0.8, _service_s, 2) for _ in range(2))
    assert first == second


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = [f"2023-11-16 18:15:{second:02d}.5000000,1000,200" for second in range(10)]


def of_text(folder: Path, text: str, duration_s: float = 30, load: float = 0.8) -> list[TraceRequest]:
    path = folder / "trace"
    path.write_text(text)
    return trace_requests(open_trace(str(path)), duration_s, load, _service_s, 2, longest=32_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a,b\n1,2\n", "begins no known trace", id="an unknown header is refused"),
        pytest.param(AZURE + "2023-11-16 18:15:46.68,374\n", "line 2", id="a short row is named by its line"),
        pytest.param(AZURE + "2023-11-16 18:15:46.68,374,44\nx,1,1\n", "line 3", id="a bad time is named by its line"),
        pytest.param(AZURE + "2023-11-16 18:15:46.68,374,44\n", "two requests", id="one request is no trace"),
        pytest.param('{"input_length": 5}\n', "line 1", id="a JSON line without a time is named"),
    ],
)
def test_bad_traces_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        of_text(tmp_path, text)


def test_bad_lines_refuse_a_trace_of_which_no_more_is_needed_than_its_beginning(tmp_path: Path) -> None:
    """A load that the first three requests make: what is malformed among the lines read is told all the same."""
    with pytest.raises(TraceError, match=r"1 of the first 11 lines are malformed.*line 4: .*correct or delete them"):
        of_text(tmp_path, AZURE + "\n".join([*ROWS[:2], "2023-11-16,1", *ROWS[2:]]), load=0.005)


def test_a_trace_is_stretched_to_the_duration(tmp_path: Path) -> None:
    requests = of_text(tmp_path, AZURE + "\n".join(ROWS) + "\n")
    assert requests[0].at_s == 0
    assert requests[-1].at_s == pytest.approx(30)
    assert {r.output_tokens for r in requests} == {64}


def test_whatever_a_replay_takes_is_a_trace_here_too() -> None:
    requests = trace_requests(open_trace("bimodal:seed=7,requests=200"), 30, 0.8, _service_s, 2, longest=32_000)
    assert len(requests) > 2
    assert requests[-1].at_s == pytest.approx(30)


@pytest.mark.parametrize(("q", "expected"), [(0.5, 2), (0.75, 3), (1.0, 4), (0.0, 1)])
def test_quantile_is_the_nearest_rank(q: float, expected: float) -> None:
    assert quantile([4, 1, 3, 2], q) == expected
