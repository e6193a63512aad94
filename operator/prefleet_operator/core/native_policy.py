"""What an engine that schedules by itself was told: the operator's memory of it, read by nobody else.

Such an engine is told at its start, in the pods themselves; this document lies in the fleet's ConfigMap, so that the
next decision, or another operator, knows what was decided. It holds what concerns the engine and nothing else: what
does not reach an engine must not raise a generation, since a generation replaces its pods.

`as_run` gives the spec as the engine will carry it out: VLLMAscend compares raw prompt lengths, lets aged-long
requests go before all short ones, and shares no steps, whatever the spec keeps for another engine.
"""

from __future__ import annotations

from typing import Annotated, Literal

from prefleet_runtime.contract import LARGEST_NUMBER, InvalidPolicyError, RuntimePolicy
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prefleet_operator.api import EngineType, LengthMeasure, PrefillPolicySpec, SchedulingPolicy

NATIVE_POLICY_FILE = "engine.json"
"""ConfigMap key of the document."""

API_VERSION: Literal["prefleet.dev/native/v1"] = "prefleet.dev/native/v1"


class _Native(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TptTimes(_Native):
    """The times of MindIE's TPT stage, in milliseconds, and the most requests that run at once."""

    type: Literal["TPT"] = "TPT"
    prefill_ms: int
    decode_ms: int
    max_batch: int


class LatencyTargets(_Native):
    """What MindIE's latency stage aims at, in milliseconds."""

    type: Literal["Latency"] = "Latency"
    first_token_ms: int
    token_gap_ms: int


class NativePolicy(_Native):
    """One fleet's policy, immutable. Units: `threshold` in tokens; `long_max_wait_ms` 0 turns promotion off."""

    api_version: Literal["prefleet.dev/native/v1"] = API_VERSION
    generation: Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]
    policy: SchedulingPolicy = Field(default=SchedulingPolicy.FCFS, strict=False)
    threshold: Annotated[int, Field(ge=1, le=LARGEST_NUMBER)] | None = None
    long_max_wait_ms: Annotated[int, Field(ge=0, le=LARGEST_NUMBER)] = 0
    stage: Annotated[TptTimes | LatencyTargets, Field(discriminator="type")] | None = None

    def to_json(self) -> str:
        """The document as written to the ConfigMap: equal policies are equal text."""
        return self.model_dump_json(indent=2, exclude_none=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> NativePolicy:
        """Parse a document.

        Raises:
            InvalidPolicyError: it is none, as another release or somebody else left it.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise InvalidPolicyError(error.errors(include_url=False)[0]["msg"]) from None


FleetPolicy = RuntimePolicy | NativePolicy
"""What a fleet runs: what the runtime reads, or what an engine was told at its start."""


def as_run(spec: PrefillPolicySpec) -> PrefillPolicySpec:
    """The spec as its engine carries it out."""
    if spec.engine.type is not EngineType.VLLM_ASCEND:
        return spec
    changed = {"length": LengthMeasure.PROMPT, "aged_share": 1.0}
    return spec.model_copy(update={"scheduling": spec.scheduling.model_copy(update=changed)})
