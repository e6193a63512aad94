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
    """A Kubernetes condition."""

    type: ConditionType
    """What it tells of."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: str
    """Why, in one word."""
    message: str
    """Why, in a sentence with the numbers that decided and what to do."""
    last_transition_time: Time
    """When the status last changed, RFC 3339 in UTC."""
    observed_generation: int
    """The metadata.generation of the spec that it was judged by."""


class EffectiveStatus(Model):
    """What runs now: the content of the live ConfigMap."""

    policy: SchedulingPolicy
    """The queue policy that runs; FCFS until a threshold is known."""
    threshold: int | None = None
    """Tokens of the longest short request; absent under policies that have none."""
    long_max_wait: str | None = None
    """How long a long request waits before it may overtake short ones, a duration; 0s: it never does."""
    generation: int
    """The number of this setting; it rises with each change, and pods report the one that they run."""


class RoleStatus(Model):
    """The pods of one role: wanted, ready, and ready with the effective generation reported."""

    name: Role
    """prefill, decode or mixed."""
    desired: int
    """Pods wanted, or groups where nodesPerReplica is above 1; of attached pods those that were found."""
    ready: int
    """Of them those that are ready."""
    active: int
    """Of the ready ones those that report the effective generation."""
    reported_generation: int | None = None
    """The least generation that a ready pod reports; absent where none does."""


class PodColumns(Model):
    """Ready of desired pods, as `kubectl get` shows them in its columns Prefill and Decode."""

    prefill: str
    """Ready/desired pods that prefill."""
    decode: str
    """Ready/desired pods that decode; mixed: the same pods do both; none: there are none."""

    @classmethod
    def of(cls, roles: Iterable[RoleStatus]) -> Self:
        """ "2/3" for each role. The pods of a mixed fleet prefill and decode: they count once, under
        Prefill. Attached prefill pods may stand without decode pods."""
        counts = {role.name: f"{role.ready}/{role.desired}" for role in roles}
        if Role.MIXED in counts:
            return cls(prefill=counts[Role.MIXED], decode="mixed")
        return cls(prefill=counts.get(Role.PREFILL, "0/0"), decode=counts.get(Role.DECODE, "none"))


class TunedValue(Model):
    """One tuned value with its evidence."""

    value: float | None = None
    """Tokens of the threshold, or seconds of the wait limit."""
    reason: str
    """Why it is what it is, in one word."""
    message: str
    """The evidence: the numbers that decided, in a sentence."""
    moved_at: Time | None = None
    """When it last moved, RFC 3339 in UTC."""


class BandStatus(Model):
    """The band of prompt lengths, in tokens."""

    low: int
    """Prompt tokens at the band's lower percentile."""
    high: int
    """Prompt tokens at the band's upper percentile."""
    samples: int
    """Requests that these were read from."""


class TuningStatus(Model):
    """What the tuner knows and what it remembers."""

    state_version: int = 1
    """The form of what is remembered here, for the operator's next start."""
    band: BandStatus | None = None
    """Where the band of tuning.band lies in what was last measured."""
    valley: int | None = None
    """Prompt tokens between two kinds of requests, where lengths show two kinds."""
    threshold: TunedValue | None = None
    """The threshold, in tokens, with its evidence."""
    long_max_wait: TunedValue | None = None
    """The wait limit, in seconds, with its evidence."""
    policy: SchedulingPolicy | None = None
    """The queue policy that the tuner has settled on."""


class RoleSizeStatus(Model):
    """How many pods one role is to have, why, and the numbers that decided."""

    name: Role
    """prefill, decode or mixed."""
    desired: int
    """Pods that it is to have, or groups where nodesPerReplica is above 1."""
    reason: str
    """What decided, in one word."""
    message: str
    """What decided, in a sentence with its numbers."""
    estimate: bool = False
    """Whether a formula stood for a replay, or lengths for work."""
    limited: bool = False
    """Whether the role needs more than it may have."""
    numbers: dict[str, float] = {}
    """The numbers that decided, by name."""
    moved_at: Time | None = None
    """When desired last changed, RFC 3339 in UTC."""


class SizingStatus(Model):
    """What was decided on the number of pods, and what is remembered for the next decision."""

    state_version: int = 1
    """The form of memory, for the operator's next start."""
    actuator: Actuator
    """Who sets the number of pods."""
    roles: Annotated[list[RoleSizeStatus], _map_by("name")] = []
    """Each role that is sized."""
    memory: dict[str, Any] = {}
    """The operator's own, for its next decision; nothing to read or to write."""


class Move(Model):
    """One past move of the effective policy."""

    at: Time
    """When, RFC 3339 in UTC."""
    generation: int
    """The generation that it led to."""
    policy: SchedulingPolicy
    """The queue policy from then on."""
    threshold: int | None = None
    """Tokens of the longest short request from then on."""
    long_max_wait: str | None = None
    """How long a long request waited from then on before it might overtake short ones, a duration."""
    reason: str
    """Why, in one word."""
    message: str
    """Why, in a sentence with the numbers that decided."""


class PrefillPolicyStatus(Model):
    """What the operator answers."""

    observed_generation: int | None = None
    """The metadata.generation of the spec that the operator has last looked at."""
    reason: str | None = None
    """The reason of the first condition that is not as it should be, else Ready's: the column REASON."""
    conditions: Annotated[list[Condition], _map_by("type")] = []
    """What holds of the fleet, each with its reason."""
    effective: EffectiveStatus | None = None
    """What runs now: the content of the live ConfigMap."""
    roles: Annotated[list[RoleStatus], _map_by("name")] = []
    """The pods of each role."""
    pods: PodColumns | None = None
    """Ready of desired pods, as kubectl get shows them in its columns PREFILL and DECODE."""
    tuning: TuningStatus | None = None
    """What the tuner knows and what it remembers."""
    autoscaling: SizingStatus | None = None
    """How many pods the roles are to have and why; absent without spec.autoscaling."""
    history: Annotated[list[Move], Field(max_length=10)] = []
    """The last ten moves of the effective policy."""
