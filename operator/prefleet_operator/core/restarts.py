"""What is said of pods that a change replaces, before and while it does, and of pods that an upgrade has left as they
were. Pure.

Left out: which template a workload gets (render/revision.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from prefleet_operator.api import ConditionType, PrefillPolicyStatus
from prefleet_operator.core.differences import Difference, name_paths
from prefleet_operator.core.events import Event
from prefleet_operator.core.plan import Plan
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.rollout import STOPPED
from prefleet_operator.core.status import find_condition


@dataclass(frozen=True, slots=True)
class Restart:
    """The pods of one role that are replaced, and in what their template changes."""

    role: str
    pods: int
    what: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Outdated:
    """A role whose pods are as an older release rendered them, and in what the present one would differ."""

    role: str
    release: str
    what: tuple[Difference, ...]


def restart_events(restarts: Sequence[Restart], leaving: Mapping[str, int]) -> tuple[Event, ...]:
    """One event for all roles of which pods are replaced, and for those that the spec has no more; none where none is.
    `leaving`: the pods of the latter that go now."""
    parts = [_replaced(restart) for restart in restarts if restart.pods and restart.what]
    replaced = f"Pods have to be replaced, as many at once as the role's rollout allows: {'; '.join(parts)}."
    gone = [f"{_pods(count)} of {role}" for role, count in leaving.items() if count]
    told = ([replaced] if parts else []) + ([f"{' and '.join(gone)} go, which the spec has no more."] if gone else [])
    return (Event(Reason.RESTART_NEEDED, " ".join(told)),) if told else ()


def _replaced(restart: Restart) -> str:
    return f"{_pods(restart.pods)} of {restart.role} for {name_paths(restart.what)}"


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"


def outdated_sentence(outdated: Sequence[Outdated], release: str, annotation: str) -> str:
    """What is to be said of roles whose pods wait for an upgrade; "" if none does.

    `release`: the one in force. `annotation`: by which the upgrade is asked for.
    """
    waiting = [each for each in outdated if each.what]
    if not waiting:
        return ""
    roles = " and ".join(each.role for each in waiting)
    return (
        f"The pods of {roles} stay as release {waiting[0].release} rendered them; release {release} as it is installed "
        f"would change {name_paths(waiting[0].what)}, and does so with the next change that concerns them, or when the "
        f"annotation {annotation} of this policy gets another value."
    )


def say_outdated(plan: Plan, before: PrefillPolicyStatus, sentence: str) -> Plan:
    """The plan with that sentence in Accepted, and an event where `before`, the status that stands there, lacks it."""
    if not sentence:
        return plan
    accepted = find_condition(before.conditions, ConditionType.ACCEPTED)
    news = accepted is None or sentence not in accepted.message
    events = (*plan.events, Event(Reason.UPGRADE_WAITS, sentence)) if news else plan.events
    return replace(plan, status=_with_sentence(plan.status, ConditionType.ACCEPTED, sentence), events=events)


def say_rollout(plan: Plan, before: PrefillPolicyStatus, sentence: str) -> Plan:
    """The plan with that sentence in Ready: how far a rollout is, and what it waits for. An event where it has stopped,
    and `before` did not say so."""
    if not sentence:
        return plan
    ready = find_condition(before.conditions, ConditionType.READY)
    news = STOPPED in sentence and (ready is None or STOPPED not in ready.message)
    events = (*plan.events, Event(Reason.ROLLOUT_STOPPED, sentence, warning=True)) if news else plan.events
    return replace(plan, status=_with_sentence(plan.status, ConditionType.READY, sentence), events=events)


def _with_sentence(status: PrefillPolicyStatus, kind: ConditionType, sentence: str) -> PrefillPolicyStatus:
    conditions = [
        each.model_copy(update={"message": f"{each.message} {sentence}"}) if each.type is kind else each
        for each in status.conditions
    ]
    return status.model_copy(update={"conditions": conditions})
