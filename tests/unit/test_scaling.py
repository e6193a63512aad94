"""What is said of sizes, and what of them stands in the status."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from prefleet_operator.api import Actuator, ConditionType, Role, SizingStatus, parse_spec
from prefleet_operator.core.deletion_cost import FOLLOWED_S
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.scaling import judge_room, judge_scaling, scale_events
from prefleet_operator.core.sizing.arbiter import Act, WaitsMemory
from prefleet_operator.core.sizing.state import (
    CLOCK_SKEW_S,
    STEADY_S,
    SizingState,
    recall_memory,
    recall_state,
    tell,
    to_status,
)
from prefleet_operator.core.sizing.turn import with_replicas
from prefleet_operator.core.sizing.values import Capacity, Mark, RoleMemory, RoleSize, SizingMemory
from prefleet_operator.core.status import TRUE, Verdict, headline, merge_conditions

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
BLIND = RoleSize(D, 1, Reason.METRICS_STALE, "1 decode pods stay: KV use: the last reading is of 2023-11-14T22:13:20Z")
UNLEARNT = RoleSize(P, 3, Reason.LEARNING_CAPACITY, "3 prefill pods stay: no pod has yet been busy")


def told_of(*sizes: RoleSize) -> SizingStatus:
    """The status of a fleet of such sizes."""
    before = {size.role: 3 for size in sizes}
    return to_status(SizingState(Actuator.DIRECT, sizes={size.role: size for size in sizes}, before=before), None, NOW)


@pytest.mark.parametrize(
    ("sizes", "status", "reason"),
    [
        pytest.param([GROWS, STAYS], "True", "Demand", id="both follow the load"),
        pytest.param([GROWS, BLIND], "Unknown", "MetricsStale", id="one of them is blind"),
        pytest.param([UNLEARNT, STAYS], "False", "LearningCapacity", id="one of them is still learning"),
    ],
)
def test_scaling_active(sizes: list[RoleSize], status: str, reason: str) -> None:
    verdict = judge_scaling(told_of(*sizes), SPEC, NOW)
    assert (verdict.status.value, verdict.reason.value) == (status, reason)
    assert all(size.message in verdict.message for size in sizes)


def test_a_number_in_other_hands_goes_before_one_that_is_blind_and_shows_in_the_column_reason() -> None:
    held = RoleSize(
        P, 3, Reason.SCALED_BY_ANOTHER, "3 prefill pods stay: HorizontalPodAutoscaler mine sets their number"
    )
    verdict = judge_scaling(told_of(BLIND, held), SPEC, NOW)
    assert (verdict.status.value, verdict.reason) == ("False", Reason.SCALED_BY_ANOTHER)
    served = Verdict(ConditionType.READY, TRUE, Reason.PODS_READY, "All pods are ready.")
    assert headline(merge_conditions([], [served, verdict], 1, NOW)) == "ScaledByAnother"


@pytest.mark.parametrize(
    ("actuator", "has", "after_s", "late"),
    [
        pytest.param(Actuator.HPA, 3, FOLLOWED_S, True, id="nobody follows"),
        pytest.param(Actuator.KEDA, 3, FOLLOWED_S, True, id="KEDA does not"),
        pytest.param(Actuator.HPA, 3, FOLLOWED_S - 1, False, id="it may still come"),
        pytest.param(Actuator.HPA, 5, FOLLOWED_S, False, id="it has come"),
        pytest.param(Actuator.DIRECT, 3, FOLLOWED_S, False, id="the operator sets it itself"),
    ],
)
def test_a_number_that_nobody_follows_is_said(actuator: Actuator, has: int, after_s: float, late: bool) -> None:
    told = to_status(replace(STATE, actuator=actuator), None, NOW)
    verdict = judge_scaling(told, with_replicas(SPEC, {P: has}), NOW + after_s)
    assert (verdict.reason is Reason.NOT_FOLLOWED) is late
    served = Verdict(ConditionType.READY, TRUE, Reason.PODS_READY, "All pods are ready.")
    conditions = merge_conditions([], [served, verdict], 1, NOW)
    assert headline(conditions) == ("NotFollowed" if late else "PodsReady")
    if late:
        assert verdict.status.value == "False"
        assert verdict.message.startswith("There are 3 of 5 prefill pods: ")
        assert "has not followed in 180 seconds; kubectl describe " in verdict.message


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
            limited(Reason.AT_MAX_REPLICAS, 8, 3), "AtMaxReplicas",
            "prefill needs more than 8 pods and may have 8: raise spec.autoscaling.prefill.maxReplicas, or lower the "
            "load.",
            id="for the ratio, or for long waits, which its own need does not tell",
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
    verdict = judge_room(told_of(STAYS, size), SPEC)
    assert verdict is not None
    assert (verdict.status.value, verdict.reason.value, verdict.message) == ("True", reason, told)


def test_sizes_that_are_not_limited_say_nothing_of_capacity() -> None:
    assert judge_room(told_of(GROWS, STAYS), SPEC) is None


MEMORY = SizingMemory(
    {
        P: RoleMemory(
            needs=(Mark(int(NOW) - 600, 3.0),),
            demands=(Mark(int(NOW), 4.2),),
            capacity=Capacity(0.9, 0.1),
            fell_at_s=int(NOW) - 50,
        )
    },
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
    recalled = recall_state(read, Actuator.HPA, 600, {}, NOW)
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
        pytest.param(STATE, None, id="nothing"),
        pytest.param(resize(replace(GROWS, message=GROWS.message.replace("4.2", "4.3e-05"))), None, id="a number"),
        pytest.param(replace(STATE, memory=SizingMemory(waits=MEMORY.waits)), None, id="what was seen"),
        pytest.param(resize(replace(GROWS, desired=6)), 0, id="the number of pods"),
        pytest.param(resize(replace(GROWS, reason=Reason.DAMPED)), STEADY_S, id="the reason"),
        pytest.param(resize(replace(GROWS, limited=True)), STEADY_S, id="that it may not have more"),
        pytest.param(resize(replace(GROWS, message="something else")), STEADY_S, id="the words"),
        pytest.param(STATE.with_waits(WaitsMemory(Act.TUNE, int(NOW))), 0, id="who acted on long waits"),
        pytest.param(replace(STATE, actuator=Actuator.KEDA), 0, id="the actuator"),
    ],
)
def test_the_status_is_written_anew_only_where_something_has_changed(state: SizingState, written: float | None) -> None:
    before, after_s = to_status(STATE, None, NOW), 0.0
    while True:
        state, after = tell(state, before, False, NOW + after_s)
        if after is not before or after_s > STEADY_S:
            break
        after_s += 15.0
    assert (None if after is before else after_s) == written


def test_what_comes_and_goes_is_not_said() -> None:
    before, state = to_status(STATE, None, NOW), STATE
    damped = replace(GROWS, reason=Reason.DAMPED)
    for turn in range(100):
        sizes = {**STATE.sizes, P: damped if turn % 3 else GROWS}
        state, after = tell(replace(state, sizes=sizes), before, False, NOW + turn * 15)
        assert after is before


def test_that_a_role_is_not_measured_is_said_after_a_minute_and_that_it_is_again_at_once() -> None:
    blind = resize(replace(GROWS, reason=Reason.METRICS_MISSING))
    told = to_status(blind, None, NOW)
    _, again = tell(STATE, told, False, NOW + 1)
    assert again.roles[0].reason == GROWS.reason
    lost, still = tell(blind, again, False, NOW + 2)
    assert still is again
    assert tell(lost, again, False, NOW + 2 + STEADY_S)[1].roles[0].reason == "MetricsMissing"


def test_a_changed_spec_brings_its_words_at_once() -> None:
    before = to_status(STATE, None, NOW)
    _, after = tell(resize(replace(GROWS, reason=Reason.DAMPED)), before, True, NOW)
    assert after.roles[0].reason == "Damped"


def test_a_reason_that_somebody_has_written_into_the_status_is_replaced() -> None:
    told = to_status(STATE, None, NOW)
    spoilt = told.model_copy(update={"roles": [told.roles[0].model_copy(update={"reason": "Magic"}), told.roles[1]]})
    assert tell(STATE, spoilt, False, NOW)[1] == told


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
        pytest.param(spoilt(capacity=[0.0, 0.0]), False, id="pods that do nothing"),
        pytest.param(spoilt(tokenCapacity=[8000.0, -1.0]), False, id="pods that differ by less than nothing"),
        pytest.param(spoilt(demands=[[int(NOW), 1.0]] * 1000), False, id="a memory without end"),
        pytest.param(spoilt(glances=[[int(NOW), 1.0, 0.1, 2.0]] * 1000), False, id="glances without end"),
        pytest.param(spoilt(raised=[FUTURE, 9.0]), False, id="a raise that is yet to come"),
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
    assert recall_state(other, Actuator.DIRECT, 600, {}, NOW) == SizingState(Actuator.DIRECT)
