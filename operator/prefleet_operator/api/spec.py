"""What a user writes: `PrefillPolicySpec`.

`threshold` and `longMaxWait` have no default: a value given is pinned, a value left out is tuned. Docstrings
here are what `kubectl explain` shows. Rules across fields stand in the `RULES` of the model that holds all
fields concerned; each is a CEL rule on the API server and a predicate here, with one sentence for both."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, StrictBool

from prefleet_operator.api.arguments import (
    NO_DATA_PARALLEL,
    NO_NATIVE_OPERATOR_ARGUMENTS,
    NO_OPERATOR_ARGUMENTS,
    NO_OPERATOR_ENV,
    NO_RUNTIME_SETTINGS,
)
from prefleet_operator.api.base import DurationText, Model, Text, duration_between, matching, parse_duration
from prefleet_operator.api.engine_rules import ENGINE_RULES, FLEET_RULES
from prefleet_operator.api.engine_types import (
    CAPABILITIES,
    Capabilities,
    EngineType,
    SchedulingPolicy,
    StageType,
    Told,
)
from prefleet_operator.api.router import ROUTER_RULES, RouterSpec
from prefleet_operator.api.rule import Rule


class LengthMeasure(StrEnum):
    """What is compared with the threshold."""

    UNCACHED = "Uncached"
    PROMPT = "Prompt"


class LongChunkMode(StrEnum):
    """What a long prefill gets of a step while short requests wait or are in prefill."""

    YIELD = "Yield"
    CAP = "Cap"
    OFF = "Off"


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

    name: Text
    key: Text = "token"


class HubSource(Model):
    """A model repository on a hub."""

    repo: Annotated[
        Text,
        matching(
            "^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$",
            "write the repository as owner/name, such as Qwen/Qwen3-8B",
        ),
    ]
    revision: Text | None = None
    """A branch, tag or commit; the repository's default branch if left out."""
    token_secret_ref: SecretKeyRef | None = None
    """Where the hub's access token is kept, for repositories that ask for one."""


class PvcSource(Model):
    """A model folder on a PersistentVolumeClaim, mounted read-only."""

    claim_name: Text
    path: Annotated[
        str,
        Field(max_length=512),
        Rule(
            "!self.startsWith('/') && !self.contains('..')",
            "write a path inside the volume, without a leading / and without ..",
            lambda path: not path.startswith("/") and ".." not in path,
        ),
    ] = ""
    """The model's folder inside the volume; the whole volume if left out."""


HostPath = Annotated[Text, matching("^/", "write an absolute path on the node, such as /models/llama")]


class ModelSource(Model):
    """Where the model comes from: exactly one of the three."""

    hub: HubSource | None = None
    pvc: PvcSource | None = None
    host_path: HostPath | None = None
    """A model folder on the node, mounted read-only. Many clusters forbid it: prefer pvc."""

    RULES: ClassVar = (
        Rule(
            "[has(self.hub), has(self.pvc), has(self.hostPath)].filter(given, given).size() == 1",
            "write exactly one of hub, pvc or hostPath",
            lambda source: [source.hub, source.pvc, source.host_path].count(None) == 2,
        ),
    )


class ModelSpec(Model):
    """The model that the fleet serves."""

    source: ModelSource | None = None
    """Where the engine finds the model. The simulator needs none."""
    served_name: Annotated[
        Text,
        matching("^[A-Za-z0-9][^ ]*$", "write a name without spaces that begins with a letter or a digit"),
    ]
    """The name that clients ask for."""


class EngineSpec(Model):
    """The engine that every pod of the fleet runs."""

    type: EngineType
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
    """The runtime's image; the installation's default if left out, which an upgrade may change."""


class Accelerator(Model):
    """What one pod asks of its node."""

    resource: Annotated[
        Text,
        matching(
            "^[a-z0-9.-]+/[A-Za-z0-9._-]+$",
            "write the name that nodes offer it under, such as nvidia.com/gpu",
        ),
    ]
    count: Annotated[int, Field(ge=1, le=64)] = 1


