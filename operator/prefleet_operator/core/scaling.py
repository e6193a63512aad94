"""What is said of the sizes of a fleet: conditions and events. Pure.

ScalingActive is True while the number of pods follows the load. It is Unknown while a signal is missing or stale, and
False while it is not known yet what a pod can do: then every number stays as it is. It is False, too, where another
controller has not brought a role to its number in `FOLLOWED_S`, and where an autoscaler that is not the operator's sets
the number of a sized role: of two hands on one number each undoes the other, so the operator takes its own off. Whoever
has an autoscaler set the replicas of a role that is not sized means it so, and Accepted tells of it. CapacityLimited is
True where the cluster has no room for the pods of a role that is to grow, or where one needs more than its bound or the
accelerators allow, whatever the tuner says of long waits. All rest on what the status tells of sizes, so they are as
steady as that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prefleet_operator.api import Actuator, ConditionType, PrefillPolicySpec, Role, RoleSizeStatus, SizingStatus
from prefleet_operator.core.deletion_cost import FOLLOWED_S
from prefleet_operator.core.events import Event
from prefleet_operator.core.ready import tell_trouble, trouble_reason
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.sizing.state import SizingState
from prefleet_operator.core.status import FALSE, TRUE, UNKNOWN, Facts, Verdict
from prefleet_operator.core.tuning import parse_time

_HOLDS = {
    Reason.METRICS_MISSING: UNKNOWN,
    Reason.METRICS_STALE: UNKNOWN,
    Reason.LEARNING_CAPACITY: FALSE,
    Reason.SCALED_BY_ANOTHER: FALSE,
}
"""Why a number does not follow the load, and what that makes of ScalingActive."""

_FOLLOWED_BY = {Actuator.HPA: "the HorizontalPodAutoscaler", Actuator.KEDA: "KEDA"}
_LOOK_AT = {Actuator.HPA: "hpa", Actuator.KEDA: "scaledobject"}


def judge_scaling(
    told: SizingStatus, spec: PrefillPolicySpec, now: float, before: SizingState | None = None
) -> Verdict:
    """ScalingActive: the numbers of all sized roles follow the load, and the pods the numbers. `spec`: with the
    replicas that there are; `before`: what this process knew in its last turn."""
    late = [size for size in told.roles if told.actuator in _FOLLOWED_BY and _is_late(size, spec, now, before)]
    if late:
        behind = ", ".join(f"{spec.roles()[each.name].replicas} of {each.desired} {each.name.value}" for each in late)
        return Verdict(
            ConditionType.SCALING_ACTIVE,
            FALSE,
            Reason.NOT_FOLLOWED,
            f"There are {behind} pods: {_FOLLOWED_BY[told.actuator]} has not followed in {FOLLOWED_S:.0f} seconds; "
            f"kubectl describe {_LOOK_AT[told.actuator]} says why.",
        )
    message = "; ".join(size.message.removesuffix(".") for size in told.roles)
    holding = [size for size in told.roles if size.reason in _HOLDS]
    leading = min(holding, key=lambda size: size.reason != Reason.SCALED_BY_ANOTHER, default=told.roles[0])
    reason = Reason(leading.reason)
    return Verdict(ConditionType.SCALING_ACTIVE, _HOLDS.get(reason, TRUE), reason, f"{message}.")


def _is_late(size: RoleSizeStatus, spec: PrefillPolicySpec, now: float, before: SizingState | None) -> bool:
    """Whether a number stands, and is not what there is, both for longer than it takes to be followed."""
    moved_s = None if size.moved_at is None else parse_time(size.moved_at)
    apart_s = 0.0 if before is None else before.apart.get(size.name, now)
    late = moved_s is not None and now - max(moved_s, apart_s) >= FOLLOWED_S
    return late and size.reason != Reason.SCALED_BY_ANOTHER and spec.roles()[size.name].replicas != size.desired


def tell_others(others: Mapping[Role, str], spec: PrefillPolicySpec) -> tuple[str, ...]:
    """A sentence for each role that is not sized and whose replicas an autoscaler that is not the operator's sets."""
    return tuple(
        f"{names} sets the replicas of {role.value}: spec.{role.value}.replicas counts again once nothing else does."
        for role, names in others.items()
        if role not in spec.sized_roles()
    )


