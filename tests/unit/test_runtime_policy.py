"""What a decision makes the pods run."""

from prefleet_operator.api import SchedulingPolicy
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.runtime_policy import to_runtime_policy
from prefleet_operator.core.tuning import Finding, TuningDecision
from prefleet_runtime.contract import LengthKind, PolicyName, RuntimePolicy

from tests.support.policies import make_spec

PINNED = Finding(None, Reason.PINNED, "pinned")


def decided(policy: SchedulingPolicy, threshold: int | None, long_max_wait_s: float) -> TuningDecision:
    return TuningDecision(policy, threshold, long_max_wait_s, policy, PINNED, PINNED)


def test_short_request_first_carries_its_values_in_the_units_of_the_runtime():
    spec = make_spec({"agedShare": 0.5, "length": "Prompt"})
    decision = decided(SchedulingPolicy.SHORT_REQUEST_FIRST, 1218, 5.9487)
    assert to_runtime_policy(decision, spec, 7) == RuntimePolicy(
        generation=7,
        policy=PolicyName.SHORT_REQUEST_FIRST,
        threshold=1218,
        long_max_wait_ms=5949,
        aged_share=0.5,
        length=LengthKind.PROMPT,
    )


def test_fcfs_carries_no_threshold():
    policy = to_runtime_policy(decided(SchedulingPolicy.FCFS, None, 0.0), make_spec(), 1)
    assert (policy.policy, policy.threshold, policy.long_max_wait_ms) == (PolicyName.FCFS, None, 0)
