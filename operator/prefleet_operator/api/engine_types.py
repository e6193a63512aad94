"""Engines, and what each can be told: the one table that the spec's rules, the decisions and the engines share.

An engine of type `File` runs the scheduling runtime, which reads policy.json while it serves. One of type `Start`
schedules by itself and is told at its start, by arguments or a config file, so that a change replaces its pods.

How an engine is started stands in `engines/`, one file for each; here stands what a user may ask of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class EngineType(StrEnum):
    """Engines that this release can run."""

    VLLM = "VLLM"
    SIMULATOR = "Simulator"
    VLLM_ASCEND = "VLLMAscend"
    LIGHTLLM = "LightLLM"
    SGLANG = "SGLang"
    MINDIE = "MindIE"


class SchedulingPolicy(StrEnum):
    """Queue policies, as users name them."""

    SHORT_REQUEST_FIRST = "ShortRequestFirst"
    PROMOTE_SHORTEST = "PromoteShortest"
    HRRN = "HRRN"
    FCFS = "FCFS"
    SHORTEST_PREFILL_FIRST = "ShortestPrefillFirst"

    @property
    def has_threshold(self) -> bool:
        """Whether it tells short requests from long ones, and so has values to tune."""
        return self is SchedulingPolicy.SHORT_REQUEST_FIRST


class StageType(StrEnum):
    """How a step is shared between decode and prefill."""

    MIXED = "Mixed"
    TPT = "TPT"
    STALL_BUDGET = "StallBudget"
    LATENCY = "Latency"


class Told(StrEnum):
    """When an engine is told its policy."""

    FILE = "File"
    START = "Start"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can run.

    `release`: an example of a release for which there is a stock image; without one, users give an image. `apart`:
    prefill and decode may be pods of their own. `apart_needs`: why they may not. `hub`: the engine fetches a model
    from a hub by itself. `sizes`: it tells how many sequences run and how full its KV cache is, which pods that decode
    are sized by.
    """

    policies: tuple[SchedulingPolicy, ...]
    told: Told = Told.START
    stages: tuple[StageType, ...] = (StageType.MIXED,)
    release: str | None = None
    apart_needs: str | None = None
    hub: bool = True
    sizes: bool = True

    @property
    def tunes(self) -> bool:
        """Whether there are a threshold and a wait limit to tune."""
        return any(policy.has_threshold for policy in self.policies)


_RUNTIME_POLICIES: Final = (
    SchedulingPolicy.SHORT_REQUEST_FIRST,
    SchedulingPolicy.PROMOTE_SHORTEST,
    SchedulingPolicy.HRRN,
    SchedulingPolicy.FCFS,
)
_RUNTIME_STAGES: Final = (StageType.MIXED, StageType.TPT, StageType.STALL_BUDGET)

CAPABILITIES: Final[dict[EngineType, Capabilities]] = {
    EngineType.VLLM: Capabilities(_RUNTIME_POLICIES, Told.FILE, _RUNTIME_STAGES, release="0.33.0"),
    EngineType.SIMULATOR: Capabilities(_RUNTIME_POLICIES, Told.FILE, _RUNTIME_STAGES),
    EngineType.VLLM_ASCEND: Capabilities(
        (SchedulingPolicy.SHORT_REQUEST_FIRST, SchedulingPolicy.FCFS), release="0.25.1rc1"
    ),
    EngineType.LIGHTLLM: Capabilities(
        (SchedulingPolicy.PROMOTE_SHORTEST, SchedulingPolicy.HRRN, SchedulingPolicy.FCFS),
        apart_needs="a pd master",
        hub=False,
        sizes=False,
    ),
    EngineType.SGLANG: Capabilities(
        (SchedulingPolicy.HRRN, SchedulingPolicy.SHORTEST_PREFILL_FIRST, SchedulingPolicy.FCFS), release="0.5.23"
    ),
    EngineType.MINDIE: Capabilities(
        (SchedulingPolicy.FCFS,),
        stages=(StageType.MIXED, StageType.TPT, StageType.LATENCY),
        apart_needs="MindIE's controller and coordinator",
        hub=False,
    ),
}