def judge_room(told: SizingStatus, spec: PrefillPolicySpec) -> Verdict | None:
    """CapacityLimited where a role may not have what it needs; None where each may."""
    limited = next((size for size in told.roles if size.limited), None)
    if limited is None:
        return None
    reason, message = _tell_limit(limited, spec)
    return Verdict(ConditionType.CAPACITY_LIMITED, TRUE, reason, message)


def judge_growth(facts: Facts) -> Verdict | None:
    """CapacityLimited where the cluster has no room for what a sized role is to have beyond its minReplicas; else None.
    With fewer than those the fleet is not Ready, which says the same."""
    for role, bounds in facts.spec.sized_roles().items():
        ready, wanted = len(facts.ready_pods(role)), facts.spec.roles()[role].replicas
        cause = _why_no_room(facts, role) if bounds.min_replicas <= ready < wanted else None
        if cause is not None:
            reason, why = cause
            message = (
                f"{role.value} cannot grow from {ready} to {wanted} pods: {why}; "
                f"make room for them, or lower spec.autoscaling.{role.value}.maxReplicas."
            )
            return Verdict(ConditionType.CAPACITY_LIMITED, TRUE, reason, message)
    return None


def _why_no_room(facts: Facts, role: Role) -> tuple[Reason, str] | None:
    if role in facts.refused:
        return Reason.PODS_REFUSED, f"the cluster refuses to make more ({facts.refused[role].rstrip('.')})"
    troubled = [pod for pod in facts.found_pods(role) if pod.trouble is not None]
    homeless = [pod for pod in troubled if trouble_reason([pod]) is Reason.UNSCHEDULABLE]
    return (Reason.UNSCHEDULABLE, tell_trouble(homeless)) if homeless else None


def _tell_limit(size: RoleSizeStatus, spec: PrefillPolicySpec) -> tuple[Reason, str]:
    autoscaling, most = spec.autoscaling, spec.sized_roles()[size.name].max_replicas
    assert autoscaling is not None
    needed, role = round(size.numbers.get("needed", 0)), size.name.value
    if size.reason == Reason.QUOTA_EXHAUSTED:
        each = spec.roles()[size.name].accelerators
        return Reason.QUOTA_EXHAUSTED, (
            f"{role} needs {_pods(needed, most)} of {each} accelerators each and has {size.desired}, since "
            f"spec.autoscaling.maxAccelerators is {autoscaling.max_accelerators}: raise it, or lower the load."
        )
    # What the ratio or long waits ask for beyond the bound does not stand in the numbers.
    return Reason.AT_MAX_REPLICAS, (
        f"{role} needs {_pods(max(needed, most + 1), most)} and may have {most}: "
        f"raise spec.autoscaling.{role}.maxReplicas, or lower the load."
    )


def _pods(needed: int, most: int) -> str:
    """A search for the number of pods ends one beyond the most that there may be."""
    return f"more than {most} pods" if needed == most + 1 else f"{needed} pods"


def scale_events(before: SizingStatus | None, state: SizingState) -> Iterator[Event]:
    """One event for each role whose number is another than the status says, or than it was decided from."""
    known = {} if before is None else {size.name: size.desired for size in before.roles}
    follower = _FOLLOWED_BY.get(state.actuator)
    asked = f" (asked of {follower})" if follower else ""
    for role, size in state.sizes.items():
        if size.desired not in (known.get(role), state.before[role]):
            yield Event(Reason.SCALED, f"{role.value} {state.before[role]} -> {size.desired}{asked}: {size.message}")
