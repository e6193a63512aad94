"""PolicyActive of engines that are told their policy at their start, and never say what they run.

What is known of such a pod is with which generation it was started: its template carries it. So the condition is
True when every ready pod was started with the effective one, and its sentence says whose word that is. While pods are
being replaced it is Unknown for as long as that takes; False is a rollout that makes no progress. Decode pods are told
nothing and do not count.
"""

from __future__ import annotations

from prefleet_operator.api import ConditionType
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.status import FALSE, TRUE, UNKNOWN, Facts, Verdict, reports

_KIND = ConditionType.POLICY_ACTIVE


def judge_started(facts: Facts) -> Verdict:
    """PolicyActive: every ready pod was started with the effective generation."""
    pods = [pod for pod in facts.ready_pods() if facts.is_told(pod)]
    if not pods:
        message = f"No prefill pod is ready, so none was started with generation {facts.generation} yet."
        return Verdict(_KIND, UNKNOWN, Reason.NO_READY_PODS, message)
    current = [pod for pod in pods if reports(pod, facts.generation)]
    if len(current) == len(pods):
        engine = facts.spec.engine.type.value
        message = (
            f"All {len(pods)} ready pods were started with generation {facts.generation}; "
            f"{engine} itself does not report what it runs."
        )
        return Verdict(_KIND, TRUE, Reason.STARTED_WITH_GENERATION, message)
    count = f"{len(current)} of {len(pods)} ready pods were started with generation {facts.generation}"
    stuck = sorted(role.value for role in facts.stuck if role in {pod.role for pod in pods})
    if stuck:
        message = f"{count}; the rollout of {', '.join(stuck)} makes no progress: see Ready."
        return Verdict(_KIND, FALSE, Reason.ROLLOUT_STUCK, message)
    message = f"{count}; the others are being replaced, and until then run what they were started with."
    return Verdict(_KIND, UNKNOWN, Reason.REPLACING_PODS, message)
