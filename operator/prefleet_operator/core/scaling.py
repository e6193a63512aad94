"""What is said of the sizes of a fleet: conditions and events. Pure.

ScalingActive is True while the number of pods follows the load. It is Unknown while a signal is missing or stale, and
False while it is not known yet what a pod can do: then every number stays as it is. CapacityLimited is True where a
role needs more than its bound or the accelerators allow, whatever the tuner says of long waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prefleet_operator.api import Actuator, ConditionType, PrefillPolicySpec, Role, SizingStatus
from prefleet_operator.core.events import Event
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.sizing.state import SizingState
from prefleet_operator.core.sizing.values import RoleSize
from prefleet_operator.core.status import FALSE, TRUE, UNKNOWN, Verdict

_HOLDS = {
    Reason.METRICS_MISSING: UNKNOWN,
    Reason.METRICS_STALE: UNKNOWN,
    Reason.LEARNING_CAPACITY: FALSE,
}
"""Why a number stays as it is for want of knowledge, and what that makes of ScalingActive."""

_FOLLOWED_BY = {Actuator.HPA: "the HorizontalPodAutoscaler", Actuator.KEDA: "KEDA"}


def judge_scaling(sizes: Mapping[Role, RoleSize], noisy: bool) -> Verdict:
    """ScalingActive: the numbers of all sized roles follow the load. `noisy`: nothing that matters has changed."""
    told = "; ".join(size.message.removesuffix(".") for size in sizes.values())
    held = next((size for size in sizes.values() if size.reason in _HOLDS), None)
    status = TRUE if held is None else _HOLDS[held.reason]
    leading = held or next(iter(sizes.values()))
    return Verdict(ConditionType.SCALING_ACTIVE, status, leading.reason, f"{told}.", noisy)


def judge_room(sizes: Mapping[Role, RoleSize], spec: PrefillPolicySpec, noisy: bool) -> Verdict | None:
    """CapacityLimited where a role may not have what it needs; None where each may."""
    limited = next((size for size in sizes.values() if size.limited), None)
    if limited is None:
        return None
    reason, message = _tell_limit(limited, spec)
    return Verdict(ConditionType.CAPACITY_LIMITED, TRUE, reason, message, noisy)


def _tell_limit(size: RoleSize, spec: PrefillPolicySpec) -> tuple[Reason, str]:
    autoscaling, most = spec.autoscaling, spec.sized_roles()[size.role].max_replicas
    assert autoscaling is not None
    needed = round(size.numbers.get("needed", 0))
    if size.reason is Reason.QUOTA_EXHAUSTED:
        each = spec.roles()[size.role].accelerators
        return size.reason, (
            f"{size.role.value} needs {_pods(needed, most)} of {each} accelerators each and has {size.desired}, since "
            f"spec.autoscaling.maxAccelerators is {autoscaling.max_accelerators}: raise it, or lower the load."
        )
    return Reason.AT_MAX_REPLICAS, (
        f"{size.role.value} needs {_pods(needed, most)} and may have {most}: "
        f"raise spec.autoscaling.{size.role.value}.maxReplicas, or lower the load."
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
