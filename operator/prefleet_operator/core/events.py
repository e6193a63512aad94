"""What is told of a fleet as it happens: events, and which changes of a condition are worth one. Pure.

Left out: how often an event is written (adapters/events.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from prefleet_operator.api import Condition, ConditionStatus, ConditionType, PrefillPolicyStatus
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.status import NOT_SCALED, find_condition


@dataclass(frozen=True, slots=True)
class Event:
    """What happened, for the fleet's Events."""

    reason: Reason
    message: str
    warning: bool = False


def condition_events(before: PrefillPolicyStatus, after: PrefillPolicyStatus) -> tuple[Event, ...]:
    """One event for each condition whose status has become True or False, or that has a new fault to tell."""
    return tuple(
        Event(
            reason=Reason(condition.reason),
            message=f"{condition.type.value} is {condition.status.value}: {condition.message}",
            warning=_alarms(known, condition),
        )
        for condition in after.conditions
        if _is_news(known := find_condition(before.conditions, condition.type), condition)
    )


_NEVER_FALSE = (ConditionType.ACCEPTED, ConditionType.POLICY_ACTIVE, ConditionType.METRICS_AVAILABLE)
_NEVER_TRUE = (ConditionType.CAPACITY_LIMITED, ConditionType.DEGRADED)
"""In the ordinary course of things."""

_FAULTS = (
    Reason.ROLLOUT_STUCK,
    Reason.PODS_REFUSED,
    Reason.UNSCHEDULABLE,
    Reason.IMAGE_UNAVAILABLE,
    Reason.CONTAINER_NOT_STARTED,
    Reason.ENGINE_CRASHING,
)
"""Reasons of Ready that waiting alone does not mend. That pods are not ready yet is ordinary."""

_ALWAYS_NEWS = (*NOT_SCALED, Reason.RECONCILE_FAILED)
"""Reasons that are a fault whatever the condition's status; over the latter it is Unknown."""


def _alarms(before: Condition | None, after: Condition) -> bool:
    """Whether a condition is what it never should be, or became so: a router that is not ready yet is as ordinary as
    pods that are not, but one that was, under the same spec, has taken the fleet from its clients."""
    if after.reason in _ALWAYS_NEWS:
        return True
    if after.type in _NEVER_FALSE:
        return after.status is ConditionStatus.FALSE
    if after.type in _NEVER_TRUE:
        return after.status is ConditionStatus.TRUE
    if after.type is ConditionType.READY:
        return after.reason in _FAULTS or (after.reason == Reason.ROUTER_NOT_READY and _served(before, after))
    return False


def _served(before: Condition | None, after: Condition) -> bool:
    if before is None or before.observed_generation != after.observed_generation:
        return False
    return before.status is ConditionStatus.TRUE


def _is_news(before: Condition | None, after: Condition) -> bool:
    """A condition that alarms is news when it begins to, or for another reason; others when their status changes.

    What should never be True is news when it ends too, but not when it only becomes known that it is not so.
    """
    if _alarms(before, after):
        same = before is not None and (before.status, before.reason) == (after.status, after.reason)
        return not same
    if before is None or before.status is after.status or after.status is ConditionStatus.UNKNOWN:
        return False
    return after.type not in _NEVER_TRUE or before.status is ConditionStatus.TRUE
