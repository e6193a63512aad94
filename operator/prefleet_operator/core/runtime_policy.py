"""From a decision to the document that prefill and mixed pods read.

Decode pods get a document of their own with the same generation, derived where the ConfigMap is rendered.
"""

from __future__ import annotations

from prefleet_runtime.contract import LengthKind, PolicyName, RuntimePolicy

from prefleet_operator.api import LengthMeasure, PrefillPolicySpec, SchedulingPolicy
from prefleet_operator.core.tuning import TuningDecision

_POLICY_NAMES = {
    SchedulingPolicy.FCFS: PolicyName.FCFS,
    SchedulingPolicy.PROMOTE_SHORTEST: PolicyName.PROMOTE_SHORTEST,
    SchedulingPolicy.HRRN: PolicyName.HRRN,
    SchedulingPolicy.SHORT_REQUEST_FIRST: PolicyName.SHORT_REQUEST_FIRST,
}
_USERS_NAMES = {name: policy for policy, name in _POLICY_NAMES.items()}
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
        trust_client_priority=spec.scheduling.trust_client_priority,
    )


def to_scheduling_policy(name: PolicyName) -> SchedulingPolicy:
    """The policy of a document, as users name it."""
    return _USERS_NAMES[name]
