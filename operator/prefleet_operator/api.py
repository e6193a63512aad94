"""PrefillPolicy: the one source of the custom resource definition, of its parsing and of its status.

`PrefillPolicySpec` is what a user writes, `PrefillPolicyStatus` is what the operator answers. The CRD under
`crds/` is generated from these models (`prefleet crd`); the rules that pydantic cannot put in a structural
schema stand beside the models as CEL rules (`CEL_RULES`), and the same sentences are raised here, so that a
laptop and an API server refuse the same specs with the same words.

Durations are strings ("500ms", "8s", "15m"); they are parsed to seconds here and nowhere else.
`threshold` and `longMaxWait` have no default: a value given is pinned, a value left out is tuned.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

GROUP = "prefleet.dev"
VERSION = "v1alpha1"
KIND = "PrefillPolicy"
PLURAL = "prefillpolicies"
SHORT_NAME = "pp"

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds of a duration such as "1m30s". Raises ValueError with the fix if it is not one."""
    if not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(f'"{text}" is not a duration: write a number with a unit (ms, s, m, h), such as "500ms" or "8s"')
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION_PART.findall(text))


def format_duration(seconds: float) -> str:
    """The shortest exact duration string: whole milliseconds below ten seconds, else a tenth of a second."""
    if seconds < 10:
        milliseconds = round(seconds * 1000)
        return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"
    return f"{seconds:.1f}".rstrip("0").rstrip(".") + "s"


Duration = Annotated[str, Field(pattern=DURATION_PATTERN)]


class Model(BaseModel):
    """Base of every part of the resource: camelCase outside, frozen, unknown fields refused."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, frozen=True, extra="forbid")

    def to_resource(self) -> dict[str, Any]:
        """The value as it stands in the resource: camelCase, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class EngineType(StrEnum):
    """Engines that this release can run."""

    VLLM = "VLLM"
    SIMULATOR = "Simulator"


class SchedulingPolicy(StrEnum):
    """Queue policies, as users name them."""

    SHORT_REQUEST_FIRST = "ShortRequestFirst"
    FCFS = "FCFS"


class LengthMeasure(StrEnum):
    """What is compared with the threshold."""

    UNCACHED = "Uncached"
    PROMPT = "Prompt"


class TuningMode(StrEnum):
    """Auto moves the tuned values, Advise only reports them, Off leaves everything to the user."""

    AUTO = "Auto"
    ADVISE = "Advise"
    OFF = "Off"


class Role(StrEnum):
    """What a pod does."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class SecretKeyRef(Model):
    """One key of a Secret in the policy's namespace."""

    name: Annotated[str, Field(min_length=1)]
    key: Annotated[str, Field(min_length=1)] = "token"


class HubSource(Model):
    """A model repository on a hub."""

    repo: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    token_secret_ref: SecretKeyRef | None = None


class PvcSource(Model):
    """A model folder on a PersistentVolumeClaim."""

    claim_name: Annotated[str, Field(min_length=1)]
    path: str = ""


class ModelSource(Model):
    """Where the model comes from: exactly one of the three."""

    hub: HubSource | None = None
    pvc: PvcSource | None = None
    host_path: Annotated[str, Field(pattern="^/")] | None = None


class ModelSpec(Model):
    """The model that the fleet serves."""

    source: ModelSource
    served_name: Annotated[str, Field(min_length=1)]


class EngineSpec(Model):
    """The engine that every pod of the fleet runs."""

    type: EngineType
    version: Annotated[str, Field(min_length=1)] | None = None
    image: Annotated[str, Field(min_length=1)] | None = None


class RuntimeSpec(Model):
    """Where the scheduling runtime comes from; the installation's default if left out."""

    image: Annotated[str, Field(min_length=1)] | None = None


class Accelerator(Model):
    """What one pod asks of its node."""

    resource: Annotated[str, Field(min_length=1)]
    count: Annotated[int, Field(ge=1, le=64)] = 1


class EnvVar(Model):
    """One environment variable with a plain value; others go through podTemplate."""

    name: Annotated[str, Field(min_length=1)]
    value: str = ""


class RoleSpec(Model):
    """The pods of one role. `pod_template` is a strategic-merge overlay on the rendered pod."""

    replicas: Annotated[int, Field(ge=0, le=10000)] = 1
    accelerator: Accelerator | None = None
    args: Annotated[list[str], Field(max_length=256)] = []
    env: Annotated[list[EnvVar], Field(max_length=256)] = []
    pod_template: dict[str, Any] | None = None


