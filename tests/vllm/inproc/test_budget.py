"""How steps are shared: what each setting does to the real scheduler, and that nothing of it stays behind."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from tests.vllm.inproc.conftest import FIRST_COME, SHORT_FIRST, Start
from tests.vllm.inproc.engine import Engine

YIELD = SHORT_FIRST
CAP = SHORT_FIRST | {"long_chunk": "cap"}
OFF = SHORT_FIRST | {"long_chunk": "off"}
TPT = {"stage": {"type": "tpt", "prefill_ms_per_request": 40, "decode_ms_per_request": 1, "max_batch": 11}}
STALL = {"stage": {"type": "stall_budget", "max_stall_ms": 60_000}}
EVERY = pytest.mark.parametrize(
    "policy",
    [YIELD, CAP, OFF, FIRST_COME | TPT, YIELD | TPT, FIRST_COME | STALL, YIELD | STALL, CAP | STALL],
    ids=[
        "yield",
        "cap",
        "off",
        "tpt",
        "yield and tpt",
        "stall budget",
        "yield and stall budget",
        "cap and stall budget",
    ],
)


def knobs(engine: Engine) -> dict[str, Any]:
    """Everything that a budget changes for a step."""
    scheduler = engine.scheduler
    return {
        "tokens": scheduler.max_num_scheduled_tokens,
        "chunk": scheduler.scheduler_config.long_prefill_token_threshold,
        "adaptive": getattr(scheduler, "adaptive_long_prefill_threshold", None),
        "longs": engine.queue._longs_left,
    }


def held(engine: Engine) -> list[str]:
    ahead = engine.scheduler.current_step + 1
    return [name for name, request in engine.scheduler.requests.items() if request.next_decode_eligible_step > ahead]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param(YIELD, {"short": 40, "long": 472}, id="yield: the long takes what the short leaves"),
        pytest.param(CAP, {"short": 40, "long": 128}, id="cap: the long gets a quarter"),
        pytest.param(CAP | {"long_chunk_tokens": 50}, {"short": 40, "long": 50}, id="cap: or what is set"),
        pytest.param(OFF, {"long": 512}, id="off: the short waits"),
    ],
)
def test_a_short_that_arrives_while_a_long_is_computed(
    start: Start, policy: dict[str, Any], expected: Mapping[str, int]
) -> None:
    engine = start(policy)
    engine.add("long", 4000)
    engine.step()
    assert engine.tokens == {"long": 512}
    engine.add("short", 40)
    engine.step()
    assert engine.tokens == expected
    engine.run()
    assert sorted(engine.finished) == ["long", "short"]


def start_three_longs(engine: Engine) -> None:
    engine.scheduler.scheduler_config.long_prefill_token_threshold = 200  # the user's own
    for name in ("a", "b", "c"):
        engine.add(name, 2000)
    engine.step()
    assert engine.tokens == {"a": 200, "b": 200, "c": 112}


def test_one_long_goes_on_and_the_others_are_held_while_a_short_is_there(start: Start) -> None:
    engine = start(YIELD)
    start_three_longs(engine)
    engine.add("short", 40)
    engine.step()
    assert engine.tokens == {"a": 200, "short": 40}  # the user's smaller chunk stays in force
    engine.step()
    assert {"a", "b"} <= set(engine.tokens)
    assert held(engine) == []
    engine.run()
    assert engine.metrics()["prefleet_held_longs_total"] == 2
    assert engine.scheduler.scheduler_config.long_prefill_token_threshold == 200


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [
        pytest.param(0, {"short": 100, "long": 412}, id="no further long starts while shorts contend"),
        pytest.param(100, {"long": 412, "another": 100}, id="but for an aged one that its share allows"),
    ],
)
def test_a_second_long(start: Start, age_s: float, expected: Mapping[str, int]) -> None:
    engine = start(YIELD | {"long_max_wait_ms": 60_000})
    engine.add("long", 4000)
    engine.step()
    engine.add("another", 4000, arrival_time=time.time() - age_s)
    engine.add("short", 100)
    engine.step()
    assert engine.tokens == expected
    engine.run()


def test_decodes_go_before_a_long_that_started_before_them(start: Start) -> None:
    engine = start(YIELD)
    engine.add("long", 4000)
    engine.step()
    engine.add("short", 40, max_tokens=20)
    while "short" not in engine.tokens:
        engine.step()
    for _ in range(4):  # the first of these may still wait for the answer to the prompt
        engine.step()
    assert list(engine.tokens) == ["short", "long"]
    assert engine.tokens == {"short": 1, "long": 511}
    engine.run()


def test_tpt_computes_no_prefill_in_steps_of_decode(start: Start) -> None:
    """One decode of at most 11: 40 x 1 / (1 x 10) are 4 steps, 3 of them of decode alone."""
    engine = start(FIRST_COME | TPT)
    engine.add("decodes", 40, max_tokens=60)
    while not engine.scheduler.requests["decodes"].num_output_tokens:
        engine.step()
    engine.add("prompt", 4000)
    engine.add("waits", 400)
    steps = []
    for _ in range(12):
        bound = engine.scheduler.prefill_capacity_bound
        engine.step()
        steps.append(engine.tokens.get("prompt", 0) > 0)
        assert "decodes" in engine.tokens
        assert steps[-1] or engine.scheduler.prefill_capacity_bound == bound
    assert "".join("P" if prefill else "d" for prefill in steps) == "dddPdddPdddP"
    assert engine.metrics()["prefleet_decode_only_steps_total"] >= 8
    engine.run()


def test_a_stall_budget_begins_small_and_grows_as_steps_prove_short(start: Start) -> None:
    engine = start(FIRST_COME | STALL)
    engine.add("decodes", 40, max_tokens=60)
    while not engine.scheduler.requests["decodes"].num_output_tokens:
        engine.step()
    engine.add("prompt", 4000)
    chunks = []
    while len(chunks) < 8:
        engine.step()
        chunks.append(engine.tokens["prompt"])
        assert engine.tokens["decodes"] == 1
    assert chunks[0] == 64
    assert all(after <= 2 * before for before, after in pairwise(chunks))
    assert chunks[-1] == 511  # all that a decode leaves
    engine.run()
    metrics = engine.metrics()
    assert metrics["prefleet_stall_limited_steps_total"] >= 1
    assert metrics["prefleet_step_cost_samples"] > 8


def add_everything(engine: Engine) -> dict[str, int]:
    outputs = {}
    for number in range(6):
        for name, tokens, output in (("long", 1500, 9), ("short", 40, 7), ("middle", 101, 5)):
            outputs[f"{name}-{number}"] = output
            engine.add(f"{name}-{number}", tokens, max_tokens=output)
    return outputs


@EVERY
@pytest.mark.parametrize("blocks", [1000, 160], ids=["with room for all", "in a cache that is too small"])
def test_all_requests_get_all_their_tokens_and_every_setting_is_restored(
    start: Start, policy: dict[str, Any], blocks: int
) -> None:
    engine = start(policy, blocks=blocks)
    before = knobs(engine)
    outputs = add_everything(engine)
    requests = dict(engine.scheduler.requests)
    for _ in range(2000):
        if not engine.scheduler.has_unfinished_requests():
            break
        engine.step()
        assert sum(engine.tokens.values()) <= 512
        assert knobs(engine) == before
        assert held(engine) == []
    engine.run()
    assert {name: request.num_output_tokens for name, request in requests.items()} == outputs


@EVERY
def test_settings_are_restored_when_a_step_fails(
    start: Start, policy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(policy)
    start_three_longs(engine)
    engine.add("short", 40)
    before = knobs(engine)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no slots today")

    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler.kv_cache_manager, "allocate_slots", fail)
        with pytest.raises(RuntimeError, match="no slots today"):
            engine.scheduler.schedule()
    assert knobs(engine) == before
    assert held(engine) == []
    engine.run()
    assert len(engine.finished) == 4


@EVERY
def test_aborts_at_any_moment_leave_nothing_behind(start: Start, policy: dict[str, Any]) -> None:
    engine = start(policy)
    names = list(add_everything(engine))
    for name in names[::2]:
        engine.step()
        engine.abort(name, name, "never seen")
    engine.run()
    assert not engine.scheduler.prefleet.budgets._long


def test_a_switch_through_all_settings_loses_nobody(start: Start) -> None:
    engine = start(OFF)
    names = add_everything(engine)
    for generation, policy in enumerate((YIELD, FIRST_COME | TPT, CAP, YIELD | STALL, FIRST_COME, CAP | TPT, YIELD), 2):
        engine.take_policy(generation, **policy)
        for _ in range(3):
            engine.step()
        engine.queue._check()
    engine.run()
    assert sorted(engine.finished) == sorted(names)


def test_without_chunked_prefill_steps_are_the_engines_own(start: Start) -> None:
    engine = start(YIELD | STALL)
    assert not engine.scheduler.prefleet.budgets._is_idle
    engine.scheduler.scheduler_config.enable_chunked_prefill = False
    steps = engine.scheduler.prefleet
    assert type(steps.budgets)(engine.scheduler, steps.governor, lambda: True, steps.faults)._is_idle
