"""One small fleet of each engine that schedules by itself: its spec, and what it was told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prefleet_operator.api import PrefillPolicySpec, SchedulingPolicy, parse_spec
from prefleet_operator.core.engine_metrics import EngineMetrics
from prefleet_operator.core.native_policy import NativePolicy, TptTimes
from prefleet_operator.engines import engine_for

MODEL = "chat"


@dataclass(frozen=True)
class NativeCase:
    """`measures_waits`: whether the engine has a histogram of queue waits."""

    spec: PrefillPolicySpec
    policy: NativePolicy
    measures_waits: bool = True

    @property
    def metrics(self) -> EngineMetrics:
        found = engine_for(self.spec).metrics
        assert found is not None
        return found


def native_spec(engine: dict[str, Any], **sections: Any) -> PrefillPolicySpec:
    """A fleet of one mixed pod."""
    model = {"source": {"hostPath": "/models/chat"}, "servedName": MODEL}
    return parse_spec({"model": model, "engine": engine, "mixed": {"replicas": 1}, **sections})


CASES = {
    "VLLMAscend": NativeCase(
        native_spec({"type": "VLLMAscend", "version": "0.25.1rc1"}),
        NativePolicy(generation=1, policy=SchedulingPolicy.SHORT_REQUEST_FIRST, threshold=900, long_max_wait_ms=2000),
    ),
    "LightLLM": NativeCase(
        native_spec({"type": "LightLLM", "image": "lightllm:1"}, scheduling={"policy": "PromoteShortest"}),
        NativePolicy(generation=1, policy=SchedulingPolicy.PROMOTE_SHORTEST),
    ),
    "SGLang": NativeCase(
        native_spec({"type": "SGLang", "version": "0.5.23"}, scheduling={"policy": "HRRN"}),
        NativePolicy(generation=1, policy=SchedulingPolicy.HRRN),
    ),
    "MindIE": NativeCase(
        native_spec({"type": "MindIE", "image": "mindie:1"}, scheduling={"policy": "FCFS", "stage": {"type": "TPT"}}),
        NativePolicy(
            generation=1, policy=SchedulingPolicy.FCFS, stage=TptTimes(prefill_ms=150, decode_ms=50, max_batch=200)
        ),
        measures_waits=False,
    ),
}
