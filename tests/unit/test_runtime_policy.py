"""What a decision makes the pods run."""

from typing import Any

import pytest
from prefleet_operator.api import SchedulingPolicy
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.runtime_policy import to_runtime_policy, to_scheduling_policy
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


@pytest.mark.parametrize(
    ("users", "runtimes"),
    [
        pytest.param({}, {"long_chunk": "yield", "stage": {"type": "mixed"}}, id="longs yield by default"),
        pytest.param(
            {"longChunk": "Cap", "longChunkTokens": 300}, {"long_chunk": "cap", "long_chunk_tokens": 300}, id="a cap"
        ),
        pytest.param({"longChunk": "Off"}, {"long_chunk": "off"}, id="the engine's own way"),
        pytest.param(
            {
                "stage": {"type": "TPT", "prefillPerRequest": "80ms", "decodePerRequest": "0.5ms", "maxBatch": 64},
            },
            {
                "stage": {
                    "type": "tpt",
                    "prefill_ms_per_request": 80.0,
                    "decode_ms_per_request": 0.5,
                    "max_batch": 64,
                }
            },
            id="steps of decode alone, in milliseconds",
        ),
        pytest.param(
            {"stage": {"type": "StallBudget", "maxStall": "1.5s"}},
            {"stage": {"type": "stall_budget", "max_stall_ms": 1500.0}},
            id="a stall budget, in milliseconds",
        ),
    ],
)
def test_the_step_budget_reaches_the_runtime(users: dict[str, Any], runtimes: dict[str, Any]) -> None:
    decision = decided(SchedulingPolicy.SHORT_REQUEST_FIRST, 1000, 5)
    document = to_runtime_policy(decision, make_spec(users), 7).model_dump(mode="json")
    assert document | runtimes == document


@pytest.mark.parametrize(
    ("users", "runtimes"),
    [
        (SchedulingPolicy.FCFS, PolicyName.FCFS),
        (SchedulingPolicy.PROMOTE_SHORTEST, PolicyName.PROMOTE_SHORTEST),
        (SchedulingPolicy.HRRN, PolicyName.HRRN),
    ],
)
def test_a_policy_without_a_threshold_carries_none(users, runtimes):
    policy = to_runtime_policy(decided(users, None, 0.0), make_spec(), 1)
    assert (policy.policy, policy.threshold, policy.long_max_wait_ms) == (runtimes, None, 0)


def test_every_policy_has_one_name_on_each_side():
    own = {to_scheduling_policy(name) for name in PolicyName}
    assert own == set(SchedulingPolicy) - {SchedulingPolicy.SHORTEST_PREFILL_FIRST}
    assert all(to_scheduling_policy(name).has_threshold is name.has_threshold for name in PolicyName)


def test_trust_in_clients_reaches_the_runtime_under_every_policy():
    spec = make_spec({"trustClientPriority": True})
    assert to_runtime_policy(decided(SchedulingPolicy.HRRN, None, 0.0), spec, 1).trust_client_priority
    assert not to_runtime_policy(decided(SchedulingPolicy.HRRN, None, 0.0), make_spec(), 1).trust_client_priority
