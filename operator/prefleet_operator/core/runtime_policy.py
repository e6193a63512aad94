"""From a decision to the document that prefill and mixed pods read.

Decode pods get the same generation and always run first come first served, since their queue holds requests
whose prefill is done; that document is derived where the ConfigMap is rendered.
"""

from __future__ import annotations

from prefleet_runtime.contract import LengthKind, PolicyName, RuntimePolicy

from prefleet_operator.api import LengthMeasure, PrefillPolicySpec, SchedulingPolicy
from prefleet_operator.core.tuning import TuningDecision

_POLICY_NAMES = {
    SchedulingPolicy.FCFS: PolicyName.FCFS,
    SchedulingPolicy.SHORT_REQUEST_FIRST: PolicyName.SHORT_REQUEST_FIRST,
}
_LENGTH_KINDS = {LengthMeasure.UNCACHED: LengthKind.UNCACHED, LengthMeasure.PROMPT: LengthKind.PROMPT}


def to_runtime_policy(decision: TuningDecision, spec: PrefillPolicySpec, generation: int) -> RuntimePolicy:
    """The document that makes the fleet run `decision`."""
    return RuntimePolicy(
        generation=generation,
        policy=_POLICY_NAMES[decision.policy],
        threshold=decision.threshold,
        long_max_wait_ms=round(decision.long_max_wait_s * 1000),
        aged_share=spec.scheduling.aged_share,
        length=_LENGTH_KINDS[spec.scheduling.length],
    )
