"""What a user writes: `PrefillPolicySpec`.

`threshold` and `longMaxWait` have no default: a value given is pinned, a value left out is tuned. Docstrings
here are what `kubectl explain` shows. Rules across fields stand in the `RULES` of the model that holds all
fields concerned; each is a CEL rule on the API server and a predicate here, with one sentence for both."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from prefleet_operator.api.attach import (
    AttachedRole,
    AttachSpec,
    attachable_engine_rules,
    brings_nothing_of_its_own,
)
from prefleet_operator.api.autoscaling import AUTOSCALING_RULES, AutoscalingSpec, RoleBounds
from prefleet_operator.api.base import (
    POD_SCRAPE,
    DurationText,
    Model,
    Text,
    duration_between,
    parse_duration,
)
from prefleet_operator.api.engine_rules import ENGINE_RULES, FLEET_RULES
from prefleet_operator.api.engine_types import (
    CAPABILITIES,
    Capabilities,
    EngineType,
    Told,
)
from prefleet_operator.api.model import ModelSpec
from prefleet_operator.api.roles import Role, RoleSpec, SecurityProfile, SecuritySpec
from prefleet_operator.api.router import ROUTER_RULES, RouterSpec
from prefleet_operator.api.rule import Rule
from prefleet_operator.api.scheduling import SchedulingSpec


class TuningMode(StrEnum):
    """Auto moves the tuned values, Advise only reports them, Off leaves everything to the user."""

    AUTO = "Auto"
    ADVISE = "Advise"
    OFF = "Off"


class EngineSpec(Model):
    """The engine that every pod of the fleet runs."""

    type: EngineType
    """Which engine; it decides which scheduling it can be given, and how."""
    version: Text | None = None
    """The engine's release; it chooses the stock image where `image` is left out."""
    image: Text | None = None
    """An image of your own with the engine in it."""

    RULES: ClassVar = ENGINE_RULES

    @property
    def can(self) -> Capabilities:
        """What the engine can be asked for."""
        return CAPABILITIES[self.type]

    @property
    def told_at_start(self) -> bool:
        """Whether a change of policy replaces the pods, since the engine is told at its start alone."""
        return self.can.told is Told.START


class RuntimeSpec(Model):
    """Where the scheduling runtime comes from."""

    image: Text | None = None
    """The runtime's image; if left out, what was the installation's default when the pods were last changed."""


SHORT_TTFT_RULE = duration_between("1ms", "1h", "500ms")
LONG_QUEUE_WAIT_RULE = duration_between("100ms", "24h", "8s")

ShortTTFT = Annotated[DurationText, SHORT_TTFT_RULE, Field(alias="shortTTFT")]


class SloSpec(Model):
    """What users of the fleet were promised."""

    short_ttft: ShortTTFT = "500ms"
    """Time to the first token of a short request. Stated; only MindIE's stage Latency acts on it."""
    long_queue_wait: Annotated[DurationText, LONG_QUEUE_WAIT_RULE] = "8s"
    """The most extra queueing that a long request may suffer."""
    inter_token_gap: Annotated[DurationText, duration_between("1ms", "10s", "200ms")] = "200ms"
    """The longest time between two tokens of a running answer: what MindIE's TPT and Latency aim at, and what pods that
    decode are sized by."""

    @property
    def short_ttft_s(self) -> float:
        """Seconds to the first token of a short request."""
        return parse_duration(self.short_ttft)

    @property
    def long_queue_wait_s(self) -> float:
        """W_slo: the most extra queueing that a long request may suffer, seconds."""
        return parse_duration(self.long_queue_wait)

    @property
    def inter_token_gap_s(self) -> float:
        """Seconds between two tokens of a running answer."""
        return parse_duration(self.inter_token_gap)


class Band(Model):
    """The percentiles of prompt length between which a threshold may lie."""

    low: Annotated[int, Field(ge=1, le=99)] = 70
    """The lower end, a percentile of prompt length."""
    high: Annotated[int, Field(ge=1, le=99)] = 85
    """The upper end, a percentile of prompt length."""

    RULES: ClassVar = (
        Rule(
            "self.low < self.high",
            "write a low below high, such as low: 70 and high: 85",
            lambda band: band.low < band.high,
        ),
    )


class TuningSpec(Model):
    """How the threshold and the wait limit are learned."""

    mode: TuningMode = TuningMode.AUTO
    """Auto: values that the spec leaves out are learned and set. Advise: they are only reported. "Off" (in quotes: YAML
    reads a bare Off as false): nothing is computed."""
    band: Band = Band()
    wait_quantile: Literal["P90", "P95"] = "P95"
    """Which quantile of long waits counts as normal."""
    bias: Annotated[float, Field(ge=0, le=1)] = 0.5
    """0 favours long requests, 1 short ones."""
    window: Annotated[DurationText, duration_between("10s", "24h", "5m")] = "5m"
    """The stretch of recent traffic that decisions look at."""
    min_samples: Annotated[int, Field(ge=30, le=1_000_000)] = 300
    """Requests that must be seen before anything is decided."""
    cooldown: Annotated[DurationText, duration_between("0s", "168h", "15m")] = "15m"
    """The least time between two moves of the same value."""
    restart_budget: Annotated[int, Field(ge=0, le=10)] = 4
    """How often in 24 hours the tuner may change an engine that a change restarts (VLLMAscend). What you change
    yourself is never held back."""

    @property
    def window_s(self) -> float:
        """Seconds of history that a decision looks at."""
        return parse_duration(self.window)

    @property
    def cooldown_s(self) -> float:
        """Seconds between two moves of the same value."""
        return parse_duration(self.cooldown)


