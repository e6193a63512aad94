"""`spec.autoscaling`: how many pods each role may have, and who sets the number.

The operator decides a number for each role that is named here, within its bounds; a role that is not named keeps the
replicas of the spec. `replicas` of a named role says where the fleet starts; from then on the live count counts, and
it stays as it is when the actuator changes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pydantic import Field

from prefleet_operator.api.base import POD_SCRAPE, DurationText, Model, duration_between, parse_duration
from prefleet_operator.api.engine_types import CAPABILITIES, EngineType
from prefleet_operator.api.roles import Role
from prefleet_operator.api.rule import Rule

if TYPE_CHECKING:
    from prefleet_operator.api.spec import PrefillPolicySpec


class Actuator(StrEnum):
    """Who sets the number of pods that the operator decided."""

    DIRECT = "Direct"
    HPA = "HPA"
    KEDA = "KEDA"


class RoleBounds(Model):
    """The least and the most replicas of one role."""

    min_replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """The least replicas (groups where nodesPerReplica is above 1)."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)]
    """The most replicas (groups where nodesPerReplica is above 1)."""

    RULES: ClassVar = (
        Rule(
            "self.minReplicas <= self.maxReplicas",
            "write a minReplicas of at most maxReplicas, such as minReplicas: 1 and maxReplicas: 8",
            lambda bounds: bounds.min_replicas <= bounds.max_replicas,
        ),
    )

    def clamped(self, count: int) -> int:
        """The nearest count within the bounds."""
        return min(max(count, self.min_replicas), self.max_replicas)


_Ratio = Annotated[float, Field(gt=0, le=1000)]


class RatioBounds(Model):
    """The least and the most prefill pods for each decode pod."""

    min: _Ratio
    """The least prefill pods for each decode pod."""
    max: _Ratio
    """The most prefill pods for each decode pod."""

    RULES: ClassVar = (
        Rule(
            "self.min <= self.max",
            "write a min of at most max, such as min: 0.5 and max: 4",
            lambda ratio: ratio.min <= ratio.max,
        ),
    )


def _can_keep_ratio(autoscaling: AutoscalingSpec) -> bool:
    ratio, prefill, decode = autoscaling.ratio, autoscaling.prefill, autoscaling.decode
    if ratio is None or prefill is None or decode is None:
        return True
    enough = prefill.max_replicas >= ratio.min * decode.min_replicas
    return enough and prefill.min_replicas <= ratio.max * decode.max_replicas


