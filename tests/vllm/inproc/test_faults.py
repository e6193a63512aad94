"""What fails in the runtime's own part of a step: the engine goes on, and says so."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.vllm.inproc.conftest import Start


def fail(*args: Any, **kwargs: Any) -> None:
    raise KeyError("something nobody thought of")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        pytest.param("prefleet.governor", "refresh_heads", id="looking up what is cached of waiting longs"),
        pytest.param("waiting", "_cached_tokens", id="looking up what is cached of a new request"),
        pytest.param("prefleet", "_mark_deferred", id="marking what the engine holds back"),
        pytest.param("prefleet", "_step_aside", id="letting a head step aside"),
        pytest.param("prefleet.budgets", "_look", id="looking at a step"),
        pytest.param("prefleet.governor", "plan_step", id="planning a step"),
        pytest.param("prefleet.budgets", "_set", id="setting a step's budget"),
        pytest.param("prefleet.governor", "dispatched", id="counting a dispatch"),
        pytest.param("prefleet.governor", "end_step", id="counting a step"),
        pytest.param("prefleet.governor", "ended", id="noting an end"),
    ],
)
def test_what_only_advises_or_counts_may_fail_and_everybody_is_answered(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, owner: str, name: str
) -> None:
    engine = start(budget=200)
    engine.expects_faults = True
    failing: Any = engine.scheduler
    for part in owner.split("."):
        failing = getattr(failing, part)
    monkeypatch.setattr(failing, name, fail)
    with caplog.at_level(logging.ERROR, "prefleet_runtime"):
        for number in range(3):
            engine.add(f"long-{number}", 700)
            engine.add(f"short-{number}", 40)
        engine.run()
    assert len(engine.finished) == 6
    assert len(engine.queue._table) == 0
    assert engine.metrics()["prefleet_faults_total"] >= 2
    (said,) = [record for record in caplog.records if record.name.startswith("prefleet_runtime")]
    assert "the engine goes on" in said.getMessage()
    assert said.exc_info is not None


def test_a_queue_that_fails_ends_the_engine(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests lie in it: an engine that went on would leave their clients without an answer."""
    engine = start()
    engine.add("a", 40)
    with monkeypatch.context() as patch:
        patch.setattr(engine.queue, "begin_step", fail)
        with pytest.raises(KeyError):
            engine.step()
    engine.run()
