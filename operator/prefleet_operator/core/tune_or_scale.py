"""Tune or scale: which of the tuner and of sizing acts on the waits of long requests in this turn. Pure.

Both read the same signal, and what one of them does takes a while to show in it. So whoever has acted keeps the other
from acting on it for `tuning.cooldown` (`sizing.arbiter` keeps who, and when):

    the tuner would move, and sizing has acted     the tuner's values stay, and say until when
    the tuner would set a first value              it does: a fleet without one is not set up; sizing waits
    the tuner would move, and capacity is short    sizing acts if it can grow; only if it cannot, the tuner moves
    the tuner would move otherwise                 it does, and sizing waits
    the tuner moves nothing                        sizing acts where capacity is short

What sizing decides by demand, backlog or the load of decode pods is another signal, and waits for nobody. Nor does what
a user changes: pins, and a lower SLO, which cuts the wait limit at once. A tuner that only advises never acts.
"""

from __future__ import annotations

from prefleet_operator.api import PrefillPolicySpec, Role, SizingStatus
from prefleet_operator.core.held_moves import hold_moves
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.sizing.arbiter import CAPACITY_SHARE, Act, WaitSignal, WaitsMemory
from prefleet_operator.core.sizing.inputs import wait_signal
from prefleet_operator.core.sizing.state import SizingState
from prefleet_operator.core.sizing.turn import Sizer
from prefleet_operator.core.tuning import TunerMemory, TuningDecision, format_time


def decide_together(
    sizer: Sizer,
    status: SizingStatus | None,
    before: TunerMemory,
    decision: TuningDecision,
    after: TunerMemory,
) -> tuple[TuningDecision, TunerMemory, SizingState]:
    """What remains of the tuner's decision and its memory, and the state of sizing after this turn.

    `before`: the tuner's memory before its decision, `after`: the one after it.
    """
    spec, now = sizer.spec, sizer.now
    state, moves = sizer.recall(status), tuner_moves(decision)
    if moves and _acted(Act.SCALE, state.memory.waits, spec, now):
        decision, after = _hold(spec, state.memory.waits, before, decision, after)
        moves = frozenset()
    known = state.memory.waits
    signal = None if _sets_first_value(moves, before) else wait_signal(decision, spec, unfit=bool(moves))
    if sizer.is_due(state) or (moves and _is_short(signal)):
        state = sizer.decide(state, signal)
        if not _grew(state):
            state = state.with_waits(known)
    waits = state.memory.waits
    if moves and waits.act is Act.SCALE and waits != known:
        decision, after = _hold(spec, waits, before, decision, after)
    elif moves:
        state = state.with_waits(WaitsMemory(Act.TUNE, int(now)))
    return decision, after, state


def tuner_moves(decision: TuningDecision) -> frozenset[str]:
    """What the tuner itself would change now, by the names of its moves."""
    return frozenset(move.name for move in decision.moves if move.reason is not Reason.SLO_LOWERED)


def _is_short(signal: WaitSignal | None) -> bool:
    """Whether the tuner's move cannot wait for the next decision on sizes, which would be one against it."""
    return signal is not None and signal.normal_s is not None and signal.normal_s >= CAPACITY_SHARE * signal.slo_s


def _acted(act: Act, memory: WaitsMemory, spec: PrefillPolicySpec, now: float) -> bool:
    return memory.act is act and memory.at_s is not None and now - memory.at_s < spec.tuning.cooldown_s


def _grew(state: SizingState) -> bool:
    """Whether a role whose queue is waited in has more pods now; bounds and accelerators may have taken them back."""
    return any(size.desired > state.before[role] for role, size in state.sizes.items() if role is not Role.DECODE)


def _sets_first_value(moves: frozenset[str], before: TunerMemory) -> bool:
    return ("threshold" in moves and before.threshold is None) or (
        "longMaxWait" in moves and before.long_max_wait_s == 0
    )


def _hold(
    spec: PrefillPolicySpec, waits: WaitsMemory, before: TunerMemory, decision: TuningDecision, after: TunerMemory
) -> tuple[TuningDecision, TunerMemory]:
    acted_s = waits.at_s or 0
    told = (
        f"the fleet grew for the waits of long requests at {format_time(acted_s)}: "
        f"nothing is tuned before {format_time(acted_s + spec.tuning.cooldown_s)}"
    )
    return hold_moves(before, decision, after, tuner_moves(decision), Reason.COOLING_DOWN, told)
