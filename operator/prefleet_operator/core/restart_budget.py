"""How often the tuner may restart an engine: at most `tuning.restartBudget` moves in 24 hours, by status.history.

Every move of an engine that is told at its start replaces its pods, and a model may take half an hour to load. So
once the budget is spent, what the tuner would move stays as it is, and its finding says so and until when. What one
decision moves together, threshold and wait limit, is one restart.

What a user changes is never held, nor counted: pins, another policy, and a lower SLO, which cuts the limit at once.
Every other generation counts, whatever it is called: one that is adopted was begun by an operator that ended before it
could say why, and one that puts a ConfigMap right has replaced the pods as well. A history is bounded, so moves that
many changes of the user's have pushed out of it are forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence

from prefleet_operator.api import Move, PrefillPolicySpec
from prefleet_operator.core.held_moves import hold_moves
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.tuning import TunerMemory, TuningDecision, format_time, parse_time

DAY_S = 24 * 3600

_THE_USERS = frozenset(reason.value for reason in (Reason.FLEET_CREATED, Reason.SPEC_CHANGED, Reason.SLO_LOWERED))


def within_budget(
    spec: PrefillPolicySpec,
    history: Sequence[Move],
    before: TunerMemory,
    decision: TuningDecision,
    after: TunerMemory,
    now: float,
) -> tuple[TuningDecision, TunerMemory]:
    """The decision and its memory, less what the budget does not allow."""
    held = {move.name for move in decision.moves if move.reason is not Reason.SLO_LOWERED}
    told = _spent(spec.tuning.restart_budget, history, now) if held else None
    if told is None:
        return decision, after
    return hold_moves(before, decision, after, held, Reason.RESTART_BUDGET_SPENT, told)


def _spent(budget: int, history: Sequence[Move], now: float) -> str | None:
    """Why nothing may be restarted now, as the end of a sentence; None if something may."""
    if budget == 0:
        return "tuning.restartBudget is 0: nothing is restarted for it"
    times = sorted(parse_time(move.at) for move in history if move.reason not in _THE_USERS)
    recent = [at_s for at_s in times if now - at_s < DAY_S]
    if len(recent) < budget:
        return None
    until = format_time(recent[-budget] + DAY_S)
    return f"{len(recent)} moves in 24 hours spend tuning.restartBudget {budget}: nothing is restarted before {until}"
