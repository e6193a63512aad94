"""What a metrics source would say of a role under a load of which the size is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prefleet_operator.core.observed import Sample
from prefleet_operator.core.sizing.demand import prompt_work
from prefleet_operator.core.sizing.values import RoleLoad, StepCost

from tests.support.lengths import histogram

COST = StepCost(fixed=0.02, prefill_token=1e-4, decode_token=2e-4, attention_pair=1e-9, decode_context_token=1e-7)
PROMPT_TOKENS, STEP_TOKENS, WINDOW_S = 2000, 2048, 300.0


def load_of(work: float, at_s: float, **given: Any) -> RoleLoad:
    """Equal prompts that are so much work a second (one pod does 1), and nothing that waits or is decoded."""
    requests = round(WINDOW_S * work / prompt_work(PROMPT_TOKENS, COST, STEP_TOKENS))
    usual = RoleLoad(
        slow_s=WINDOW_S,
        arrivals=Sample(histogram([PROMPT_TOKENS] * requests), at_s),
        waiting_tokens=Sample(0.0, at_s),
        waiting=Sample(0.0, at_s),
        step_cost=Sample(COST, at_s),
        step_tokens=Sample(STEP_TOKENS, at_s),
        running=Sample(0.0, at_s),
        kv_usage=Sample(0.0, at_s),
        kv_tokens=Sample(400_000.0, at_s),
    )
    return replace(usual, **given)
