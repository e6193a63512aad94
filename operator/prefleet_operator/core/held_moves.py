"""A decision of the tuner's less the moves that something else forbids for now. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from prefleet_operator.api import SchedulingPolicy
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.tuning import Finding, TunerMemory, TuningDecision


def hold_moves(
    before: TunerMemory,
    decision: TuningDecision,
    after: TunerMemory,
    held: AbstractSet[str],
    reason: Reason,
    told: str,
) -> tuple[TuningDecision, TunerMemory]:
    """The decision and its memory with the moves of these names taken back, and why (`told`, the end of a sentence).

    Policy and threshold are held together: the one means nothing without the other.
    """
    memory = after
    if held & {"policy", "threshold"}:
        memory = replace(
            memory,
            policy=before.policy,
            threshold=before.threshold,
            threshold_moved_at_s=before.threshold_moved_at_s,
        )
        finding = _held(decision.threshold_finding, before.threshold, reason, told)
        decision = replace(decision, threshold_finding=finding)
    if "longMaxWait" in held:
        memory = replace(
            memory,
            long_max_wait_s=before.long_max_wait_s,
            wait_moved_at_s=before.wait_moved_at_s,
            capacity_limited=False,  # As its finding will say, which names what holds it instead.
        )
        decision = replace(decision, wait_finding=_held(decision.wait_finding, before.long_max_wait_s, reason, told))
    policy = memory.policy if memory.policy is not None and memory.threshold is not None else SchedulingPolicy.FCFS
    decision = replace(
        decision,
        policy=policy,
        threshold=memory.threshold if policy.has_threshold else None,
        long_max_wait_s=memory.long_max_wait_s if policy.has_threshold else 0.0,
        moves=tuple(move for move in decision.moves if move.name not in held),
    )
    return decision, memory


def _held(finding: Finding, value: float | None, reason: Reason, told: str) -> Finding:
    return Finding(value, reason, f"{finding.message}, but {told}")