def _roles_fit(spec: PrefillPolicySpec) -> bool:
    if spec.attach is not None:
        return not spec.roles()
    return set(spec.roles()) in ({Role.PREFILL, Role.DECODE}, {Role.MIXED})


def _one_node_unless_vllm(spec: PrefillPolicySpec) -> bool:
    return spec.engine.type is EngineType.VLLM or all(role.nodes_per_replica == 1 for role in spec.roles().values())


_SEVERAL_NODES = " || ".join(f"(has(self.{role}) && self.{role}.nodesPerReplica > 1)" for role in Role)


def _pinned_where_not_tuned(spec: PrefillPolicySpec) -> bool:
    return (
        spec.tuning.mode is not TuningMode.OFF
        or not spec.scheduling.policy.has_threshold
        or (spec.scheduling.threshold is not None and spec.scheduling.long_max_wait is not None)
    )


class PrefillPolicySpec(Model):
    """One fleet: its model, its engine, its pods and how their prefill queue is scheduled."""

    model: ModelSpec
    engine: EngineSpec
    runtime: RuntimeSpec = RuntimeSpec()
    security: SecuritySpec = SecuritySpec()
    prefill: RoleSpec | None = None
    """Pods that only prefill; goes together with decode."""
    decode: RoleSpec | None = None
    """Pods that only decode; goes together with prefill."""
    mixed: RoleSpec | None = None
    """Pods that do both; stands alone."""
    attach: AttachSpec | None = None
    """Pods that somebody else makes, in place of prefill and decode or mixed."""
    router: RouterSpec = RouterSpec()
    scheduling: SchedulingSpec = SchedulingSpec()
    slo: SloSpec = SloSpec()
    tuning: TuningSpec = TuningSpec()
    autoscaling: AutoscalingSpec | None = None
    """Lets the operator decide how many pods the roles have; if left out, each has its replicas."""
    metrics_source: Annotated[str, Field(min_length=1, max_length=63)] = POD_SCRAPE
    """The name of a metrics source that the installation defines, or PodScrape."""

    RULES: ClassVar = (
        Rule(
            "has(self.attach) ? !(has(self.prefill) || has(self.decode) || has(self.mixed))"
            " : has(self.prefill) == has(self.decode) && has(self.prefill) != has(self.mixed)",
            "write either prefill and decode together, or mixed alone, or attach alone",
            _roles_fit,
        ),
        Rule(
            "self.security.profile != 'Restricted' || !has(self.model.source) || !has(self.model.source.hostPath)",
            "model.source: write hub or pvc in place of hostPath, which security.profile Restricted forbids",
            lambda spec: (
                spec.security.profile is not SecurityProfile.RESTRICTED
                or spec.model.source is None
                or spec.model.source.host_path is None
            ),
        ),
        Rule(
            "self.security.profile != 'Restricted' || self.engine.type != 'MindIE'",
            "security.profile: write Baseline: MindIE's files belong to root, so it does not start as another user",
            lambda spec: (
                spec.security.profile is not SecurityProfile.RESTRICTED or spec.engine.type is not EngineType.MINDIE
            ),
        ),
        Rule(
            f"self.engine.type == 'VLLM' || !({_SEVERAL_NODES})",
            "nodesPerReplica: leave it at 1: of the engines only type VLLM serves one model from several nodes",
            _one_node_unless_vllm,
        ),
        Rule(
            "!has(self.attach) || !(has(self.model.source) || has(self.engine.image) || has(self.runtime.image))",
            "attach: remove model.source, engine.image and runtime.image: attached pods have their own; "
            "engine.version says which release they run",
            brings_nothing_of_its_own,
        ),
        Rule(
            "!has(self.attach) || self.security.profile != 'Restricted'",
            "security.profile: remove it: as which user attached pods run is for those to say who make them",
            lambda spec: spec.attach is None or spec.security.profile is not SecurityProfile.RESTRICTED,
        ),
        *attachable_engine_rules(EngineType),
        Rule(
            "self.tuning.mode != 'Off' || self.scheduling.policy != 'ShortRequestFirst'"
            " || (has(self.scheduling.threshold) && has(self.scheduling.longMaxWait))",
            "scheduling: write threshold and longMaxWait, or set tuning.mode to Auto: "
            "with mode Off nothing else gives ShortRequestFirst its values",
            _pinned_where_not_tuned,
        ),
        *FLEET_RULES,
        *ROUTER_RULES,
        *AUTOSCALING_RULES,
    )

    def roles(self) -> dict[Role, RoleSpec]:
        """The roles that the spec asks for, in the order prefill, decode, mixed."""
        given = {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.MIXED: self.mixed}
        return {role: spec for role, spec in given.items() if spec is not None}

    def attached_roles(self) -> dict[Role, AttachedRole]:
        """The roles whose pods somebody else makes, in the same order."""
        if self.attach is None:
            return {}
        given = {Role.PREFILL: self.attach.prefill, Role.DECODE: self.attach.decode, Role.MIXED: self.attach.mixed}
        return {role: attached for role, attached in given.items() if attached is not None}

    def role_names(self) -> tuple[Role, ...]:
        """The roles of the fleet, whoever makes their pods."""
        return (*self.roles(), *self.attached_roles())

    def sized_roles(self) -> dict[Role, RoleBounds]:
        """The roles whose number of pods the operator decides, with their bounds."""
        return {} if self.autoscaling is None else self.autoscaling.bounds()
