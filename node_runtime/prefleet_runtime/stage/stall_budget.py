"""How much prefill a step may carry so that running decodes wait at most `max_stall_ms` for their next token.

The gap between two tokens of a decode is the length of the step between them. The learnt cost model
(`cost_model`) says what a step with the present decodes and B tokens of prefill will hardly exceed; the largest B
for which that is within the limit is found by bisection, as the cost rises with B.

While the model is not to be trusted, B comes from what was tried: it begins small. A step of w tokens that took t
shows that w' > w tokens take at most about t w' / w, since part of t is fixed; so what brings that just under the
limit may be tried next, at most twice of w. What took too long is scaled down likewise.

Prefill never stops altogether: at least `LEAST_TOKENS` go with each step, also where the decodes alone take longer
than the limit. So a gap may exceed the limit by what the model was wrong about one step.

Where nothing decodes nothing is limited. The price is paid by prefills, longs above all: they get smaller chunks,
and a fixed cost for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from .base import StepView
from .cost_model import StepCostModel, StepWork, chunk_pairs

LEAST_TOKENS = 16
"""Prefill that goes with each step: a KV block of most engines."""

FIRST_TRY_TOKENS = 64

TARGET = 0.9
"""What is tried aims at this part of the limit."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The most prefill tokens that may be tried beside decodes before the model is trusted."""

    tokens: int = FIRST_TRY_TOKENS

    def after(self, work: StepWork, seconds: float, max_stall_s: float) -> Tried:
        """What a step taught that carried both prefill and decodes; others teach nothing."""
        if not (work.prefill_tokens and work.decode_tokens and seconds > 0):
            return self
        scaled = int(work.prefill_tokens * min(2.0, TARGET * max_stall_s / seconds))
        return Tried(max(LEAST_TOKENS, min(self.tokens, scaled) if seconds > max_stall_s else max(self.tokens, scaled)))


@dataclass(frozen=True, slots=True)
class Allowance:
    """`tokens` of prefill for the step, and whether the model could be trusted to say so."""

    tokens: int
    trusted: bool = True


def allow(view: StepView, max_stall_s: float, cost: StepCostModel, tried: Tried) -> Allowance:
    """The prefill that the step may carry; all its room where nothing decodes."""
    room = view.room
    if not view.decodes or not view.prefill_is_pending:
        return Allowance(room)
    least = min(LEAST_TOKENS, room)
    if not cost.predict(_work(view, least)).trusted:
        return Allowance(max(least, min(room, tried.tokens)), trusted=False)
    fits, over = least, room + 1
    while over - fits > 1:
        middle = (fits + over) // 2
        if cost.predict(_work(view, middle)).upper <= max_stall_s:
            fits = middle
        else:
            over = middle
    return Allowance(fits)


def _work(view: StepView, tokens: int) -> StepWork:
    pairs = sum(chunk_pairs(context, chunk) for context, chunk in _chunks(view, tokens))
    return StepWork(tokens, view.decode_tokens, pairs, view.decode_context)


def _chunks(view: StepView, tokens: int) -> Iterator[tuple[int, int]]:
    """Where `tokens` of prefill would go: started shorts, then longs, in their order, the rest to what starts anew."""
    for left, context in chain(view.shorts, view.longs):
        chunk = min(tokens, left)
        yield context, chunk
        tokens -= chunk
        if not tokens:
            return
    yield 0, tokens
