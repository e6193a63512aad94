"""What the operator answers: `PrefillPolicyStatus`, bounded and complete.

It carries what must be remembered between two starts of the operator (the tuner's part, versioned) as well as
what people read. Times are RFC 3339 in UTC. One that is none makes a status unreadable, and so lost: anybody may
write a status, and what decides on times must not fail over them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field

from prefleet_operator.api.autoscaling import Actuator
from prefleet_operator.api.base import Model
from prefleet_operator.api.engine_types import SchedulingPolicy
from prefleet_operator.api.roles import Role


def _map_by(key: str) -> Any:
    """A list whose items the API server tells apart by `key`."""
    return Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]},
    )


def _checked_time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f'"{text}" has no time zone')
    return text


Time = Annotated[str, AfterValidator(_checked_time)]


class ConditionStatus(StrEnum):
    """The three values of a Kubernetes condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(StrEnum):
    """What the operator says of a fleet."""

    ACCEPTED = "Accepted"
    READY = "Ready"
    POLICY_ACTIVE = "PolicyActive"
    METRICS_AVAILABLE = "MetricsAvailable"
    TUNED = "Tuned"
    SCALING_ACTIVE = "ScalingActive"
    CAPACITY_LIMITED = "CapacityLimited"
    DEGRADED = "Degraded"


class Condition(Model):
    """A Kubernetes condition; `last_transition_time` changes only with `status`."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str
    last_transition_time: Time
    observed_generation: int


class EffectiveStatus(Model):
    """What runs now: the content of the live ConfigMap."""

    policy: SchedulingPolicy
    threshold: int | None = None
    long_max_wait: str | None = None
    generation: int


class RoleStatus(Model):
    """The pods of one role: wanted, ready, and ready with the effective generation reported."""

    name: Role
    desired: int
    ready: int
    active: int
    reported_generation: int | None = None


class PodColumns(Model):
    """Ready of desired pods, as `kubectl get` shows them in its columns Prefill and Decode."""

    prefill: str
    decode: str

    @classmethod
    def of(cls, roles: Iterable[RoleStatus]) -> Self:
        """ "2/3" for each role. The pods of a mixed fleet prefill and decode: they count once, under
        Prefill. Attached prefill pods may stand without decode pods."""
        counts = {role.name: f"{role.ready}/{role.desired}" for role in roles}
        if Role.MIXED in counts:
            return cls(prefill=counts[Role.MIXED], decode="mixed")
        return cls(prefill=counts.get(Role.PREFILL, "0/0"), decode=counts.get(Role.DECODE, "none"))


class TunedValue(Model):
    """One tuned value with its evidence. `value`: tokens of the threshold, or seconds of the wait limit."""

    value: float | None = None
    reason: str
    message: str
    moved_at: Time | None = None


class BandStatus(Model):
    """The band of prompt lengths, in tokens."""

    low: int
    high: int
    samples: int


class TuningStatus(Model):
    """What the tuner knows and what it remembers. `state_version` guards the remembered part."""

    state_version: int = 1
    band: BandStatus | None = None
    valley: int | None = None
    threshold: TunedValue | None = None
    long_max_wait: TunedValue | None = None
    policy: SchedulingPolicy | None = None


class RoleSizeStatus(Model):
    """How many pods one role is to have, why, and the numbers that decided.

    `estimate`: a formula stood for a replay, or lengths for work. `limited`: the role needs more than it may have.
    `moved_at`: when `desired` last changed.
    """

    name: Role
    desired: int
    reason: str
    message: str
    estimate: bool = False
    limited: bool = False
    numbers: dict[str, float] = {}
    moved_at: Time | None = None


class SizingStatus(Model):
    """What was decided on the number of pods, and what is remembered for the next decision.

    `state_version` guards `memory`, which only the operator reads.
    """

    state_version: int = 1
    actuator: Actuator
    roles: Annotated[list[RoleSizeStatus], _map_by("name")] = []
    memory: dict[str, Any] = {}


class Move(Model):
    """One past move of the effective policy."""

    at: Time
    generation: int
    policy: SchedulingPolicy
    threshold: int | None = None
    long_max_wait: str | None = None
    reason: str
    message: str


class PrefillPolicyStatus(Model):
    """What the operator answers. `reason`: that of the first condition that is not as it should be, else Ready's."""

    observed_generation: int | None = None
    reason: str | None = None
    conditions: Annotated[list[Condition], _map_by("type")] = []
    effective: EffectiveStatus | None = None
    roles: Annotated[list[RoleStatus], _map_by("name")] = []
    pods: PodColumns | None = None
    tuning: TuningStatus | None = None
    autoscaling: SizingStatus | None = None
    history: Annotated[list[Move], Field(max_length=10)] = []
