"""Fleets whose engine is told its policy at its start: generations, restarts, and what is said of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from prefleet_operator.api import Move, PrefillPolicyStatus, Role, SchedulingPolicy, parse_spec
from prefleet_operator.app.gather import read_live
from prefleet_operator.app.records import ChildRecord
from prefleet_operator.core.native_policy import NATIVE_POLICY_FILE, NativePolicy, TptTimes
from prefleet_operator.core.observed import FleetMetrics, HistogramSnapshot, Missing, PodView, Reading, Sample
from prefleet_operator.core.plan import Plan, make_plan
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.situation import LivePolicy, Situation
from prefleet_operator.core.status import refused
from prefleet_operator.core.tuning import format_time
from prefleet_runtime.contract import PolicyName, RuntimePolicy

from tests.support.bad_specs import engine_document

NOW = 1_700_000_000.0
DAY_S = 24 * 3600
PINNED: dict[str, Any] = {"threshold": 900, "longMaxWait": "4s"}
# 600 requests of up to 100 tokens, 300 of up to 1,000 and 100 longer ones: P70 to P85 lies in the second bucket.
LENGTHS = HistogramSnapshot(bounds=(100.0, 1000.0, 10_000.0), counts=(600.0, 300.0, 100.0, 0.0))


def spec_of(kind: str, **change: Any) -> Any:
    return parse_spec(engine_document(kind, {f"spec.{path}": value for path, value in change.items()})["spec"])


def situation(kind: str, given: dict[str, Any] | None = None, **change: Any) -> Situation:
    defaults: dict[str, Any] = {
        "spec": spec_of(kind, **change),
        "generation": 1,
        "status": PrefillPolicyStatus(),
        "live": None,
        "metrics": FleetMetrics(),
    }
    return Situation(**(defaults | (given or {})))


def after(before: Situation, plan: Plan, **given: Any) -> Situation:
    """The situation once a plan has been carried out."""
    live = LivePolicy(plan.policy, plan.policy.generation)
    return replace(before, status=plan.status, live=live, **given)


def pod(name: str, role: Role, started_with: int | None, ready: bool = True) -> PodView:
    reading: Reading[int] = Missing("none.") if started_with is None else Sample(started_with, NOW)
    return PodView(name=name, role=role, ip="10.0.0.1", ready=ready, ready_since_s=NOW, reported_generation=reading)


def condition(plan: Plan, kind: str) -> tuple[str, str, str]:
    (found,) = (each for each in plan.status.conditions if each.type.value == kind)
    return found.status.value, found.reason, found.message


def test_a_fleet_starts_with_what_its_engine_is_told() -> None:
    plan = make_plan(situation("VLLMAscend", scheduling=PINNED), NOW)
    assert plan.policy == NativePolicy(
        generation=1, policy=SchedulingPolicy.SHORT_REQUEST_FIRST, threshold=900, long_max_wait_ms=4000
    )
    assert plan.status.effective is not None
    assert (plan.status.effective.threshold, plan.status.effective.long_max_wait) == (900, "4s")


def test_a_policy_that_the_runtime_cannot_run_is_remembered_too() -> None:
    first = situation("SGLang", **{"scheduling.policy": "ShortestPrefillFirst"})
    plan = make_plan(first, NOW)
    assert plan.policy.policy is SchedulingPolicy.SHORTEST_PREFILL_FIRST
    assert plan.events[0].message == "The fleet starts with ShortestPrefillFirst."
    assert make_plan(after(first, plan), NOW + 5).policy == plan.policy
    lost = replace(after(first, plan), status=PrefillPolicyStatus())
    assert make_plan(lost, NOW + 5).policy == plan.policy


UNCONCERNED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("VLLMAscend", {"scheduling": PINNED | {"agedShare": 0.5, "longChunk": "Cap", "length": "Prompt"}}),
    ("VLLMAscend", {"scheduling": PINNED | {"trustClientPriority": True}, "slo.interTokenGap": "1s"}),
    ("SGLang", {"scheduling": {"policy": "HRRN", "threshold": 77, "longMaxWait": "1s"}}),
    ("LightLLM", {"slo.longQueueWait": "20s", "tuning.window": "10m"}),
    ("MindIE", {"slo.interTokenGap": "1s", "slo.shortTTFT": "1s"}),
)


@pytest.mark.parametrize(("kind", "change"), UNCONCERNED, ids=str)
def test_what_does_not_reach_the_engine_restarts_nothing(kind: str, change: dict[str, Any]) -> None:
    first = situation(kind, **({"scheduling": PINNED} if kind == "VLLMAscend" else {}))
    plan = make_plan(first, NOW)
    assert make_plan(after(first, plan, spec=spec_of(kind, **change)), NOW + 5).policy == plan.policy


def test_mindies_times_follow_the_promised_gap_and_a_change_of_it_is_a_generation() -> None:
    stage = {"scheduling": {"policy": "FCFS", "stage": {"type": "TPT"}}}
    first = situation("MindIE", **stage)
    plan = make_plan(first, NOW)
    assert plan.policy == NativePolicy(generation=1, stage=TptTimes(prefill_ms=991, decode_ms=10, max_batch=200))
    assert "a prefill counts 991 ms and a decode 10 ms of TPT, so at most 1 prefills" in condition(plan, "Tuned")[2]
    relaxed = after(first, plan, spec=spec_of("MindIE", **stage, **{"slo.interTokenGap": "2s"}), generation=2)
    again = make_plan(relaxed, NOW + 5)
    assert again.policy == NativePolicy(generation=2, stage=TptTimes(prefill_ms=997, decode_ms=75, max_batch=200))
    assert again.status.history[-1].reason == "SpecChanged"


def test_an_engine_that_takes_over_from_another_gets_the_next_generation() -> None:
    old = RuntimePolicy(generation=5, policy=PolicyName.SHORT_REQUEST_FIRST, threshold=900, long_max_wait_ms=4000)
    plan = make_plan(situation("VLLMAscend", {"live": LivePolicy(old, 5)}, scheduling=PINNED), NOW)
    assert (plan.policy.generation, type(plan.policy)) == (6, NativePolicy)


SPOILT = (
    ("deleted", None),
    ("unreadable", LivePolicy(None, 1, ours=False)),
    ("changed", LivePolicy(NativePolicy(generation=1, threshold=5), 1, ours=False)),
)


@pytest.mark.parametrize("live", [live for _, live in SPOILT], ids=[name for name, _ in SPOILT])
def test_a_spoilt_config_map_that_no_pod_reads_restarts_nothing(live: LivePolicy | None) -> None:
    first = situation("VLLMAscend", scheduling=PINNED)
    plan = make_plan(first, NOW)
    again = make_plan(replace(after(first, plan), live=live), NOW + 5)
    assert again.policy == plan.policy
    changed = replace(
        after(first, plan), live=live, generation=2, spec=spec_of("VLLMAscend", scheduling=PINNED | {"threshold": 901})
    )
    assert make_plan(changed, NOW + 5).policy.generation == 2


@pytest.mark.parametrize("lost", [False, True], ids=["its ConfigMap is there", "its ConfigMap is gone"])
def test_what_a_refused_spec_changes_is_a_generation_once_it_is_accepted(lost: bool) -> None:
    """A status does not tell of MindIE's times, and a refusal counts as observed: the pods would be replaced under the
    old generation, and those not replaced yet would count as current."""
    first = situation("MindIE", **{"scheduling.stage": {"type": "TPT"}})
    plan = make_plan(first, NOW)
    spec = spec_of("MindIE", **{"scheduling.stage": {"type": "TPT"}, "slo.interTokenGap": "1s"})
    refusal = refused(plan.status, 2, Reason.APPLY_REFUSED, "The API server refuses it.", NOW)
    later = replace(after(first, plan), spec=spec, generation=2, status=refusal, **({"live": None} if lost else {}))
    again = make_plan(later, NOW + 5)
    assert isinstance(plan.policy, NativePolicy)
    assert isinstance(again.policy, NativePolicy)
    assert again.policy.stage != plan.policy.stage
    assert again.policy.generation == 2


def test_an_engine_of_another_kind_that_was_refused_at_first_gets_the_next_generation() -> None:
    first = situation("LightLLM", {"live": LivePolicy(RuntimePolicy(generation=1), 1)})
    before = make_plan(replace(first, live=None), NOW)
    refusal = refused(before.status, 2, Reason.APPLY_REFUSED, "The API server refuses it.", NOW)
    assert make_plan(replace(first, generation=2, status=refusal), NOW + 5).policy.generation == 2


def test_pods_are_never_annotated_afterwards() -> None:
    pods = (pod("p0", Role.PREFILL, 9),)
    plan = make_plan(situation("SGLang", {"pods": pods, "pod_generations": {"p0": 9}}), NOW)
    assert plan.annotate == ()


STARTED = (
    ("all are current", [1, 1], {}, ("True", "StartedWithGeneration")),
    ("one is old", [1, 0], {}, ("Unknown", "ReplacingPods")),
    ("one is of another engine", [1, None], {}, ("Unknown", "ReplacingPods")),
    ("one is old and stuck", [1, 0], {Role.PREFILL: "quota"}, ("False", "RolloutStuck")),
    ("none is ready", [], {}, ("Unknown", "NoReadyPods")),
)


@pytest.mark.parametrize(("started", "stuck", "expected"), [case[1:] for case in STARTED], ids=[c[0] for c in STARTED])
def test_policy_active_says_with_what_pods_were_started(
    started: list[int | None], stuck: dict[Role, str], expected: tuple[str, str]
) -> None:
    pods = tuple(pod(f"p{at}", Role.PREFILL, generation) for at, generation in enumerate(started))
    decode = pod("d0", Role.DECODE, None)
    plan = make_plan(situation("SGLang", {"pods": (*pods, decode), "stuck": stuck}), NOW)
    assert condition(plan, "PolicyActive")[:2] == expected
    roles = {role.name: role for role in plan.status.roles}
    assert (roles[Role.PREFILL].active, roles[Role.DECODE].active) == (started.count(1), 1)


def test_policy_active_says_whose_word_it_is() -> None:
    plan = make_plan(situation("SGLang", {"pods": (pod("p0", Role.PREFILL, 1),)}), NOW)
    message = "All 1 ready pods were started with generation 1; SGLang itself does not report what it runs."
    assert condition(plan, "PolicyActive")[2] == message


def test_a_warning_stands_in_accepted_and_is_an_event_once() -> None:
    first = situation("SGLang", {"warnings": ("SGLang silently runs HRRN as FCFS above 128.",)})
    plan = make_plan(first, NOW)
    status, reason, message = condition(plan, "Accepted")
    assert (status, reason) == ("True", "Accepted")
    assert message.endswith("SGLang silently runs HRRN as FCFS above 128.")
    assert [event.reason.value for event in plan.events if event.warning] == ["EngineWarning"]
    assert make_plan(after(first, plan), NOW + 5).events == ()


@pytest.mark.parametrize("mode", ["Auto", "Advise"])
@pytest.mark.parametrize("kind", ["LightLLM", "SGLang", "MindIE"])
def test_engines_without_a_threshold_have_nothing_to_tune_in_any_mode(kind: str, mode: str) -> None:
    metrics = FleetMetrics(lengths=Sample(LENGTHS, NOW))
    plan = make_plan(situation(kind, {"metrics": metrics}, **{"tuning.mode": mode}), NOW)
    assert condition(plan, "Tuned")[:2] == ("False", "NothingToTune")
    assert plan.status.tuning is not None
    assert plan.status.tuning.threshold is not None
    assert plan.status.tuning.threshold.value is None


def past(*hours_ago: float, reason: str = "BandOptimum") -> list[Move]:
    return [
        Move(
            at=format_time(NOW - hours * 3600),
            generation=at + 1,
            policy=SchedulingPolicy.SHORT_REQUEST_FIRST,
            threshold=900,
            long_max_wait="4s",
            reason=reason,
            message="moved",
        )
        for at, hours in enumerate(hours_ago)
    ]


def tuned(history: list[Move], budget: int = 4, wait: str = "4s") -> Plan:
    """A fleet that runs a threshold of 20, far below the band of what is now measured; then with a pin of `wait`."""
    running = NativePolicy(
        generation=len(history) + 1, policy=SchedulingPolicy.SHORT_REQUEST_FIRST, threshold=20, long_max_wait_ms=4000
    )
    first = Situation(
        spec=spec_of("VLLMAscend", scheduling={"longMaxWait": "4s"}),
        generation=1,
        status=PrefillPolicyStatus(history=history),
        live=LivePolicy(running, running.generation),
        metrics=FleetMetrics(),
    )
    plan = make_plan(first, NOW - DAY_S)
    assert plan.policy == running
    status = plan.status.model_copy(update={"history": history})
    spec = spec_of("VLLMAscend", scheduling={"longMaxWait": wait}, **{"tuning.restartBudget": budget})
    metrics = FleetMetrics(lengths=Sample(LENGTHS, NOW))
    return make_plan(replace(first, spec=spec, generation=2, status=status, metrics=metrics), NOW)


def test_within_the_budget_the_tuner_restarts_the_fleet() -> None:
    plan = tuned(past(30, 20, 10, 1))
    assert (plan.policy.generation, plan.policy.threshold) == (6, 40)
    assert plan.status.history[-1].reason in ("BandOptimum", "Valley")


SPENT = (
    (4, past(23, 20, 10, 1), format_time(NOW - 23 * 3600 + DAY_S)),
    (2, past(23, 20, 10, 1), format_time(NOW - 10 * 3600 + DAY_S)),
)


@pytest.mark.parametrize(("budget", "history", "until"), SPENT, ids=["as many as allowed", "more than allowed"])
def test_beyond_the_budget_it_holds_and_says_until_when(budget: int, history: list[Move], until: str) -> None:
    plan = tuned(history, budget)
    assert (plan.policy.generation, plan.policy.threshold) == (5, 20)
    status, reason, message = condition(plan, "Tuned")
    assert (status, reason) == ("True", "RestartBudgetSpent")
    assert f"4 moves in 24 hours spend tuning.restartBudget {budget}: nothing is restarted before {until}" in message
    assert plan.status.tuning is not None
    assert plan.status.tuning.threshold is not None
    assert plan.status.tuning.threshold.value == 20
    assert [event.reason.value for event in plan.events] == ["RestartBudgetSpent"]


@pytest.mark.parametrize("reason", ["Adopted", "DriftCorrected"])
def test_a_restart_counts_by_whatever_name_it_is_known(reason: str) -> None:
    plan = tuned(past(23, 20, 10, 1, reason=reason))
    assert (plan.policy.generation, condition(plan, "Tuned")[1]) == (5, "RestartBudgetSpent")


def test_an_operator_that_ends_before_it_can_say_why_spends_its_budget_all_the_same() -> None:
    """The ConfigMap has the move, and the pods are replaced for it; the status does not know it."""
    first = tuned(past(1), budget=2)
    assert first.policy.threshold == 40
    spec = spec_of("VLLMAscend", scheduling={"longMaxWait": "4s"}, **{"tuning.restartBudget": 2})
    live, metrics = LivePolicy(first.policy, first.policy.generation), FleetMetrics(lengths=Sample(LENGTHS, NOW))
    lost = Situation(spec, 2, PrefillPolicyStatus(history=past(1)), live, metrics)
    adopted = make_plan(lost, NOW + 5)
    assert [move.reason for move in adopted.status.history] == ["BandOptimum", "Adopted"]
    later = make_plan(after(lost, adopted), NOW + 3600)
    assert (later.policy, condition(later, "Tuned")[1]) == (first.policy, "RestartBudgetSpent")


@pytest.mark.parametrize("live", [live for _, live in SPOILT], ids=[name for name, _ in SPOILT])
def test_a_move_is_the_tuners_also_where_the_config_map_was_spoilt_meanwhile(live: LivePolicy | None) -> None:
    first = tuned([], budget=0)
    spec = spec_of("VLLMAscend", scheduling={"longMaxWait": "4s"})
    metrics = FleetMetrics(lengths=Sample(LENGTHS, NOW))
    plan = make_plan(Situation(spec, 2, first.status, live, metrics), NOW + 5)
    last = plan.status.history[-1]
    assert (plan.policy.threshold, last.reason) == (40, "BandOptimum")
    assert "the threshold moves from 20 to 40" in last.message
    assert "The policy ConfigMap was" in last.message


def test_a_budget_of_nothing_lets_the_tuner_only_speak() -> None:
    plan = tuned([], budget=0)
    assert plan.policy.threshold == 20
    assert "tuning.restartBudget is 0: nothing is restarted for it" in condition(plan, "Tuned")[2]


def test_what_the_user_changed_is_not_counted_and_not_held() -> None:
    assert tuned(past(20, 10, 5, 1, reason="SpecChanged")).policy.threshold == 40
    plan = tuned(past(20, 10, 5, 1), wait="3s")
    assert plan.policy == NativePolicy(
        generation=6, policy=SchedulingPolicy.SHORT_REQUEST_FIRST, threshold=20, long_max_wait_ms=3000
    )


def test_the_runtimes_engines_have_no_budget() -> None:
    spec = spec_of("Simulator", **{"tuning.restartBudget": 0})
    metrics = FleetMetrics(lengths=Sample(LENGTHS, NOW))
    plan = make_plan(Situation(spec=spec, generation=1, status=PrefillPolicyStatus(), live=None, metrics=metrics), NOW)
    assert plan.policy.policy is PolicyName.SHORT_REQUEST_FIRST


def config_map(data: dict[str, str], owned: list[str]) -> dict[str, Any]:
    fields = {"f:data": {f"f:{key}": {} for key in owned}}
    return {
        "metadata": {
            "namespace": "serving",
            "name": "chat-policy",
            "uid": "1",
            "resourceVersion": "1",
            "annotations": {"prefleet.dev/policy-generation": "3"},
            "managedFields": [{"manager": "prefleet", "operation": "Apply", "fieldsV1": fields}],
        },
        "data": data,
    }


NATIVE = NativePolicy(generation=3, policy=SchedulingPolicy.SHORTEST_PREFILL_FIRST)
RUNTIME = RuntimePolicy(generation=3)
BOTH = {"policy.json": RUNTIME.to_json(), "decode.json": RUNTIME.to_json(), NATIVE_POLICY_FILE: NATIVE.to_json()}
LIVE = (
    ("ours, of a native engine", BOTH, [NATIVE_POLICY_FILE], LivePolicy(NATIVE, 3)),
    ("ours, of the runtime", BOTH, ["policy.json", "decode.json"], LivePolicy(RUNTIME, 3)),
    ("taken over by somebody", BOTH, [], LivePolicy(RUNTIME, 3, ours=False)),
    ("spoilt", {NATIVE_POLICY_FILE: json.dumps({"generation": 9})[:-3]}, [NATIVE_POLICY_FILE], LivePolicy(None, 3)),
)


@pytest.mark.parametrize(("data", "owned", "expected"), [case[1:] for case in LIVE], ids=[case[0] for case in LIVE])
def test_of_a_config_map_the_document_counts_that_the_operator_wrote(
    data: dict[str, str], owned: list[str], expected: LivePolicy
) -> None:
    assert read_live(ChildRecord.of(config_map(data, owned))) == expected