class AutoscalingSpec(Model):
    """A number of pods for each role named here, as its load asks for."""

    actuator: Actuator = Actuator.DIRECT
    """Direct: the operator sets the number itself. HPA: a HorizontalPodAutoscaler does, which needs an adapter that
    serves the operator's metric prefleet_desired_replicas as an external one. KEDA: a ScaledObject does, which needs
    KEDA and a metricsSource of type Prometheus."""
    prefill: RoleBounds | None = None
    decode: RoleBounds | None = None
    mixed: RoleBounds | None = None
    ratio: RatioBounds | None = None
    """Prefill pods for each decode pod; needs prefill and decode above."""
    max_accelerators: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Accelerators that the whole fleet may ask for, all nodes of a replica counted."""
    drain_time: Annotated[DurationText, duration_between("1s", "24h", "2m")] = "2m"
    """Time in which a backlog is to be worked off."""
    down_window: Annotated[DurationText, duration_between("10s", "24h", "5m")] = "5m"
    """A role shrinks only to what was needed at most in this time."""

    RULES: ClassVar = (
        Rule(
            "has(self.prefill) || has(self.decode) || has(self.mixed)",
            "write the bounds of a role, such as prefill: {minReplicas: 1, maxReplicas: 8}",
            lambda autoscaling: bool(autoscaling.bounds()),
        ),
        Rule(
            "!has(self.ratio) || (has(self.prefill) && has(self.decode))",
            "ratio: write prefill and decode beside it, or remove it: it moves both",
            lambda autoscaling: autoscaling.ratio is None or {Role.PREFILL, Role.DECODE} <= set(autoscaling.bounds()),
        ),
        Rule(
            "!has(self.ratio) || !has(self.prefill) || !has(self.decode)"
            " || (double(self.prefill.maxReplicas) >= self.ratio.min * double(self.decode.minReplicas)"
            " && double(self.prefill.minReplicas) <= self.ratio.max * double(self.decode.maxReplicas))",
            "ratio: widen it, or the bounds of prefill and decode: no numbers within those bounds keep it",
            _can_keep_ratio,
        ),
    )

    def bounds(self) -> dict[Role, RoleBounds]:
        """The roles that are sized, in the order prefill, decode, mixed."""
        given = {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.MIXED: self.mixed}
        return {role: bounds for role, bounds in given.items() if bounds is not None}

    @property
    def drain_s(self) -> float:
        """Seconds after which a backlog is gone."""
        return parse_duration(self.drain_time)

    @property
    def down_window_s(self) -> float:
        """Seconds that a role must have needed no more before it shrinks."""
        return parse_duration(self.down_window)


def _names_its_roles(spec: PrefillPolicySpec) -> bool:
    return spec.autoscaling is None or spec.attach is not None or set(spec.autoscaling.bounds()) <= set(spec.roles())


_NAMES_ITS_ROLES: Final = " && ".join(
    f"(!has(self.autoscaling.{role}) || has(self.{role}))" for role in (Role.PREFILL, Role.DECODE, Role.MIXED)
)


def _asks_prometheus(spec: PrefillPolicySpec) -> bool:
    return (
        spec.autoscaling is None or spec.autoscaling.actuator is not Actuator.KEDA or spec.metrics_source != POD_SCRAPE
    )


def _least_accelerators(spec: PrefillPolicySpec) -> int:
    """What the fleet asks for at its smallest."""
    sized = spec.sized_roles()
    return sum(
        given.accelerators * (sized[role].min_replicas if role in sized else given.replicas)
        for role, given in spec.roles().items()
    )


_LEAST_ACCELERATORS: Final = " + ".join(
    f"(has(self.{role}) && has(self.{role}.accelerator) ? self.{role}.accelerator.count * self.{role}.nodesPerReplica"
    f" * (has(self.autoscaling.{role}) ? self.autoscaling.{role}.minReplicas : self.{role}.replicas) : 0)"
    for role in Role
)


def _counts_accelerators(spec: PrefillPolicySpec) -> bool:
    limited = spec.autoscaling is not None and spec.autoscaling.max_accelerators is not None
    return not limited or any(role.accelerators for role in spec.roles().values())


_ASKS_ACCELERATORS: Final = " || ".join(f"(has(self.{role}) && has(self.{role}.accelerator))" for role in Role)


def _has_accelerators(spec: PrefillPolicySpec) -> bool:
    most = None if spec.autoscaling is None else spec.autoscaling.max_accelerators
    return most is None or _least_accelerators(spec) <= most


def _can_be_sized(kind: EngineType) -> Rule:
    return Rule(
        f"!has(self.autoscaling) || self.engine.type != '{kind}'",
        f"autoscaling: remove it: {kind} tells neither how many sequences run nor how full its KV cache is, which pods "
        "are sized by",
        lambda spec: spec.autoscaling is None or spec.engine.type is not kind,
    )


AUTOSCALING_RULES: Final = (
    Rule(
        f"!has(self.autoscaling) || has(self.attach) || ({_NAMES_ITS_ROLES})",
        "autoscaling: name only roles that the fleet has: prefill and decode, or mixed",
        _names_its_roles,
    ),
    Rule(
        "!has(self.autoscaling) || !has(self.attach)",
        "autoscaling: remove it: how many attached pods there are is for those to say who make them",
        lambda spec: spec.autoscaling is None or spec.attach is None,
    ),
    Rule(
        f"!has(self.autoscaling) || self.autoscaling.actuator != 'KEDA' || self.metricsSource != '{POD_SCRAPE}'",
        "metricsSource: name a source of type Prometheus, or write autoscaling.actuator HPA or Direct: KEDA asks "
        f"Prometheus itself, and {POD_SCRAPE} has no address",
        _asks_prometheus,
    ),
    Rule(
        f"!has(self.autoscaling) || !has(self.autoscaling.maxAccelerators) || {_ASKS_ACCELERATORS}",
        "autoscaling.maxAccelerators: remove it, or say what a pod asks for, such as prefill.accelerator: "
        "{resource: nvidia.com/gpu}: no role asks for accelerators, so it would limit nothing",
        _counts_accelerators,
    ),
    Rule(
        "!has(self.autoscaling) || !has(self.autoscaling.maxAccelerators)"
        f" || {_LEAST_ACCELERATORS} <= self.autoscaling.maxAccelerators",
        "autoscaling.maxAccelerators: raise it, or lower minReplicas (or replicas of a role that is not sized): at its "
        "smallest the fleet asks for more",
        _has_accelerators,
    ),
    *(_can_be_sized(kind) for kind in EngineType if not CAPABILITIES[kind].sizes),
)
"""Of the whole spec."""
