"""What is said of pods that somebody else makes (`spec.attach`). Pure.

Ready. Nobody tells how many pods there should be, so the desired number is the number found, and the fleet is ready
once each attached role has a pod that serves. What ails the others is said, and changes nothing of that.

Propagation. Attached pods are never changed, so nothing makes their kubelet look at the ConfigMap at once: it does
so within `KUBELET_REFRESH_S`, and a metrics source may tell a scrape later.

Overlap. A pod follows one policy file. So a pod may be matched by one policy alone: of two policies of a namespace the
older one (then the first by name) keeps it, also while it is refused itself, and the newer one is refused. Pods that
the operator made count as their policy's. A refusal outlasts its cause by `OVERLAP_HOLD_S`: pods come and go while
their workload is rolled, and a policy that is refused and accepted by turns helps nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefleet_operator.api import Condition, ConditionStatus, ConditionType, PrefillPolicyStatus, Role
from prefleet_operator.core.observed import PodView
from prefleet_operator.core.ready import tell_trouble, trouble_reason
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.status import FALSE, TRUE, Facts, Verdict, recounted

OVERLAP_HOLD_S = 120.0


def judge_attached_ready(facts: Facts) -> Verdict:
    """Ready: each attached role has at least one pod that serves."""
    found = {role: facts.found_pods(role) for role in facts.spec.role_names()}
    return _count_attached(found, {role: of.pod_selector.text for role, of in facts.spec.attached_roles().items()})


def _count_attached(found: Mapping[Role, Sequence[PodView]], selectors: Mapping[Role, str]) -> Verdict:
    """Ready, by the pods found. What a pod itself says of its trouble is told also where others serve."""
    ready = {role: sum(pod.ready for pod in found[role]) for role in found}
    kind = ConditionType.READY
    empty = [role for role, pods in found.items() if not pods]
    if empty:
        fields = " and ".join(f"spec.attach.{role.value}.podSelector" for role in empty)
        written = "; ".join(selectors[role] for role in empty if role in selectors)
        message = f"No pod of the namespace matches {fields}{f' ({written})' if written else ''}: "
        return Verdict(kind, FALSE, Reason.NO_PODS_FOUND, message + "compare it with kubectl get pods --show-labels.")
    counts = ", ".join(f"{ready[role]} of {len(found[role])} {role.value}" for role in found)
    troubled = [pod for pods in found.values() for pod in pods if pod.trouble is not None]
    trouble = f"; {tell_trouble(troubled)}" if troubled else ""
    if not all(ready.values()):
        reason = trouble_reason(troubled) if troubled else Reason.PODS_NOT_READY
        message = f"Ready pods of those found: {counts}; each attached role needs one that is ready{trouble}."
        return Verdict(kind, FALSE, reason, message)
    reason = trouble_reason(troubled) if troubled else Reason.PODS_READY
    return Verdict(kind, TRUE, reason, f"Ready pods of those found: {counts}{trouble}.")


def still_attached(status: PrefillPolicyStatus, pods: Sequence[PodView], now: float) -> PrefillPolicyStatus:
    """The status of a policy that attaches pods and is refused, with its pods counted anew."""
    found = {role.name: [pod for pod in pods if pod.role is role.name and not pod.terminating] for role in status.roles}
    wanted = {role: len(there) for role, there in found.items()}
    return recounted(status, pods, wanted, _count_attached(found, {}), now)


@dataclass(frozen=True, slots=True)
class Claim:
    """What one policy has of a namespace's pods.

    `created`: RFC 3339, so that texts order as times do. `pods`: by name, each pod that its selectors match, with the
    fleet that the operator made it for ("" if somebody else made it); empty for a policy that does not attach.
    `twice`: a pod that the selectors of two of its roles match.
    """

    policy: str
    created: str
    attaches: bool = False
    pods: Mapping[str, str] | None = None
    twice: str | None = None

    @property
    def age(self) -> tuple[str, str]:
        """Orders policies, the oldest first."""
        return self.created, self.policy

    @property
    def matched(self) -> Mapping[str, str]:
        """The pods that its selectors match."""
        return self.pods or {}


def find_overlap(mine: Claim, others: Sequence[Claim]) -> str | None:
    """Why a policy is refused for its pods, as a sentence with the other policy and the pod; None if it is not."""
    older = sorted((other for other in others if other.age < mine.age), key=lambda other: other.age)
    if not mine.attaches:
        return _made_and_matched(mine, older)
    if mine.twice is not None:
        return (
            f"Pod {mine.twice} is matched by the selectors of two roles in spec.attach: make them exclude each other."
        )
    younger = {other.policy for other in others if other.age > mine.age}
    return _made_by_the_operator(mine, younger) or _matched_twice(mine, older)


def _made_and_matched(mine: Claim, older: Sequence[Claim]) -> str | None:
    """A pod of the operator's making that an older policy attaches."""
    for other in older:
        for pod in sorted(pod for pod, fleet in other.matched.items() if fleet == mine.policy):
            return (
                f"Pod {pod} of this policy is matched by spec.attach of the older policy {other.policy} too: "
                f"narrow the podSelector of {other.policy}."
            )
    return None


def _made_by_the_operator(mine: Claim, younger: set[str]) -> str | None:
    """A matched pod that the operator made, unless for a younger policy, which is refused itself."""
    for pod, fleet in sorted(mine.matched.items()):
        if fleet and fleet not in younger:
            whose = "this policy" if fleet == mine.policy else f"policy {fleet}"
            return (
                f"Pod {pod} is matched by spec.attach, but the operator made it for {whose}: "
                "narrow the podSelector to pods that others make."
            )
    return None


def _matched_twice(mine: Claim, older: Sequence[Claim]) -> str | None:
    """A pod that an older policy attaches too."""
    for other in older:
        for pod in sorted(mine.matched.keys() & other.matched.keys()):
            return (
                f"Pod {pod} is matched by spec.attach of the older policy {other.policy} too, which keeps it: "
                "change one of the selectors so that no pod matches both."
            )
    return None


def hold_refusal(
    found: str | None, standing: Condition | None, generation: int, seen_at_s: float, now: float
) -> str | None:
    """Why a policy is refused for its pods, counting an overlap that has only just gone from under the same spec.

    `standing`: the condition Accepted. `generation`: the spec's. `seen_at_s`: when an overlap was last found, or since
    when this process looks for one.
    """
    if found is not None or standing is None:
        return found
    refused = standing.status is ConditionStatus.FALSE and standing.reason == Reason.PODS_OVERLAP
    held = refused and standing.observed_generation == generation and now - seen_at_s < OVERLAP_HOLD_S
    return standing.message if held else None