class EnvVar(Model):
    """One environment variable with a plain value; others go through podTemplate."""

    name: Annotated[
        Text,
        matching("^[A-Za-z_][A-Za-z0-9_]*$", "write letters, digits and _, not beginning with a digit"),
    ]
    value: Annotated[str, Field(max_length=4096)] = ""


def _named_once(variables: list[EnvVar]) -> list[EnvVar]:
    """What the API server does of itself with a list that is a map."""
    if len({variable.name for variable in variables}) < len(variables):
        raise ValueError("name each variable once")
    return variables


class RoleSpec(Model):
    """The pods of one role."""

    replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    accelerator: Accelerator | None = None
    """What each pod asks of its node; left out for fleets without accelerators."""
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

    RULES: ClassVar = (
        NO_OPERATOR_ARGUMENTS,
        NO_NATIVE_OPERATOR_ARGUMENTS,
        NO_DATA_PARALLEL,
        NO_RUNTIME_SETTINGS,
        NO_OPERATOR_ENV,
    )


def _tpt_fits(stage: StageSpec) -> bool:
    """Costs come in pairs, and with TPT alone; that all three are there is asked where the engine is known."""
    if (stage.prefill_per_request is None) is not (stage.decode_per_request is None):
        return False
    return stage.type is StageType.TPT or (stage.prefill_per_request is None and stage.max_batch is None)


class StageSpec(Model):
    """How a step is shared between decode and prefill, on pods that do both."""

    type: StageType = StageType.MIXED
    """Mixed: as the engine does it. TPT: steps of decode alone between prefills, in proportion to what both cost.
    StallBudget: as much prefill in a step as keeps running answers from stalling longer than maxStall.
    Latency (MindIE): whichever of prefill and decode is nearer to missing slo.shortTTFT or slo.interTokenGap.
    MindIE's TPT takes prefillPerRequest and decodePerRequest from slo.interTokenGap where they are left out."""
    prefill_per_request: Annotated[DurationText, duration_between("0.001ms", "1h", "80ms")] | None = None
    """TPT: what one request costs in a step with prefill."""
    decode_per_request: Annotated[DurationText, duration_between("0ms", "1h", "0.5ms")] | None = None
    """TPT: what one request costs in a step of decode."""
    max_batch: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """TPT: how many requests decode at once on a full pod."""
    max_stall: Annotated[DurationText, duration_between("1ms", "1h", "50ms")] | None = None
    """StallBudget: the longest time between two tokens of a running answer."""

    RULES: ClassVar = (
        Rule(
            "has(self.prefillPerRequest) == has(self.decodePerRequest) && (self.type == 'TPT'"
            " || !(has(self.prefillPerRequest) || has(self.maxBatch)))",
            "write prefillPerRequest, decodePerRequest and maxBatch with type TPT, all three, and with no other type",
            _tpt_fits,
        ),
        Rule(
            "has(self.maxStall) == (self.type == 'StallBudget')",
            'write maxStall, such as "50ms", with type StallBudget and with no other type',
            lambda stage: (stage.max_stall is not None) is (stage.type is StageType.STALL_BUDGET),
        ),
    )


