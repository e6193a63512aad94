"""Which generation a fleet's policy has, and why it is another than the last. Pure.

The same content keeps the live generation, another content gets the next one. Generations never go back: the next one
lies above what the ConfigMap and the status say, so either may be lost.
"""

from __future__ import annotations

from prefleet_operator.api import ConditionType, EffectiveStatus, Move, format_duration
from prefleet_operator.core.native_policy import FleetPolicy, NativePolicy
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.runtime_policy import to_scheduling_policy
from prefleet_operator.core.situation import LivePolicy, Situation
from prefleet_operator.core.status import TRUE, find_condition
from prefleet_operator.core.tuning import TuningDecision, format_time


def describe_effective(policy: FleetPolicy) -> EffectiveStatus:
    """The live policy in the resource's own words."""
    split = policy.policy.has_threshold
    return EffectiveStatus(
        policy=to_scheduling_policy(policy.policy),
        threshold=policy.threshold if split else None,
        long_max_wait=format_duration(policy.long_max_wait_ms / 1000) if split else None,
        generation=policy.generation,
    )


def next_policy(situation: Situation, wanted: FleetPolicy) -> FleetPolicy:
    """`wanted` under the highest generation known if the ConfigMap says just that, else under the next one.

    The ConfigMap of an engine that is told at its start is read by no pod. Where it is gone or spoilt, and the status
    knows that nothing else is wanted, the generation stays: the next one would replace every pod for nothing. One that
    can be read is believed, since a status does not tell all that an engine is told, nor of a spec that was refused.
    """
    live, effective = situation.live, situation.status.effective
    known = max(0 if live is None else live.generation, 0 if effective is None else effective.generation)
    unchanged = live is not None and live.policy == _numbered(wanted, known)
    lost = live is None or live.policy is None or not live.ours
    if lost and isinstance(wanted, NativePolicy) and _is_carried_out(situation):
        unchanged = describe_effective(_numbered(wanted, known)) == effective
    return _numbered(wanted, known if unchanged else known + 1)


def _is_carried_out(situation: Situation) -> bool:
    """Whether the status is of this very spec, applied."""
    accepted = find_condition(situation.status.conditions, ConditionType.ACCEPTED)
    known = accepted is not None and accepted.status is TRUE
    return known and situation.status.observed_generation == situation.generation


def _numbered(policy: FleetPolicy, generation: int) -> FleetPolicy:
    return policy.model_copy(update={"generation": generation})


def tell_move(situation: Situation, decision: TuningDecision, effective: EffectiveStatus, now: float) -> Move:
    """The entry of the history for a generation that is another than the last: what it sets, and why."""
    reason, message = _why(situation, decision, effective)
    return Move(
        at=format_time(now),
        generation=effective.generation,
        policy=effective.policy,
        threshold=effective.threshold,
        long_max_wait=effective.long_max_wait,
        reason=reason.value,
        message=message,
    )


def _why(situation: Situation, decision: TuningDecision, effective: EffectiveStatus) -> tuple[Reason, str]:
    """Why this generation is another than the last one in status.

    What the tuner has moved goes before what else has happened to the ConfigMap: under another name it would not count
    as the restart that it may be (`restart_budget`), nor be told.
    """
    setting, live, known = describe_setting(effective), situation.live, situation.status.effective
    if live is None and known is None:
        return Reason.FLEET_CREATED, f"The fleet starts with {setting}."
    if live is not None and live.ours and live.generation == effective.generation:
        return Reason.ADOPTED, f"The status did not know what the policy ConfigMap says: {setting} is adopted."
    drift = _drift(live, setting)
    if decision.moves:
        told = " ".join(dict.fromkeys(move.message for move in decision.moves))
        return decision.moves[0].reason, f"{told}. {drift}" if drift else told
    if live is None and situation.status.observed_generation != situation.generation:
        return Reason.SPEC_CHANGED, f"The spec changed; a policy ConfigMap is written with {setting}."
    if drift:
        return Reason.DRIFT_CORRECTED, drift
    return Reason.SPEC_CHANGED, f"The spec changed; the fleet runs {setting}."


def _drift(live: LivePolicy | None, setting: str) -> str:
    """What somebody else has done to the ConfigMap; "" if nothing."""
    if live is None:
        return f"The policy ConfigMap was deleted; it is there again with {setting}."
    return "" if live.ours else f"The policy ConfigMap was changed by someone else; it is {setting} again."


def describe_setting(effective: EffectiveStatus) -> str:
    """The setting in a few words."""
    if not effective.policy.has_threshold:
        return effective.policy.value
    return f"{effective.policy.value} with threshold {effective.threshold} and longMaxWait {effective.long_max_wait}"