class SchedulingSpec(Model):
    """How the prefill queue is ordered."""

    policy: SchedulingPolicy = SchedulingPolicy.SHORT_REQUEST_FIRST
    threshold: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    long_max_wait: Duration | None = None
    length: LengthMeasure = LengthMeasure.UNCACHED
    aged_share: Annotated[float, Field(gt=0, le=1)] = 0.25

    @property
    def long_max_wait_s(self) -> float | None:
        """The pinned wait limit in seconds, or None where it is tuned."""
        return None if self.long_max_wait is None else parse_duration(self.long_max_wait)


class SloSpec(Model):
    """What users of the fleet were promised."""

    short_ttft: Annotated[Duration, Field(alias="shortTTFT")] = "500ms"
    long_queue_wait: Duration = "8s"

    @property
    def short_ttft_s(self) -> float:
        """Seconds to the first token of a short request."""
        return parse_duration(self.short_ttft)

    @property
    def long_queue_wait_s(self) -> float:
        """W_slo: the most extra queueing that a long request may suffer, seconds."""
        return parse_duration(self.long_queue_wait)


class Band(Model):
    """The percentiles of prompt length between which a threshold may lie."""

    low: Annotated[int, Field(ge=1, le=99)] = 70
    high: Annotated[int, Field(ge=1, le=99)] = 85


class TuningSpec(Model):
    """How the threshold and the wait limit are learned."""

    mode: TuningMode = TuningMode.AUTO
    band: Band = Band()
    wait_quantile: Literal["P90", "P95"] = "P95"
    bias: Annotated[float, Field(ge=0, le=1)] = 0.5
    window: Duration = "5m"
    min_samples: Annotated[int, Field(ge=30, le=1_000_000)] = 300
    cooldown: Duration = "15m"

    @property
    def window_s(self) -> float:
        """Seconds of history that a decision looks at."""
        return parse_duration(self.window)

    @property
    def cooldown_s(self) -> float:
        """Seconds between two moves of the same value."""
        return parse_duration(self.cooldown)


class PrefillPolicySpec(Model):
    """One fleet: its model, its engine, its pods and how their prefill queue is scheduled."""

    model: ModelSpec
    engine: EngineSpec
    runtime: RuntimeSpec = RuntimeSpec()
    prefill: RoleSpec | None = None
    decode: RoleSpec | None = None
    mixed: RoleSpec | None = None
    scheduling: SchedulingSpec = SchedulingSpec()
    slo: SloSpec = SloSpec()
    tuning: TuningSpec = TuningSpec()
    metrics_source: Annotated[str, Field(min_length=1)] = "PodScrape"

    def roles(self) -> dict[Role, RoleSpec]:
        """The roles that the spec asks for, in the order prefill, decode, mixed."""
        given = {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.MIXED: self.mixed}
        return {role: spec for role, spec in given.items() if spec is not None}


class InvalidSpecError(ValueError):
    """A spec that must not run; the message is one sentence per fault, with the field and the fix."""


def parse_spec(raw: Any) -> PrefillPolicySpec:
    """Parse `.spec` of a PrefillPolicy as the API server would admit it.

    Raises:
        InvalidSpecError: a field is wrong or a rule across fields is broken.
    """
    try:
        spec = PrefillPolicySpec.model_validate(raw)
    except ValidationError as error:
        raise InvalidSpecError("; ".join(_sentence(fault) for fault in error.errors(include_url=False))) from None
    return spec


def _sentence(fault: Any) -> str:
    field = ".".join(str(part) for part in fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    return f"spec.{field}: {message}" if field else f"spec: {message}"


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


class Condition(Model):
    """A Kubernetes condition; `last_transition_time` changes only with `status`."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str
    last_transition_time: str
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


class TunedValue(Model):
    """One tuned value with its evidence. `value`: tokens of the threshold, or seconds of the wait limit."""

    value: float | None = None
    reason: str
    message: str
    moved_at: str | None = None


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


class Move(Model):
    """One past move of the effective policy."""

    at: str
    generation: int
    policy: SchedulingPolicy
    threshold: int | None = None
    long_max_wait: str | None = None
    reason: str
    message: str


class PrefillPolicyStatus(Model):
    """What the operator answers."""

    observed_generation: int | None = None
    conditions: list[Condition] = []
    effective: EffectiveStatus | None = None
    roles: list[RoleStatus] = []
    tuning: TuningStatus | None = None
    history: Annotated[list[Move], Field(max_length=10)] = []
