"""What is said of sizes, and what of them stands in the status."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from prefleet_operator.api import Actuator, Role, SizingStatus, parse_spec
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.scaling import judge_room, judge_scaling, scale_events
from prefleet_operator.core.sizing.arbiter import Act, WaitsMemory
from prefleet_operator.core.sizing.state import CLOCK_SKEW_S, SizingState, recall_memory, recall_state, to_status
from prefleet_operator.core.sizing.values import Capacity, Mark, RoleMemory, RoleSize, SizingMemory

NOW = 1_700_000_000.0
P, D = Role.PREFILL, Role.DECODE
SPEC = parse_spec(
    {
        "model": {"source": {"hub": {"repo": "example/model"}}, "servedName": "model"},
        "engine": {"type": "Simulator"},
        "prefill": {"replicas": 3, "accelerator": {"resource": "nvidia.com/gpu", "count": 4}},
        "decode": {"replicas": 1},
        "autoscaling": {"prefill": {"maxReplicas": 8}, "decode": {"maxReplicas": 4}, "maxAccelerators": 20},
    }
)
GROWS = RoleSize(P, 5, Reason.DEMAND, "5 prefill pods, 5 needed: workPerSecond 4.2", {"needed": 5, "byGap": math.inf})
STAYS = RoleSize(D, 1, Reason.DECODE_LOAD, "1 decode pods, 1 needed: byKV 0.3", {"needed": 1})
BLIND = RoleSize(D, 1, Reason.METRICS_STALE, "1 decode pods stay: KV use: the last reading is of 1700000000")
UNLEARNT = RoleSize(P, 3, Reason.LEARNING_CAPACITY, "3 prefill pods stay: no pod has yet been busy")


@pytest.mark.parametrize(
    ("sizes", "status", "reason"),
    [
        pytest.param([GROWS, STAYS], "True", "Demand", id="both follow the load"),
        pytest.param([GROWS, BLIND], "Unknown", "MetricsStale", id="one of them is blind"),
        pytest.param([UNLEARNT, STAYS], "False", "LearningCapacity", id="one of them is still learning"),
    ],
)
def test_scaling_active(sizes: list[RoleSize], status: str, reason: str) -> None:
    verdict = judge_scaling({size.role: size for size in sizes}, noisy=False)
    assert (verdict.status.value, verdict.reason.value) == (status, reason)
    assert all(size.message in verdict.message for size in sizes)


def limited(reason: Reason, desired: int, needed: int) -> RoleSize:
    return replace(GROWS, reason=reason, desired=desired, numbers={"needed": needed}, limited=True)


@pytest.mark.parametrize(
    ("size", "reason", "told"),
    [
        pytest.param(
            limited(Reason.AT_MAX_REPLICAS, 8, 12), "AtMaxReplicas",
            "prefill needs 12 pods and may have 8: raise spec.autoscaling.prefill.maxReplicas, or lower the load.",
            id="more than its bound",
        ),
        pytest.param(
            limited(Reason.DAMPED, 6, 9), "AtMaxReplicas",
            "prefill needs more than 8 pods and may have 8: raise spec.autoscaling.prefill.maxReplicas, or lower the "
            "load.",
            id="on its way there, and how many more was not searched for",
        ),
        pytest.param(
            limited(Reason.QUOTA_EXHAUSTED, 5, 7), "QuotaExhausted",
            "prefill needs 7 pods of 4 accelerators each and has 5, since spec.autoscaling.maxAccelerators is 20: "
            "raise it, or lower the load.",
            id="more than the accelerators allow",
        ),
    ],
)  # fmt: skip
def test_what_limits_a_fleet_is_said_with_what_to_raise(size: RoleSize, reason: str, told: str) -> None:
    verdict = judge_room({D: STAYS, P: size}, SPEC, noisy=False)
    assert verdict is not None
    assert (verdict.status.value, verdict.reason.value, verdict.message) == ("True", reason, told)


def test_sizes_that_are_not_limited_say_nothing_of_capacity() -> None:
    assert judge_room({P: GROWS, D: STAYS}, SPEC, noisy=False) is None


MEMORY = SizingMemory(
    {P: RoleMemory((Mark(int(NOW) - 600, 3.0),), (Mark(int(NOW), 4.2),), Capacity(0.9, 0.1), None, int(NOW) - 50)},
    WaitsMemory(Act.SCALE, int(NOW) - 100),
)
STATE = SizingState(Actuator.DIRECT, MEMORY, {P: 5, D: 1}, {P: GROWS, D: STAYS}, {P: 3, D: 1}, NOW, 1)


def resize(size: RoleSize, **given: Any) -> SizingState:
    return replace(STATE, sizes=STATE.sizes | {size.role: size}, **given)


def test_one_event_for_each_number_that_changes() -> None:
    assert [(event.reason, event.message) for event in scale_events(None, STATE)] == [
        (Reason.SCALED, "prefill 3 -> 5: 5 prefill pods, 5 needed: workPerSecond 4.2")
    ]
    told = to_status(STATE, None, NOW)
    assert list(scale_events(told, STATE)) == [], "what the status says has been told"
    (event,) = scale_events(None, replace(STATE, actuator=Actuator.HPA))
    assert event.message.startswith("prefill 3 -> 5 (asked of the HorizontalPodAutoscaler): ")


def test_the_status_travels_in_json_and_is_recalled_as_it_was() -> None:
    status = to_status(STATE, None, NOW)
    assert status.roles[0].numbers == {"needed": 5}, "JSON has no infinity"
    assert (status.roles[0].moved_at, status.roles[1].moved_at) == ("2023-11-14T22:13:20Z", None)
    read = SizingStatus.model_validate(json.loads(json.dumps(status.to_resource())))
    recalled = recall_state(read, Actuator.HPA, 600, NOW)
    assert recalled.wanted == STATE.wanted
    assert recalled.actuator is Actuator.DIRECT, "who set the number before"
    assert recalled.memory.waits == MEMORY.waits
    needs = recalled.memory.roles[P].needs
    assert needs[:-1] == MEMORY.roles[P].needs
    assert needs[-1].value == 5, "what stood was needed, for all that is known"
    assert replace(recalled.memory.roles[P], needs=MEMORY.roles[P].needs) == MEMORY.roles[P]


@pytest.mark.parametrize(
    ("state", "written"),
    [
        pytest.param(STATE, False, id="nothing"),
        pytest.param(resize(replace(GROWS, message=GROWS.message.replace("4.2", "4.3e-05"))), False, id="a number"),
        pytest.param(replace(STATE, memory=SizingMemory(waits=MEMORY.waits)), False, id="what was seen"),
        pytest.param(resize(replace(GROWS, desired=6)), True, id="the number of pods"),
        pytest.param(resize(replace(GROWS, reason=Reason.DAMPED)), True, id="the reason"),
        pytest.param(resize(replace(GROWS, message="something else")), True, id="the words"),
        pytest.param(STATE.with_waits(WaitsMemory(Act.TUNE, int(NOW))), True, id="who acted on long waits"),
        pytest.param(replace(STATE, actuator=Actuator.KEDA), True, id="the actuator"),
    ],
)
def test_the_status_is_written_anew_only_where_something_has_changed(state: SizingState, written: bool) -> None:
    before = to_status(STATE, None, NOW)
    after = to_status(state, before, NOW + 60)
    assert (after is not before) is written


def test_a_number_keeps_the_time_of_its_last_change() -> None:
    first = to_status(STATE, None, NOW)
    same = to_status(resize(replace(GROWS, reason=Reason.DAMPED)), first, NOW + 60)
    moved = to_status(resize(replace(GROWS, desired=6)), same, NOW + 120)
    assert [status.roles[0].moved_at for status in (first, same, moved)] == [
        "2023-11-14T22:13:20Z", "2023-11-14T22:13:20Z", "2023-11-14T22:15:20Z"
    ]  # fmt: skip


def spoilt(**part: Any) -> dict[str, Any]:
    record = MEMORY.to_record()
    return record | {"roles": {"prefill": record["roles"]["prefill"] | part}}


FUTURE = int(NOW + CLOCK_SKEW_S + 1)


@pytest.mark.parametrize(
    ("record", "kept"),
    [
        pytest.param(MEMORY.to_record(), True, id="what was written"),
        pytest.param({}, False, id="nothing"),
        pytest.param({"roles": {"router": {}}}, False, id="a role that is none"),
        pytest.param({"roles": "prefill"}, False, id="a word for the roles"),
        pytest.param(spoilt(needs=[[1]]), False, id="half a mark"),
        pytest.param(spoilt(needs=[[None, 2.0]]), False, id="a mark without a time"),
        pytest.param(spoilt(capacity=["much", 0]), False, id="a capacity in words"),
        pytest.param(spoilt(demands=[[int(NOW), 1.0]] * 1000), False, id="a memory without end"),
        pytest.param(spoilt(fellAt=FUTURE), False, id="a fall that is yet to come"),
        pytest.param(spoilt(needs=[[FUTURE, 2.0]]), False, id="a need that is yet to come"),
        pytest.param(MEMORY.to_record() | {"waitsAct": "Sleep"}, False, id="an act that is none"),
        pytest.param(MEMORY.to_record() | {"waitsActAt": FUTURE}, False, id="an act that is yet to come"),
    ],
)
def test_a_memory_that_is_none_begins_anew(record: dict[str, Any], kept: bool) -> None:
    assert recall_memory(record, NOW) == (MEMORY if kept else SizingMemory())


def test_a_state_of_another_version_is_forgotten() -> None:
    other = to_status(STATE, None, NOW).model_copy(update={"state_version": 2})
    assert recall_state(other, Actuator.DIRECT, 600, NOW) == SizingState(Actuator.DIRECT)
