"""The replay benchmark: it serves all that it is asked for, and its bars can be missed."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefleet_runtime.sim.traces import open_trace

from tests.benchmarks import replay
from tests.benchmarks.replay import FEW, MAIN, MANY, Case, Row, bars, prepared, the_trace


def row(requests: int, a_minute: float, peak_rss_mb: float) -> Row:
    return Row(MAIN, requests, requests, a_minute, 1.0, peak_rss_mb, 50.0, 8.0, 4.0)


@pytest.mark.parametrize(
    ("many", "met"),
    [
        pytest.param(row(MANY, 1.2e6, 81.0), [True, True, True], id="all met"),
        pytest.param(row(MANY, 0.9e6, 81.0), [True, False, True], id="slower as the trace becomes longer"),
        pytest.param(row(MANY, 1.2e6, 160.0), [True, True, False], id="memory that grows with the trace"),
    ],
)
def test_a_bar_can_be_missed(many: Row, met: list[bool]) -> None:
    assert [bar.met for bar in bars([row(FEW, 1.2e6, 80.0), many])] == met


@pytest.mark.parametrize("case", [Case("prefill", 300), Case("decode", 300, decodes=True), Case("four", 300, pods=4)])
def test_a_case_has_its_requests_at_its_load(case: Case) -> None:
    trace = open_trace("bimodal:seed=2,requests=200")
    requests, policy, shape, split = prepared(case, trace)
    served = list(requests)
    assert len(served) == case.requests
    assert shape.prefill == case.pods
    assert policy.threshold == split
    assert (max(request.output_tokens for request in served) > 1) is case.decodes


def test_a_mix_stands_in_where_the_trace_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(replay, "AZURE", tmp_path / "missing.csv")
    trace, source = the_trace()
    assert "not on this machine" in source
    assert trace.format != "Azure LLM inference CSV"
