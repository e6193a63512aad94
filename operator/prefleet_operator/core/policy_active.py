"""PolicyActive of engines that report what they run: the proof that a setting works. Pure.

Every ready pod reports the effective generation. A pod that reports another one makes it Unknown (Propagating) for
`Facts.propagation_s` and False after that; a pod that cannot be read makes it Unknown for as long as that lasts, since
silence proves nothing. But a fleet that is active stays so while it grows: a pod that was made after the change, and
has only just become ready, is not counted before there has been time to read it, as long as others prove the setting.
"""

from __future__ import annotations

from collections.abc import Sequence

from prefleet_operator.api import Condition, ConditionType
from prefleet_operator.core.measured import FIRST_METRICS_S
from prefleet_operator.core.observed import Missing, PodView, Sample, Stale
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.status import FALSE, TRUE, UNKNOWN, Facts, Verdict, find_condition, reports

KUBELET_REFRESH_S = 90


def judge_policy_active(facts: Facts, standing: Sequence[Condition] = ()) -> Verdict:
    """PolicyActive: every ready pod reports the effective generation. `standing`: the conditions as they are."""
    pods = facts.ready_pods()
    if not pods:
        message = f"No pod is ready, so none can report generation {facts.generation}."
        return Verdict(ConditionType.POLICY_ACTIVE, UNKNOWN, Reason.NO_READY_PODS, message)
    behind = [pod for pod in pods if not reports(pod, facts.generation)]
    new = [pod for pod in behind if _is_unread(facts, pod)]
    if not behind:
        message = f"All {len(pods)} ready pods report generation {facts.generation}."
        return Verdict(ConditionType.POLICY_ACTIVE, TRUE, Reason.GENERATION_REPORTED, message)
    before = find_condition(standing, ConditionType.POLICY_ACTIVE)
    if behind == new and len(new) < len(pods) and before is not None and before.status is TRUE:
        message = (
            f"All {len(pods) - len(new)} ready pods that have been read report generation {facts.generation}; "
            f"{len(new)} made with it {'was' if len(new) == 1 else 'were'} not read yet."
        )
        return Verdict(ConditionType.POLICY_ACTIVE, TRUE, Reason.GENERATION_REPORTED, message)
    count = f"{len(pods) - len(behind)} of {len(pods)} ready pods report generation {facts.generation}"
    overdue = [pod for pod in behind if facts.now >= _due(facts, pod)]
    if not overdue:
        message = f"{count}; {_how_the_others_follow(facts)}."
        return Verdict(ConditionType.POLICY_ACTIVE, UNKNOWN, Reason.PROPAGATING, message)
    wrong = [pod for pod in overdue if isinstance(pod.reported_generation, Sample)]
    if wrong:
        message = f"{count}; {_names(wrong)} still report another: {_where_to_look(facts)}."
        return Verdict(ConditionType.POLICY_ACTIVE, FALSE, Reason.GENERATION_NOT_REPORTED, message)
    message = f"{count}; nothing fresh is known of {_names(overdue)}: {_why_silent(overdue[0])}"
    return Verdict(ConditionType.POLICY_ACTIVE, UNKNOWN, Reason.GENERATION_UNKNOWN, message, noisy=True)


def _is_unread(facts: Facts, pod: PodView) -> bool:
    """Whether it serves for so short that it need not have been read, and was made when the generation stood."""
    recent = pod.ready_since_s is not None and facts.now - pod.ready_since_s < FIRST_METRICS_S
    made_since = pod.created_s is not None and pod.created_s >= (facts.changed_at_s or 0)
    return recent and made_since and isinstance(pod.reported_generation, Missing)


def _due(facts: Facts, pod: PodView) -> float:
    """When the pod must have reported: counted from the change, or from its turning ready if that is later."""
    return max(facts.changed_at_s or 0, pod.ready_since_s or 0) + facts.propagation_s


def _how_the_others_follow(facts: Facts) -> str:
    if facts.spec.attach is None:
        return f"the others have {facts.propagation_s} seconds from the change to follow"
    return (
        f"the files of attached pods follow a change within {KUBELET_REFRESH_S} seconds, "
        f"and the others have {facts.propagation_s} to report it"
    )


def _where_to_look(facts: Facts) -> str:
    if facts.spec.attach is None:
        return "look in their logs for a refused policy file"
    return "see that they mount the policy ConfigMap, without subPath, and look in their logs for a refused policy file"


def _names(pods: Sequence[PodView], limit: int = 3) -> str:
    names = ", ".join(pod.name for pod in pods[:limit])
    return names if len(pods) <= limit else f"{names} and {len(pods) - limit} more"


def _why_silent(pod: PodView) -> str:
    match pod.reported_generation:
        case Missing(reason=why):
            return why
        case Stale(why=why) if why:
            return why
    return "its last report is stale."
