"""How the prefill queue is ordered and steps are shared: `spec.scheduling`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StrictBool

from prefleet_operator.api.base import (
    DurationText,
    Model,
    duration_between,
    parse_duration,
)
from prefleet_operator.api.engine_types import SchedulingPolicy, StageType
from prefleet_operator.api.rule import Rule

MAX_THRESHOLD = 100_000_000
LONG_MAX_WAIT_RULE = duration_between("0s", "24h", "8s")


class LengthMeasure(StrEnum):
    """What is compared with the threshold."""

    UNCACHED = "Uncached"
    PROMPT = "Prompt"


class LongChunkMode(StrEnum):
    """What a long prefill gets of a step while short requests wait or are in prefill."""

    YIELD = "Yield"
    CAP = "Cap"
    OFF = "Off"


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
    threshold: Annotated[int, Field(ge=1, le=MAX_THRESHOLD)] | None = None
    """Tokens of the longest short request; tuned if left out."""
    long_max_wait: Annotated[DurationText, LONG_MAX_WAIT_RULE] | None = None
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
