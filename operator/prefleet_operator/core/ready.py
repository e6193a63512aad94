"""Ready: whether a fleet has the pods that it is to have, counted by role, and a router before them. Pure.

What the cluster or a pod itself says of the fault comes first, and names the reason. Pods of a fleet whose spec is
refused are counted too: what runs keeps running.

Left out: pods that somebody else makes (`attached`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from prefleet_operator.api import ConditionStatus, ConditionType, PrefillPolicyStatus, Role, RouterType
from prefleet_operator.core.observed import PodView, RouterView
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.status import FALSE, TRUE, Facts, Verdict, recounted


def judge_ready(facts: Facts) -> Verdict:
    """Ready: every role, and the router if there is one, has the ready pods that the spec asks for.

    A role that is sized is ready with its minReplicas: that it grows is no fault, however long its pods load, and that
    it cannot is CapacityLimited (`scaling`). With fewer it is not, whoever has scaled it below them; a
    HorizontalPodAutoscaler leaves one that was scaled to 0 there.
    """
    least = {role: bounds.min_replicas for role, bounds in facts.spec.sized_roles().items()}
    wanted = {role: max(spec.replicas, least.get(role, 0)) for role, spec in facts.spec.roles().items()}
    ready = count_ready(wanted, facts.pods, facts.stuck, facts.refused, least)
    if ready.status is not TRUE or facts.spec.router.type is RouterType.NONE:
        return ready
    router = replace(facts.router or RouterView(), wanted=facts.spec.router.replicas)
    return _count_router(router, wanted, ready)


def count_ready(
    wanted: Mapping[Role, int],
    pods: Sequence[PodView],
    stuck: Mapping[Role, str],
    denied: Mapping[Role, str],
    least: Mapping[Role, int] | None = None,
) -> Verdict:
    """Ready, for so many wanted pods by role. What the cluster or a pod itself says of the fault comes first. `least`:
    by role, how many do while others start."""
    there = [pod for pod in pods if pod.role in wanted and not pod.terminating]
    ready = {role: min(sum(pod.ready and pod.role is role for pod in there), wanted[role]) for role in wanted}
    missing = [role for role in wanted if ready[role] < wanted[role]]
    if not sum(wanted.values()):
        message = "The spec asks for 0 pods, so nothing is served: set replicas to 1 or more to serve."
        return _ready(FALSE, Reason.NO_PODS_WANTED, message)
    counts = "Ready pods: " + ", ".join(f"{ready[role]} of {wanted[role]} {role.value}" for role in missing)
    parts = "All pods are ready: " + ", ".join(f"{ready[role]} {role.value}" for role in wanted)
    troubled = [pod for pod in there if pod.trouble is not None]
    held = next((role for role in wanted if role in stuck), None)
    without = next((role for role in missing if role in denied), None)
    if missing and held is None and all(ready[role] >= (least or {}).get(role, wanted[role]) for role in missing):
        return _tell_growth(counts, None if without is None else denied[without], troubled)
    if without is not None:
        message = f"{counts}; the cluster refuses to make more: {denied[without].rstrip('.')}."
        return _ready(FALSE, Reason.PODS_REFUSED, message)
    if missing and troubled:
        return _ready(FALSE, trouble_reason(troubled), f"{counts}; {tell_trouble(troubled)}.")
    if held is not None:
        message = (
            f"The rollout of {held.value} makes no progress ({stuck[held].rstrip('.')}); "
            f"{ready[held]} of {wanted[held]} pods serve: look at the events and logs of those that are not ready."
        )
        return _ready(FALSE, Reason.ROLLOUT_STUCK, message)
    if missing:
        return _ready(FALSE, Reason.PODS_NOT_READY, f"{counts}; a pod is ready once its engine has loaded its model.")
    if troubled:
        message = f"{parts}; but none takes the place of an old one: {tell_trouble(troubled)}."
        return _ready(TRUE, trouble_reason(troubled), message)
    return _ready(TRUE, Reason.PODS_READY, f"{parts}.")


def _tell_growth(counts: str, refusal: str | None, troubled: Sequence[PodView]) -> Verdict:
    """Ready, with enough pods and fewer than the load asks for. That there is no room for more is told by
    CapacityLimited as the fault that it is; what ails a pod itself is told here."""
    enough, reason = f"{counts}, which is minReplicas or more", Reason.SCALING
    if refusal is not None:
        return _ready(TRUE, reason, f"{enough}; the cluster refuses to make more: {refusal.rstrip('.')}.")
    if not troubled:
        return _ready(TRUE, reason, f"{enough}; the others start.")
    cause = trouble_reason(troubled)
    return _ready(TRUE, reason if cause is Reason.UNSCHEDULABLE else cause, f"{enough}; {tell_trouble(troubled)}.")


def _ready(status: ConditionStatus, reason: Reason, message: str) -> Verdict:
    return Verdict(ConditionType.READY, status, reason, message)


def trouble_reason(troubled: Sequence[PodView]) -> Reason:
    """The reason of the first of the pods, which is in trouble."""
    trouble = troubled[0].trouble
    assert trouble is not None
    return trouble.reason


def tell_trouble(troubled: Sequence[PodView]) -> str:
    """What ails the first of the pods, and how many others are in trouble too."""
    first, more = troubled[0], len(troubled) - 1
    told = f"pod {first.name}: {first.trouble.told if first.trouble else ''}"
    return told if not more else f"{told} (and {more} more {'pod' if more == 1 else 'pods'} in trouble)"


def _count_router(router: RouterView, behind: Mapping[Role, int], ready: Verdict) -> Verdict:
    """The pods of all roles are ready; so must those be through which clients reach them.

    What the cluster or a pod itself says of the fault comes first, as for the pods of roles, and names the reason.
    """
    serving = ", ".join(f"{replicas} {role.value}" for role, replicas in behind.items())
    if router.ready < router.wanted:
        reason, why = _why_no_router(router)
        message = (
            f"The router has {router.ready} of {router.wanted} pods ready{why}, "
            f"though {serving} pods serve behind it: look at the events and logs of the router's pods."
        )
        return _ready(FALSE, reason, message)
    if router.stuck:
        message = (
            f"The rollout of the router makes no progress ({router.stuck.rstrip('.')}); "
            f"{router.ready} of {router.wanted} pods serve: look at the events and logs of those that are not ready."
        )
        return _ready(FALSE, Reason.ROLLOUT_STUCK, message)
    if ready.reason is not Reason.PODS_READY:
        return ready
    told = f"All pods are ready: {serving}, {router.wanted} router"
    if router.trouble:
        message = f"{told}; but no new router takes the place of an old one: {router.trouble.told}."
        return _ready(TRUE, router.trouble.reason, message)
    return replace(ready, message=f"{told}.")


def _why_no_router(router: RouterView) -> tuple[Reason, str]:
    if router.refused:
        return Reason.PODS_REFUSED, f"; the cluster refuses to make more ({router.refused.rstrip('.')})"
    if router.trouble:
        return router.trouble.reason, f" ({router.trouble.told})"
    if router.stuck:
        return Reason.ROLLOUT_STUCK, f" and its rollout makes no progress ({router.stuck.rstrip('.')})"
    return Reason.ROUTER_NOT_READY, ""


def still_ready(
    status: PrefillPolicyStatus,
    pods: Sequence[PodView],
    stuck: Mapping[Role, str],
    denied: Mapping[Role, str],
    now: float,
    router: RouterView | None = None,
) -> PrefillPolicyStatus:
    """The status of a fleet whose present spec is not carried out, with its pods counted anew.

    They are held against what the last spec that was accepted asked for.
    """
    wanted = {role.name: role.desired for role in status.roles}
    verdict = count_ready(wanted, pods, stuck, denied)
    if verdict.status is TRUE and router is not None:
        verdict = _count_router(router, wanted, verdict)
    return recounted(status, pods, wanted, verdict, now)
