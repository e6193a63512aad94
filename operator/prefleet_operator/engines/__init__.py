"""Engines: one file each, saying how it is started for each role, how it is told its policy and names its metrics."""

from typing import Final

from prefleet_operator.api import EngineType, PrefillPolicySpec
from prefleet_operator.engines.base import (
    EXPORTER_PORT,
    HTTP_PORT,
    POLICY_FOLDER,
    RUNTIME_FOLDER,
    Engine,
    EngineContainer,
    PodRequest,
)
from prefleet_operator.engines.lightllm import LightLLM
from prefleet_operator.engines.mindie import MindIE
from prefleet_operator.engines.sglang import SGLang
from prefleet_operator.engines.simulator import Simulator
from prefleet_operator.engines.vllm import VLLM
from prefleet_operator.engines.vllm_ascend import VLLMAscend

__all__ = [
    "EXPORTER_PORT",
    "HTTP_PORT",
    "POLICY_FOLDER",
    "RUNTIME_FOLDER",
    "Engine",
    "EngineContainer",
    "PodRequest",
    "engine_for",
]

_ENGINES: Final[dict[EngineType, Engine]] = {
    EngineType.VLLM: VLLM(),
    EngineType.SIMULATOR: Simulator(),
    EngineType.VLLM_ASCEND: VLLMAscend(),
    EngineType.LIGHTLLM: LightLLM(),
    EngineType.SGLANG: SGLang(),
    EngineType.MINDIE: MindIE(),
}


def engine_for(spec: PrefillPolicySpec) -> Engine:
    """The engine that a fleet runs."""
    return _ENGINES[spec.engine.type]
