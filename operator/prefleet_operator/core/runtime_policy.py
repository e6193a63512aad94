"""From a decision to the document that prefill and mixed pods read, or that says what their engine is told.

Decode pods of the runtime get a document of their own with the same generation, derived where the ConfigMap is
rendered.
"""

from __future__ import annotations

from prefleet_runtime.contract import (
    LengthKind,
    LongChunk,
    MixedStage,
    PolicyName,
    RuntimePolicy,
    Stage,
    StallBudgetStage,
    TptStage,
)

from prefleet_operator.api import (
    LengthMeasure,
    LongChunkMode,
    PrefillPolicySpec,
    SchedulingPolicy,
    StageSpec,
    StageType,
    parse_duration,
)
from prefleet_operator.core.native_policy import FleetPolicy, LatencyTargets, NativePolicy, TptTimes
from prefleet_operator.core.stage_times import stage_times
from prefleet_operator.core.tuning import TuningDecision

_POLICY_NAMES = {
    SchedulingPolicy.FCFS: PolicyName.FCFS,
    SchedulingPolicy.PROMOTE_SHORTEST: PolicyName.PROMOTE_SHORTEST,
    SchedulingPolicy.HRRN: PolicyName.HRRN,
    SchedulingPolicy.SHORT_REQUEST_FIRST: PolicyName.SHORT_REQUEST_FIRST,
}
_USERS_NAMES = {name: policy for policy, name in _POLICY_NAMES.items()}
_LENGTH_KINDS = {LengthMeasure.UNCACHED: LengthKind.UNCACHED, LengthMeasure.PROMPT: LengthKind.PROMPT}
_LONG_CHUNKS = {
    LongChunkMode.YIELD: LongChunk.YIELD,
    LongChunkMode.CAP: LongChunk.CAP,
    LongChunkMode.OFF: LongChunk.OFF,
}


_LARGEST_TARGET_MS = 10_000
"""The most that MindIE takes for a latency to aim at."""


def to_fleet_policy(decision: TuningDecision, spec: PrefillPolicySpec, generation: int) -> FleetPolicy:
    """The document that makes the fleet run `decision`, in the words of its engine."""
    if spec.engine.told_at_start:
        return to_native_policy(decision, spec, generation)
    return to_runtime_policy(decision, spec, generation)


def to_native_policy(decision: TuningDecision, spec: PrefillPolicySpec, generation: int) -> NativePolicy:
    """What the engine is told at its start so that it runs `decision`."""
    return NativePolicy(
        generation=generation,
        policy=decision.policy,
        threshold=decision.threshold,
        long_max_wait_ms=round(decision.long_max_wait_s * 1000),
        stage=_native_stage(spec),
    )


def _native_stage(spec: PrefillPolicySpec) -> TptTimes | LatencyTargets | None:
    match spec.scheduling.stage.type:
        case StageType.TPT:
            times = stage_times(spec)
            return TptTimes(prefill_ms=times.prefill_ms, decode_ms=times.decode_ms, max_batch=times.max_batch)
        case StageType.LATENCY:
            return LatencyTargets(
                first_token_ms=_target_ms(spec.slo.short_ttft_s), token_gap_ms=_target_ms(spec.slo.inter_token_gap_s)
            )
    return None


def _target_ms(seconds: float) -> int:
    return min(_LARGEST_TARGET_MS, max(1, round(seconds * 1000)))


def to_runtime_policy(decision: TuningDecision, spec: PrefillPolicySpec, generation: int) -> RuntimePolicy:
    """The document that makes the fleet run `decision`."""
    return RuntimePolicy(
        generation=generation,
        policy=_POLICY_NAMES[decision.policy],
        threshold=decision.threshold,
        long_max_wait_ms=round(decision.long_max_wait_s * 1000),
        aged_share=spec.scheduling.aged_share,
        length=_LENGTH_KINDS[spec.scheduling.length],
        trust_client_priority=spec.scheduling.trust_client_priority,
        long_chunk=_LONG_CHUNKS[spec.scheduling.long_chunk],
        long_chunk_tokens=spec.scheduling.long_chunk_tokens,
        stage=to_stage(spec.scheduling.stage),
    )


def to_stage(spec: StageSpec) -> Stage:
    """The stage that a user wrote; a spec's rules see to it that each has its settings and no others."""
    if spec.max_stall is not None:
        return StallBudgetStage(type="stall_budget", max_stall_ms=_ms(spec.max_stall))
    if spec.prefill_per_request is None or spec.decode_per_request is None or spec.max_batch is None:
        return MixedStage()
    return TptStage(
        type="tpt",
        prefill_ms_per_request=_ms(spec.prefill_per_request),
        decode_ms_per_request=_ms(spec.decode_per_request),
        max_batch=spec.max_batch,
    )


def _ms(duration: str) -> float:
    return round(parse_duration(duration) * 1000, 6)


def to_scheduling_policy(name: PolicyName | SchedulingPolicy) -> SchedulingPolicy:
    """The policy of a document, as users name it."""
    return name if isinstance(name, SchedulingPolicy) else _USERS_NAMES[name]
