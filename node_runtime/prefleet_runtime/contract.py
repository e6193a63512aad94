"""What the operator writes and the runtime reads: one small JSON document.

The operator renders a `RuntimePolicy` for each kind of pod into a ConfigMap; the runtime polls the
mounted file and publishes the parsed value. The document is refused as a whole if any part of it is
wrong (an unknown key included, since a key that is silently ignored is a setting that silently does
not run), and the policy that ran before stays.

Left out on purpose: anything that is not needed to order a queue and to share a step. Where metrics are served, which
role a pod has and how the file is found are start-up settings of the engine (`RuntimeSettings`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

API_VERSION: Literal["prefleet.dev/runtime/v1"] = "prefleet.dev/runtime/v1"

POLICY_FILE = "policy.json"
"""ConfigMap key, and file name, of the policy of prefill and mixed pods."""

DECODE_POLICY_FILE = "decode.json"
"""The same for decode pods: always first come first served, with the same generation."""

LARGEST_NUMBER = 2**53
"""Whole numbers up to this one survive as floats, in which waits are reckoned and metrics served."""

DEFAULT_AGED_SHARE = 0.25
DEFAULT_EXPORTER_PORT = 9400


class PolicyName(StrEnum):
    """The queue policies that the runtime can run."""

    FCFS = "fcfs"
    PROMOTE_SHORTEST = "promote_shortest"
    HRRN = "hrrn"
    SHORT_REQUEST_FIRST = "short_request_first"

    @property
    def has_threshold(self) -> bool:
        """Whether it tells short requests from long ones: only then are there such lanes, a threshold and a wait."""
        return self is PolicyName.SHORT_REQUEST_FIRST


class LengthKind(StrEnum):
    """What counts as the length of a request."""

    UNCACHED = "uncached"
    """Prompt tokens less the prefix-cache hit, at least 1."""
    PROMPT = "prompt"
    """Raw prompt tokens."""


class LongChunk(StrEnum):
    """What a long prefill gets of a step while short requests wait or are in prefill."""

    YIELD = "yield"
    """One long goes on with what the step has left after decodes and shorts, at least `long_chunk_tokens`."""
    CAP = "cap"
    """All longs together get at most `long_chunk_tokens`, also where the rest of the step stays unused."""
    OFF = "off"
    """The engine's own way: what runs goes first, in the order in which it started."""


class _StageModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class MixedStage(_StageModel):
    """Decode and chunked prefill share each step as the engine does it."""

    type: Literal["mixed"] = "mixed"


class TptStage(_StageModel):
    """Steps of decode alone between prefills, so many that decodes advance in proportion to what prefills cost.

    `prefill_ms_per_request` (p) and `decode_ms_per_request` (d) are what one request costs in a step of its kind;
    `max_batch` (M) is how many requests decode at once when the node is full.
    """

    type: Literal["tpt"]
    prefill_ms_per_request: Annotated[float, Field(gt=0, le=LARGEST_NUMBER, strict=False)]
    decode_ms_per_request: Annotated[float, Field(ge=0, le=LARGEST_NUMBER, strict=False)]
    max_batch: Annotated[int, Field(ge=1, le=LARGEST_NUMBER)]


class StallBudgetStage(_StageModel):
    """As much prefill in a step as keeps the gap between two tokens of a running decode under `max_stall_ms`."""

    type: Literal["stall_budget"]
    max_stall_ms: Annotated[float, Field(gt=0, le=LARGEST_NUMBER, strict=False)]


Stage = Annotated[MixedStage | TptStage | StallBudgetStage, Field(discriminator="type")]
"""How a step is shared between decode and prefill."""


class InvalidPolicyError(ValueError):
    """A policy document that must not run; the message is one sentence per fault, with the field's name."""


class RuntimePolicy(BaseModel):
    """The scheduling policy of one fleet, immutable.

    Units: `threshold` in tokens, `long_max_wait_ms` in milliseconds (0 turns promotion off),
    `aged_share` a fraction of the prefill tokens dispatched while shorts wait; `long_chunk_tokens` in tokens, a
    quarter of the engine's step where it is None. Only `short_request_first` reads these and `long_chunk`.
    `trust_client_priority`: a request to which its client gave a negative priority goes first; otherwise what clients
    say of priorities is ignored.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    api_version: Literal["prefleet.dev/runtime/v1"] = API_VERSION
    generation: Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]
    policy: PolicyName = Field(default=PolicyName.FCFS, strict=False)
    threshold: Annotated[int, Field(ge=1, le=LARGEST_NUMBER)] | None = None
    long_max_wait_ms: Annotated[int, Field(ge=0, le=LARGEST_NUMBER)] = 0
    aged_share: Annotated[float, Field(gt=0, le=1, strict=False)] = DEFAULT_AGED_SHARE
    length: LengthKind = Field(default=LengthKind.UNCACHED, strict=False)
    trust_client_priority: bool = False
    long_chunk: LongChunk = Field(default=LongChunk.YIELD, strict=False)
    long_chunk_tokens: Annotated[int, Field(ge=1, le=LARGEST_NUMBER)] | None = None
    stage: Stage = MixedStage()

    @model_validator(mode="after")
    def _short_request_first_needs_a_threshold(self) -> Self:
        if self.policy.has_threshold and self.threshold is None:
            raise ValueError("threshold is required with short_request_first: give the longest short request in tokens")
        return self

    def to_json(self) -> str:
        """The document as written to the ConfigMap: stable key order, so that equal policies are equal text."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse a document.

        Raises:
            InvalidPolicyError: the text is torn or not JSON, or a field is wrong.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise InvalidPolicyError(_sentences(error)) from None


class RuntimeSettings(BaseModel):
    """Start-up settings of the runtime: under the key `prefleet` of the engine's `--additional-config`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy_file: str
    exporter_host: str = "0.0.0.0"
    exporter_port: Annotated[int, Field(ge=0, le=65535)] = DEFAULT_EXPORTER_PORT

    @classmethod
    def parse(cls, raw: Any) -> Self:
        """Check the value of the `prefleet` key.

        Raises:
            InvalidPolicyError: a key is missing, unknown or out of range.
        """
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            raise InvalidPolicyError(_sentences(error)) from None


def _sentences(error: ValidationError) -> str:
    faults = []
    for fault in error.errors(include_url=False):
        field = ".".join(str(part) for part in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        faults.append(f"{field}: {message}" if field else message)
    return "; ".join(faults)
