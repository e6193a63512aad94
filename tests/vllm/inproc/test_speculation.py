"""Speculative decoding: drafts are scheduled with their decodes, and some are accepted, some rejected."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prefleet_runtime.stage import StepBudget, StepView, StepWork

from tests.vllm.inproc.conftest import SHORT_FIRST, Start
from tests.vllm.inproc.engine import BLOCK, Engine
from tests.vllm.inproc.test_budget import CAP, EVERY, YIELD, add_everything, held, knobs

DRAFTS = 3
BUDGET = 512
NGRAM = {"method": "ngram_gpu", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 3}


def drafter(model: Path) -> dict[str, Any]:
    """A second model that proposes all drafts at once: each request of a step takes as many slots beside its tokens."""
    return {
        "method": "draft_model",
        "model": str(model),
        "num_speculative_tokens": DRAFTS,
        "parallel_drafting": True,
    }


@pytest.fixture(params=["n-grams", "a draft model"])
def speculation(request: pytest.FixtureRequest, model: Path) -> dict[str, Any]:
    return NGRAM if request.param == "n-grams" else drafter(model)


@dataclass
class Watched:
    """An engine whose steps are compared with what the step budget was told."""

    engine: Engine
    views: list[StepView] = field(default_factory=list)
    works: list[StepWork] = field(default_factory=list)  # of all steps, as the step cost learns from them

    def __post_init__(self) -> None:
        governor = self.engine.scheduler.prefleet.governor
        plan_step, end_step = governor.plan_step, governor.end_step

        def spy(view: StepView) -> StepBudget:
            self.views.append(view)
            return plan_step(view)

        def learn(now: float, seconds: float, tokens: int, work: StepWork) -> None:
            self.works.append(work)
            end_step(now, seconds, tokens, work)

        governor.plan_step, governor.end_step = spy, learn

    def step(self) -> None:
        """One step; what ran on was told to the budget with its drafts, and got all of its tokens."""
        scheduler = self.engine.scheduler
        decodes = [request.request_id for request in scheduler.running if not request.is_prefill_chunk]
        preempted = {name: request.num_preemptions for name, request in scheduler.requests.items()}
        self.views.clear()
        self.engine.step()
        if any(request.num_preemptions > preempted[name] for name, request in scheduler.requests.items()):
            return
        tokens, drafts = self.engine.tokens, self.engine.drafts
        going = [name for name in decodes if name in tokens]
        assert all(tokens[name] == 1 + drafts.get(name, 0) for name in going)
        for view in self.views:
            assert view.decodes == len(going)
            assert view.decode_tokens == sum(tokens[name] for name in going)


@EVERY
@pytest.mark.parametrize("blocks", [1000, 160], ids=["with room for all", "in a cache that is too small"])
def test_all_requests_get_all_their_tokens_and_decodes_all_their_drafts(
    start: Start, policy: dict[str, Any], blocks: int, speculation: dict[str, Any]
) -> None:
    engine = start(policy, blocks=blocks, speculation=speculation)
    before = knobs(engine)
    outputs = add_everything(engine)
    requests = dict(engine.scheduler.requests)
    watched = Watched(engine)
    drafted = 0
    while engine.scheduler.has_unfinished_requests():
        watched.step()
        drafted += sum(engine.drafts.values())
        assert sum(engine.tokens.values()) <= BUDGET
        assert knobs(engine) == before
        assert held(engine) == []
    engine.run()
    assert {name: request.num_output_tokens for name, request in requests.items()} == outputs
    assert drafted > 0
    prompts = sum(request.num_prompt_tokens for request in requests.values())
    assert sum(work.prefill_tokens for work in watched.works) == prompts, "the step cost takes no draft for prefill"


@EVERY
def test_preempted_requests_get_all_their_tokens(
    start: Start, policy: dict[str, Any], speculation: dict[str, Any]
) -> None:
    engine = start(policy, blocks=21, speculation=speculation)
    requests = [engine.add(name, 140, max_tokens=60) for name in "ab"]
    watched = Watched(engine)
    while engine.scheduler.has_unfinished_requests():
        watched.step()
    engine.run()
    assert [request.num_output_tokens for request in requests] == [60, 60]
    assert engine.counters.requeues >= 1


def test_the_settings_make_a_scheduler_that_drafts(start: Start, speculation: dict[str, Any]) -> None:
    scheduler = start(speculation=speculation).scheduler
    assert scheduler.num_spec_tokens == DRAFTS
    slots = scheduler.vllm_config.speculative_config.max_num_new_slots_for_drafting
    assert slots == (0 if speculation is NGRAM else DRAFTS)


@pytest.mark.parametrize("policy", [YIELD, CAP], ids=["yield", "cap"])
def test_a_chunk_smaller_than_a_decode_with_its_drafts_cuts_none(start: Start, policy: dict[str, Any]) -> None:
    """One that needs a single token is padded by the engine to the width of a decode, and must get all of that."""
    engine = start(policy | {"long_chunk_tokens": 1}, speculation=NGRAM)
    prefix = list(range(2 * BLOCK))
    engine.add("writer", 3 * BLOCK, prefix=prefix)
    engine.run()
    engine.add("decodes", 40, max_tokens=20)
    while not engine.scheduler.requests["decodes"].num_output_tokens:
        engine.step()
    engine.scheduler.requests["decodes"].spec_token_ids = []
    engine.add("cached", 2 * BLOCK + 1, prefix=prefix, max_tokens=9)
    engine.add("long", 4000)
    engine.step()
    assert engine.tokens["cached"] == 1 + DRAFTS
    engine.run()


def test_the_slots_of_a_drafter_are_taken_from_the_room_for_prefill(start: Start, model: Path) -> None:
    """Each request takes 3 slots beside its tokens; else the last short would lack as many, and take one step more."""
    engine = start(YIELD, speculation=drafter(model))
    engine.add("long", 4000)
    engine.step()
    assert engine.tokens == {"long": BUDGET - DRAFTS}
    for name in ("short", "short too"):
        engine.add(name, 40)
    engine.step()
    assert engine.tokens == {"long": BUDGET - 80 - 3 * DRAFTS, "short": 40, "short too": 40}
    engine.run()


@EVERY
def test_aborts_at_any_moment_leave_nothing_behind(
    start: Start, policy: dict[str, Any], speculation: dict[str, Any]
) -> None:
    engine = start(policy, speculation=speculation)
    for name in list(add_everything(engine))[::2]:
        engine.step()
        engine.abort(name, name, "never seen")
    engine.run()


def test_running_requests_that_are_reset_are_drafted_on_again(start: Start, speculation: dict[str, Any]) -> None:
    engine = start(SHORT_FIRST, speculation=speculation)
    requests = [engine.add(name, 40, max_tokens=30) for name in "abc"]
    for _ in range(6):
        engine.step()
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.run()
    assert [request.num_output_tokens for request in requests] == [30, 30, 30]
