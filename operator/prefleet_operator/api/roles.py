"""The pods of one role: `spec.prefill`, `spec.decode` and `spec.mixed`, and the profile that all of them keep."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from prefleet_operator.api.arguments import (
    NO_DATA_PARALLEL,
    NO_NATIVE_OPERATOR_ARGUMENTS,
    NO_NODE_ARGUMENTS,
    NO_OPERATOR_ARGUMENTS,
    NO_OPERATOR_ENV,
    NO_RUNTIME_SETTINGS,
)
from prefleet_operator.api.base import (
    DNS_NAME,
    SHORT_NAME_PATTERN,
    CountOrPercent,
    Model,
    Text,
    matching,
)
from prefleet_operator.api.rule import Rule


class SecurityProfile(StrEnum):
    """Pod Security's profiles, as far as pods are made to keep them."""

    BASELINE = "Baseline"
    RESTRICTED = "Restricted"


class Role(StrEnum):
    """What a pod does."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class SecuritySpec(Model):
    """Under which rights the pods run."""

    profile: SecurityProfile = SecurityProfile.BASELINE
    """Baseline: engines run as the user of their image, commonly root. Restricted: as a user without a name (2000),
    with a home of their own, for namespaces that enforce Pod Security's restricted profile."""


class Accelerator(Model):
    """What one pod asks of its node."""

    resource: Annotated[
        Text,
        matching(
            f"^{DNS_NAME}/{SHORT_NAME_PATTERN}$",
            "write the name that nodes offer it under, such as nvidia.com/gpu",
        ),
    ]
    """The name that nodes offer it under, such as nvidia.com/gpu."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """How many of them each pod gets."""


class EnvVar(Model):
    """One environment variable with a plain value; others go through podTemplate."""

    name: Annotated[
        Text,
        matching("^[A-Za-z_][A-Za-z0-9_]*$", "write letters, digits and _, not beginning with a digit"),
    ]
    """The variable's name."""
    value: Annotated[str, Field(max_length=4096)] = ""
    """Its value, as text: numbers, true and false in quotes."""


def _named_once(variables: list[EnvVar]) -> list[EnvVar]:
    """What the API server does of itself with a list that is a map."""
    if len({variable.name for variable in variables}) < len(variables):
        raise ValueError("name each variable once")
    return variables


class RolloutSpec(Model):
    """How many replicas are replaced at once when their pods change."""

    max_surge: CountOrPercent
    """How many more than replicas there may be meanwhile, as a number or a share such as 25%; each needs accelerators
    of its own."""
    max_unavailable: CountOrPercent
    """How many fewer than replicas may serve meanwhile, as a number or a share such as 25%."""

    RULES: ClassVar = (
        Rule(
            "![self.maxSurge, self.maxUnavailable].all(each, string(each) in ['0', '0%'])",
            "write 1 or more for maxSurge or for maxUnavailable: with both at 0 nothing could be replaced",
            lambda rollout: not {str(rollout.max_surge), str(rollout.max_unavailable)} <= {"0", "0%"},
        ),
    )


class RoleSpec(Model):
    """The pods of one role."""

    replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Pods of this role, or groups where nodesPerReplica is above 1; with autoscaling of the role, where it starts."""
    accelerator: Accelerator | None = None
    """What each pod asks of its node; left out for fleets without accelerators."""
    nodes_per_replica: Annotated[int, Field(ge=1, le=64)] = 1
    """Pods that serve one model together, each on its share of the accelerators. Above 1 a replica is a group of a
    LeaderWorkerSet, which must be installed; --tensor-parallel-size and its kin in args count the whole group."""
    args: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=100)] = []
    """Arguments of the engine, beside those that the operator writes. MindIE has none: each of its args is a JSON
    object, which is merged into its config.json."""
    env: Annotated[
        list[EnvVar],
        AfterValidator(_named_once),
        Field(
            max_length=100,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = []
    """Environment of the engine."""
    pod_template: dict[str, Any] | None = None
    """Laid over the rendered pod as a strategic merge: {metadata: {...}, spec: {...}}. The engine's container
    is named engine."""
    rollout: RolloutSpec | None = None
    """How pods are replaced when they change. If left out: one by one without surge where they ask for accelerators,
    since a spare one is rarely there; else by a surge of one."""

    RULES: ClassVar = (
        NO_OPERATOR_ARGUMENTS,
        NO_NATIVE_OPERATOR_ARGUMENTS,
        NO_DATA_PARALLEL,
        NO_NODE_ARGUMENTS,
        NO_RUNTIME_SETTINGS,
        NO_OPERATOR_ENV,
    )

    @property
    def accelerators(self) -> int:
        """What one replica asks for, all its nodes together; 0 without accelerators."""
        return 0 if self.accelerator is None else self.accelerator.count * self.nodes_per_replica
