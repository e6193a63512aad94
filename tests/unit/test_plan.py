"""The decision about one fleet: what runs, under which generation, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prefleet_operator.api import (
    AutoscalingSpec,
    ConditionType,
    EffectiveStatus,
    PrefillPolicyStatus,
    Role,
    RoleBounds,
    SchedulingPolicy,
)
from prefleet_operator.core.measured import FIRST_METRICS_S
from prefleet_operator.core.observed import (
    FleetMetrics,
    HistogramSnapshot,
    Missing,
    PodTrouble,
    PodView,
    Reading,
    Sample,
    Stale,
)
from prefleet_operator.core.plan import UNTAKEN_S, Plan, make_plan
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.situation import LivePolicy, Situation
from prefleet_operator.core.status import find_condition
from prefleet_runtime.contract import PolicyName, RuntimePolicy

from tests.support.policies import make_spec

NOW = 1_700_000_000.0
PINNED: dict[str, Any] = {"threshold": 900, "longMaxWait": "4s"}
LENGTHS = HistogramSnapshot(bounds=(100.0, 1000.0), counts=(5.0, 5.0, 0.0))


def pod(name: str = "p0", role: Role = Role.PREFILL, generation: Reading[int] | None = None, **given: Any) -> PodView:
    reading = generation or Sample(1, NOW)
    defaults: dict[str, Any] = {"ip": "10.0.0.1", "ready": True, "ready_since_s": NOW - 3600}
    return PodView(name=name, role=role, reported_generation=reading, **(defaults | given))


def situation(**given: Any) -> Situation:
    defaults: dict[str, Any] = {
        "spec": make_spec(scheduling=PINNED),
        "generation": 1,
        "status": PrefillPolicyStatus(),
        "live": None,
        "metrics": FleetMetrics(),
    }
    return Situation(**(defaults | given))


def after(before: Situation, plan: Plan, **given: Any) -> Situation:
    """The situation once a plan has been carried out."""
    live = LivePolicy(plan.policy, plan.policy.generation)
    return replace(before, status=plan.status, live=live, **given)


def reasons(plan: Plan) -> dict[str, tuple[str, str]]:
    return {c.type.value: (c.status.value, c.reason) for c in plan.status.conditions}


def test_a_new_fleet_starts_with_generation_1() -> None:
    plan = make_plan(situation(), NOW)
    assert plan.policy == RuntimePolicy(
        generation=1, policy=PolicyName.SHORT_REQUEST_FIRST, threshold=900, long_max_wait_ms=4000
    )
    assert [move.reason for move in plan.status.history] == ["FleetCreated"]
    assert plan.events[0].message == "The fleet starts with ShortRequestFirst with threshold 900 and longMaxWait 4s."


def test_without_a_pin_and_without_samples_a_new_fleet_runs_fcfs_and_says_so() -> None:
    plan = make_plan(situation(spec=make_spec()), NOW)
    assert plan.policy.policy is PolicyName.FCFS
    assert plan.status.effective is not None
    assert plan.status.effective.policy is SchedulingPolicy.FCFS
    tuned = find_condition(plan.status.conditions, ConditionType.TUNED)
    assert tuned is not None
    assert "FCFS runs until a threshold is known" in tuned.message


@pytest.mark.parametrize("policy", ["FCFS", "PromoteShortest", "HRRN"])
def test_a_policy_without_a_threshold_runs_without_one_whatever_is_pinned(policy: str) -> None:
    plan = make_plan(situation(spec=make_spec(scheduling={"policy": policy, **PINNED})), NOW)
    assert plan.status.effective == EffectiveStatus(policy=SchedulingPolicy(policy), generation=1)
    assert plan.events[0].message == f"The fleet starts with {policy}."
    assert reasons(plan)["Tuned"] == ("False", "NothingToTune")


def test_the_way_to_hrrn_and_back_keeps_what_was_pinned() -> None:
    first = situation()
    there = after(first, make_plan(first, NOW), spec=make_spec(scheduling={"policy": "HRRN", **PINNED}))
    plan = make_plan(there, NOW + 5)
    assert (plan.policy.policy, plan.policy.threshold, plan.policy.generation) == (PolicyName.HRRN, None, 2)
    assert plan.events[0].message == "The spec changed; the fleet runs HRRN."
    back = make_plan(after(there, plan, spec=make_spec(scheduling=PINNED)), NOW + 10)
    assert (back.policy.policy, back.policy.threshold, back.policy.generation) == (
        PolicyName.SHORT_REQUEST_FIRST,
        900,
        3,
    )


def test_a_lost_status_adopts_no_tuning_from_a_policy_that_the_tuner_never_sets() -> None:
    live = LivePolicy(RuntimePolicy(generation=4, policy=PolicyName.HRRN), 4)
    plan = make_plan(situation(spec=make_spec(scheduling={"policy": "HRRN"}), live=live), NOW)
    assert plan.policy.generation == 4
    assert plan.status.tuning is not None
    assert plan.status.tuning.policy is None


def test_trust_in_clients_is_a_change_of_the_policy() -> None:
    first = situation()
    trusting = make_spec(scheduling={"trustClientPriority": True, **PINNED})
    plan = make_plan(after(first, make_plan(first, NOW), spec=trusting), NOW + 5)
    assert (plan.policy.trust_client_priority, plan.policy.generation) == (True, 2)


def test_a_plan_that_was_carried_out_is_the_same_plan_again() -> None:
    first = situation()
    plan = make_plan(first, NOW)
    again = make_plan(after(first, plan), NOW + 3)
    assert again.policy == plan.policy
    assert again.status == plan.status
    assert again.events == ()


def test_another_setting_gets_the_next_generation() -> None:
    first = situation()
    carried_out = after(first, make_plan(first, NOW))
    changed = replace(carried_out, spec=make_spec(scheduling=PINNED | {"threshold": 950}), generation=2)
    plan = make_plan(changed, NOW + 60)
    assert (plan.policy.generation, plan.policy.threshold) == (2, 950)
    assert plan.status.history[-1].reason == "SpecChanged"
    assert plan.status.observed_generation == 2


def test_a_lost_status_adopts_what_the_config_map_says() -> None:
    tuned = RuntimePolicy(generation=7, policy=PolicyName.SHORT_REQUEST_FIRST, threshold=640, long_max_wait_ms=3000)
    plan = make_plan(situation(spec=make_spec(), live=LivePolicy(tuned, 7)), NOW)
    assert plan.policy == tuned
    assert plan.status.history[-1].reason == "Adopted"


def test_an_operator_that_ended_between_config_map_and_status_adopts_its_own_last_move() -> None:
    first = situation(spec=make_spec())
    carried_out = after(first, make_plan(first, NOW))
    moved = RuntimePolicy(generation=2, policy=PolicyName.SHORT_REQUEST_FIRST, threshold=640, long_max_wait_ms=3000)
    plan = make_plan(replace(carried_out, live=LivePolicy(moved, 2)), NOW + 60)
    assert plan.policy == moved
    assert [move.generation for move in plan.status.history] == [1, 2]


def test_a_config_map_that_somebody_changed_is_put_right_under_a_higher_generation() -> None:
    first = situation()
    plan = make_plan(first, NOW)
    foreign = LivePolicy(plan.policy.model_copy(update={"threshold": 5, "generation": 40}), 40, ours=False)
    corrected = make_plan(replace(after(first, plan), live=foreign), NOW + 60)
    assert (corrected.policy.generation, corrected.policy.threshold) == (41, 900)
    assert corrected.status.history[-1].reason == "DriftCorrected"


def test_a_config_map_that_cannot_be_read_does_not_turn_the_generation_back() -> None:
    first = situation()
    garbage = LivePolicy(policy=None, generation=12, ours=False)
    plan = make_plan(replace(after(first, make_plan(first, NOW)), live=garbage), NOW)
    assert plan.policy.generation == 13


def test_a_deleted_config_map_comes_back_above_the_generation_that_the_status_knows() -> None:
    first = situation()
    plan = make_plan(replace(after(first, make_plan(first, NOW)), live=None), NOW)
    assert plan.policy.generation == 2


def test_the_history_is_bounded() -> None:
    current = situation()
    for turn in range(25):
        spec = make_spec(scheduling=PINNED | {"threshold": 100 + turn})
        current = after(current, make_plan(replace(current, spec=spec), NOW + turn))
    assert [move.generation for move in current.status.history] == list(range(16, 26))


def test_pods_whose_annotation_is_behind_are_annotated() -> None:
    pods = (pod("new"), pod("old"), pod("current"), pod("leaving", terminating=True))
    generations = {"new": None, "old": 3, "current": 1, "leaving": None}
    plan = make_plan(situation(pods=pods, pod_generations=generations), NOW)
    assert plan.annotate == ("new", "old")


@pytest.mark.parametrize(
    ("lengths", "ready_for_s", "expected"),
    [
        pytest.param(Sample(LENGTHS, NOW), 3600, ("True", "MetricsFresh"), id="fresh lengths are available"),
        pytest.param(Missing("down."), 3600, ("False", "MetricsMissing"), id="missing is False"),
        pytest.param(Missing("down."), FIRST_METRICS_S - 1, ("Unknown", "MetricsMissing"), id="a new pod gets time"),
        pytest.param(Stale(LENGTHS, NOW - 90), 3600, ("False", "MetricsStale"), id="stale is False"),
    ],
)
def test_metrics_available(lengths: Reading[HistogramSnapshot], ready_for_s: float, expected: tuple[str, str]) -> None:
    pods = (pod(ready_since_s=NOW - ready_for_s),)
    plan = make_plan(situation(metrics=FleetMetrics(lengths=lengths), pods=pods), NOW)
    assert reasons(plan)["MetricsAvailable"] == expected


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_a_pod_that_has_just_become_ready_hides_no_loss_of_the_others(role: Role) -> None:
    """Else a fleet that rolls, or whose pods come and go, would be said to be measured soon for as long as it does."""
    pods = (pod("old"), pod("new", role, ready_since_s=NOW - 1))
    plan = make_plan(situation(metrics=FleetMetrics(lengths=Missing("down.")), pods=pods), NOW)
    assert reasons(plan)["MetricsAvailable"] == ("False", "MetricsMissing")


def test_an_unknown_metrics_source_is_named_with_those_that_there_are() -> None:
    spec = make_spec().model_copy(update={"metrics_source": "nowhere"})
    plan = make_plan(situation(spec=spec, sources=("PodScrape", "cluster")), NOW)
    (condition,) = [c for c in plan.status.conditions if c.type.value == "MetricsAvailable"]
    assert condition.reason == "UnknownMetricsSource"
    assert "name one of PodScrape, cluster" in condition.message
    assert [event.warning for event in plan.events if event.reason == "UnknownMetricsSource"] == [True]


def test_ages_that_tick_do_not_change_the_status() -> None:
    first = situation(metrics=FleetMetrics(lengths=Stale(LENGTHS, NOW - 90)), pods=(pod(),))
    plan = make_plan(first, NOW)
    assert make_plan(after(first, plan), NOW + 5).status == plan.status


def test_no_older_copy_and_no_garbage_in_the_config_map_turns_the_generation_back() -> None:
    current = situation()
    for threshold in (900, 910, 920):
        spec = make_spec(scheduling=PINNED | {"threshold": threshold})
        current = after(current, make_plan(replace(current, spec=spec), NOW), spec=spec)
    running = current.live
    assert running is not None
    assert running.policy is not None
    older_copy = LivePolicy(running.policy.model_copy(update={"generation": 1}), 1, ours=False)
    for live in (older_copy, LivePolicy(policy=None, generation=0, ours=False), None):
        assert make_plan(replace(current, live=live), NOW).policy.generation == 4


def test_a_deleted_config_map_is_not_told_as_a_new_fleet() -> None:
    first = situation()
    plan = make_plan(replace(after(first, make_plan(first, NOW)), live=None), NOW)
    assert plan.status.history[-1].reason == "DriftCorrected"


@pytest.mark.parametrize(
    ("waited_s", "reason"),
    [
        pytest.param(UNTAKEN_S - 1, "PodsNotReady", id="a controller has a minute to take notice"),
        pytest.param(UNTAKEN_S, "RolloutStuck", id="after that it is said that none runs"),
    ],
)
def test_a_group_set_that_no_controller_takes_up_is_said_to_be_so(waited_s: int, reason: str) -> None:
    plan = make_plan(situation(untaken={Role.PREFILL: NOW - waited_s}), NOW)
    (ready,) = (each for each in plan.status.conditions if each.type.value == "Ready")
    assert (ready.status.value, ready.reason) == ("False", reason)
    assert ("no controller has taken up its LeaderWorkerSet" in ready.message) is (reason == "RolloutStuck")


def crashing(name: str) -> PodView:
    return pod(name, ready=False, trouble=PodTrouble(Reason.ENGINE_CRASHING, 'container engine ends: "no"'))


def test_a_fault_of_a_pod_is_one_warning_and_its_end_one_event() -> None:
    """The status is False from the start, and what is told of it changes."""
    given, now, told = situation(status=make_plan(situation(), NOW).status), NOW, []
    for pods in [(), (crashing("a"),), (crashing("a"),), (pod("a"), pod("b"), pod("c", Role.DECODE))]:
        now += 10
        plan = make_plan(replace(given, pods=pods), now)
        told.append([(event.reason.value, event.warning) for event in plan.events if "Ready is" in event.message])
        given = after(given, plan)
    assert told == [[], [("EngineCrashing", True)], [], [("PodsReady", False)]]


def degraded_by(counted: float) -> FleetMetrics:
    return FleetMetrics(degradations=Sample(counted, NOW))


def test_what_should_never_be_true_warns_when_it_is_and_tells_its_end() -> None:
    given, told = situation(pods=(pod(),)), []
    for counted in (0.0, 4.0, 2.0, 7.0, 0.0):
        plan = make_plan(replace(given, metrics=degraded_by(counted)), NOW)
        told.append([(event.reason.value, event.warning) for event in plan.events if "Degraded" in event.message])
        given = after(given, plan)
    assert told == [[], [("LongsHeldBack", True)], [], [], [("ServingAsSet", False)]]


def test_the_status_leads_with_what_is_wrong() -> None:
    ready = (pod("a"), pod("b"), pod("c", Role.DECODE))
    assert make_plan(situation(), NOW).status.reason == "PodsNotReady"
    assert make_plan(situation(pods=(crashing("a"),)), NOW).status.reason == "EngineCrashing"
    assert make_plan(situation(pods=ready), NOW).status.reason == "MetricsMissing"
    measured = FleetMetrics(lengths=Sample(LENGTHS, NOW), degradations=Sample(0, NOW))
    assert make_plan(situation(pods=ready, metrics=measured), NOW).status.reason == "PodsReady"


def test_degradations_that_count_up_do_not_change_the_status() -> None:
    given = situation(pods=(pod(),), metrics=degraded_by(4))
    first = make_plan(given, NOW)
    second = make_plan(replace(after(given, first), metrics=degraded_by(11)), NOW + 3)
    assert second.status == first.status


SIZED = make_spec(scheduling=PINNED).model_copy(
    update={"autoscaling": AutoscalingSpec(prefill=RoleBounds(min_replicas=1, max_replicas=8))}
)
"""2 prefill pods, 1 of which it must have; 1 decode pod."""


def grown(*others: PodView) -> Situation:
    """A fleet that served with one prefill pod, all of whose pods proved the setting, once `others` are there too."""
    measured = FleetMetrics(lengths=Sample(LENGTHS, NOW))
    first = situation(spec=SIZED, metrics=measured, pods=(pod("p0"), pod("d0", Role.DECODE)))
    return after(first, make_plan(first, NOW), pods=(*first.pods, *others))


def test_a_fleet_without_room_to_grow_is_ready_and_warns_once_of_its_capacity() -> None:
    homeless = pod("p1", ready=False, trouble=PodTrouble(Reason.UNSCHEDULABLE, "no node takes it"))
    plan = make_plan(grown(homeless), NOW + 5)
    assert reasons(plan)["Ready"] == ("True", "Scaling")
    assert reasons(plan)["CapacityLimited"] == ("True", "Unschedulable")
    assert plan.status.reason == "Unschedulable"
    assert [event.reason for event in plan.events if event.warning] == [Reason.UNSCHEDULABLE]


def test_a_fleet_that_grows_goes_on_to_be_active_before_its_new_pod_was_read() -> None:
    unread = pod("p1", generation=Missing("not asked yet"), ready_since_s=NOW + 595, created_s=NOW + 300)
    before = grown(unread)
    assert reasons(make_plan(before, NOW))["PolicyActive"] == ("True", "GenerationReported")
    assert reasons(make_plan(before, NOW + 600))["PolicyActive"] == ("True", "GenerationReported")
    assert reasons(make_plan(before, NOW + 660))["PolicyActive"] == ("Unknown", "Propagating")