class SchedulingSpec(Model):
    """How the prefill queue is ordered and steps are shared. threshold, longMaxWait, agedShare, longChunk and
    longChunkTokens belong to ShortRequestFirst; under another policy they are kept, unused, for the way back."""

    policy: SchedulingPolicy = SchedulingPolicy.SHORT_REQUEST_FIRST
    """ShortRequestFirst: requests up to the threshold before longer ones. PromoteShortest: the shortest first, the
    rest as they came. HRRN: by the work done since a request arrived over its own. FCFS: as they came.
    ShortestPrefillFirst (SGLang): by length. Which of them an engine can run, its refusal of the others says."""
    threshold: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Tokens of the longest short request; tuned if left out."""
    long_max_wait: Annotated[DurationText, duration_between("0s", "24h", "8s")] | None = None
    """How long a long request waits before it may overtake short ones; 0s turns that off; tuned if left out.
    Under saturation a long request can wait longer: agedShare bounds how much of the work overtakes."""
    length: LengthMeasure = LengthMeasure.UNCACHED
    """Uncached: prompt tokens less the prefix-cache hit. Prompt: all of them. HRRN always counts uncached tokens."""
    aged_share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """The most that long requests past longMaxWait may take of the prefill tokens while short ones wait."""
    trust_client_priority: StrictBool = False
    """Whether a request to which its client gave a negative priority goes first. Otherwise what clients say of
    priorities is ignored: whoever may send requests could put its own before all others."""
    long_chunk: LongChunkMode = LongChunkMode.YIELD
    """What a long prefill gets of a step while short requests wait. Yield: what they leave, at least longChunkTokens.
    Cap: at most longChunkTokens. "Off" (in quotes: YAML reads a bare Off as false): the engine's own way."""
    long_chunk_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Tokens; a quarter of the engine's step if left out."""
    stage: StageSpec = StageSpec()

    @property
    def long_max_wait_s(self) -> float | None:
        """The pinned wait limit in seconds, or None where it is tuned."""
        return None if self.long_max_wait is None else parse_duration(self.long_max_wait)


ShortTTFT = Annotated[DurationText, duration_between("1ms", "1h", "500ms"), Field(alias="shortTTFT")]


class SloSpec(Model):
    """What users of the fleet were promised."""

    short_ttft: ShortTTFT = "500ms"
    """Time to the first token of a short request."""
    long_queue_wait: Annotated[DurationText, duration_between("100ms", "24h", "8s")] = "8s"
    """The most extra queueing that a long request may suffer."""
    inter_token_gap: Annotated[DurationText, duration_between("1ms", "10s", "200ms")] = "200ms"
    """The longest time between two tokens of a running answer: what MindIE's TPT and Latency aim at."""

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
    high: Annotated[int, Field(ge=1, le=99)] = 85

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
    """Auto, Advise or "Off" (in quotes: YAML reads a bare Off as false)."""
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
    return set(spec.roles()) in ({Role.PREFILL, Role.DECODE}, {Role.MIXED})


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
    prefill: RoleSpec | None = None
    """Pods that only prefill; goes together with decode."""
    decode: RoleSpec | None = None
    """Pods that only decode; goes together with prefill."""
    mixed: RoleSpec | None = None
    """Pods that do both; stands alone."""
    router: RouterSpec = RouterSpec()
    scheduling: SchedulingSpec = SchedulingSpec()
    slo: SloSpec = SloSpec()
    tuning: TuningSpec = TuningSpec()
    metrics_source: Annotated[str, Field(min_length=1, max_length=63)] = "PodScrape"
    """The name of a metrics source that the installation defines, or PodScrape."""

    RULES: ClassVar = (
        Rule(
            "has(self.prefill) == has(self.decode) && has(self.prefill) != has(self.mixed)",
            "write either prefill and decode together, or mixed alone",
            _roles_fit,
        ),
        Rule(
            "self.tuning.mode != 'Off' || self.scheduling.policy != 'ShortRequestFirst'"
            " || (has(self.scheduling.threshold) && has(self.scheduling.longMaxWait))",
            "scheduling: write threshold and longMaxWait, or set tuning.mode to Auto: "
            "with mode Off nothing else gives ShortRequestFirst its values",
            _pinned_where_not_tuned,
        ),
        *ROUTER_RULES,
        *FLEET_RULES,
    )

    def roles(self) -> dict[Role, RoleSpec]:
        """The roles that the spec asks for, in the order prefill, decode, mixed."""
        given = {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.MIXED: self.mixed}
        return {role: spec for role, spec in given.items() if spec is not None}
