"""What sizing reads of an engine: the work of its steps, what runs, and its KV cache, of the real scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vllm.inproc.conftest import FIRST_COME, Start
from tests.vllm.inproc.engine import BLOCK, Engine

STALL = FIRST_COME | {"stage": {"type": "stall_budget", "max_stall_ms": 50}}


def load(engine: Engine) -> dict[str, float]:
    """The gauges of an engine's load."""
    shown = engine.metrics()
    names = ("running_requests", "kv_usage_ratio", "kv_capacity_tokens", "step_token_budget")
    return {name: shown[f"prefleet_{name}"] for name in names}


def test_the_work_of_steps_is_counted_by_kind(start: Start) -> None:
    engine = start()
    engine.add("a", 700, max_tokens=5)
    engine.add("b", 40, max_tokens=3)
    engine.run()
    shown = engine.metrics()
    assert shown["prefleet_prefill_tokens_total"] == 740
    # The first token of each comes with its prefill.
    assert shown["prefleet_decode_tokens_total"] == 4 + 2
    seconds = shown["prefleet_step_seconds_sum"]
    assert 0 < shown["prefleet_decode_gap_seconds_total"] <= 2 * seconds  # at most two decodes in any step


def test_what_runs_and_what_it_holds_are_shown_as_they_are(start: Start) -> None:
    engine = start()
    assert load(engine) == {
        "running_requests": 0,
        "kv_usage_ratio": 0,
        "kv_capacity_tokens": 999 * BLOCK,
        "step_token_budget": 512,
    }
    engine.add("a", 320, max_tokens=50)
    engine.add("b", 160, max_tokens=50)
    engine.step()
    shown = load(engine)
    assert shown["running_requests"] == 2
    assert shown["kv_usage_ratio"] == pytest.approx(30 / 999, abs=1.5 / 999)
    # What is given up while no step runs shows at once.
    engine.abort("a", "b")
    assert (load(engine)["running_requests"], load(engine)["kv_usage_ratio"]) == (0, 0)
    engine.run()


def test_a_prefix_that_is_cached_is_no_work(start: Start) -> None:
    engine = start()
    prefix = list(range(320))
    engine.add("a", 330, prefix=prefix, max_tokens=1)
    engine.run()
    engine.add("b", 330, prefix=prefix, max_tokens=1)
    engine.run()
    assert engine.metrics()["prefleet_prefill_tokens_total"] == 330 + 10


def test_the_budget_shown_is_that_of_a_full_step_also_within_one_that_is_cut(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(STALL)
    engine.add("decodes", 40, max_tokens=60)
    while not engine.scheduler.requests["decodes"].num_output_tokens:
        engine.step()
    engine.add("prompt", 4000)
    seen: list[tuple[int, float]] = []
    allocate = engine.scheduler.kv_cache_manager.allocate_slots

    def within(*args: Any, **kwargs: Any) -> Any:
        seen.append((engine.scheduler.max_num_scheduled_tokens, load(engine)["step_token_budget"]))
        return allocate(*args, **kwargs)

    monkeypatch.setattr(engine.scheduler.kv_cache_manager, "allocate_slots", within)
    engine.step()
    assert min(limit for limit, _ in seen) < 512
    assert {shown for _, shown in seen} == {512}
    monkeypatch.undo()
    engine.run()


def test_groups_of_layers_share_the_blocks(start: Start) -> None:
    engine = start(window=64)
    assert load(engine)["kv_capacity_tokens"] == 999 // 2 * BLOCK


def test_the_capacity_that_the_engine_has_reckoned_goes_before_ours(start: Start) -> None:
    engine = start(kv_tokens=12_345)
    assert load(engine)["kv_capacity_tokens"] == 12_345
