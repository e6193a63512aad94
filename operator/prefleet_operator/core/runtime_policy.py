"""From a decision to the documents that the pods read.

Prefill and mixed pods run the decided policy; decode pods always run first come first served, since their
queue holds requests whose prefill is done. Both carry the same generation, which is the proof that a
change has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefleet_runtime.contract import LengthKind, PolicyName, RuntimePolicy

from prefleet_operator.api import LengthMeasure, PrefillPolicySpec, SchedulingPolicy
from prefleet_operator.core.tuning import TuningDecision

_POLICY_NAMES = {
    SchedulingPolicy.FCFS: PolicyName.FCFS,
    SchedulingPolicy.SHORT_REQUEST_FIRST: PolicyName.SHORT_REQUEST_FIRST,
}
_LENGTH_KINDS = {LengthMeasure.UNCACHED: LengthKind.UNCACHED, LengthMeasure.PROMPT: LengthKind.PROMPT}


@dataclass(frozen=True, slots=True)
class RuntimePolicies:
    """The two documents of one fleet: for prefill and mixed pods, and for decode pods."""

    prefill: RuntimePolicy
    decode: RuntimePolicy

    def same_setting(self, other: RuntimePolicies) -> bool:
        """Whether both say the same, whatever their generations."""
        return self.with_generation(0) == other.with_generation(0)

    def with_generation(self, generation: int) -> RuntimePolicies:
        """The same documents under another generation."""
        update = {"generation": generation}
        return RuntimePolicies(self.prefill.model_copy(update=update), self.decode.model_copy(update=update))


def to_runtime_policies(decision: TuningDecision, spec: PrefillPolicySpec, generation: int) -> RuntimePolicies:
    """The documents that make the fleet run `decision`."""
    length = _LENGTH_KINDS[spec.scheduling.length]
    return RuntimePolicies(
        prefill=RuntimePolicy(
            generation=generation,
            policy=_POLICY_NAMES[decision.policy],
            threshold=decision.threshold,
            long_max_wait_ms=round(decision.long_max_wait_s * 1000),
            aged_share=spec.scheduling.aged_share,
            length=length,
        ),
        decode=RuntimePolicy(generation=generation, aged_share=spec.scheduling.aged_share, length=length),
    )


def next_generation(live: RuntimePolicies | None, wanted: RuntimePolicies) -> RuntimePolicies:
    """`wanted` under the live generation if it says the same, else under the next one; 1 for a new fleet."""
    if live is None:
        return wanted.with_generation(1)
    if live.same_setting(wanted):
        return live
    return wanted.with_generation(live.prefill.generation + 1)
