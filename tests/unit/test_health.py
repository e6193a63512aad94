"""Whether capacity suffices, whether the queue keeps its word, and the one reason that kubectl get shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prefleet_operator.api import Condition, ConditionStatus, ConditionType, SchedulingPolicy
from prefleet_operator.core.health import DEGRADATIONS, judge_capacity, judge_degraded
from prefleet_operator.core.observed import Missing, Reading, Sample, Stale
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.status import Verdict, headline, merge_conditions
from prefleet_operator.core.tuning import Finding, TuningDecision

from tests.support.policies import make_spec

NOW = 1_700_000_000.0
DECISION = TuningDecision(
    policy=SchedulingPolicy.SHORT_REQUEST_FIRST,
    threshold=900,
    long_max_wait_s=7.2,
    advised_policy=SchedulingPolicy.SHORT_REQUEST_FIRST,
    threshold_finding=Finding(900, Reason.PINNED, "pinned"),
    wait_finding=Finding(7.2, Reason.WITHIN_HYSTERESIS, "P95 of 80 long waits is 2s"),
)


def found(reason: Reason, message: str = "it is so") -> TuningDecision:
    return replace(DECISION, wait_finding=Finding(7.2, reason, message))


def short(reason: Reason) -> TuningDecision:
    return replace(found(reason, "P95 of 80 long waits is 9s"), capacity_limited=True)


@pytest.mark.parametrize(
    ("decision", "status", "reason"),
    [
        pytest.param(short(Reason.CAPACITY_LIMITED), "True", "CapacityLimited", id="short"),
        pytest.param(short(Reason.COOLING_DOWN), "True", "CapacityLimited", id="short while a move cools down"),
        pytest.param(DECISION, "False", "CapacitySuffices", id="measured, and there is room"),
        pytest.param(found(Reason.LEARNING_WAITS), "Unknown", "LearningWaits", id="too few waits prove nothing"),
        pytest.param(found(Reason.METRICS_MISSING), "Unknown", "MetricsMissing", id="missing data proves nothing"),
        pytest.param(found(Reason.PINNED), "Unknown", "Pinned", id="nor does a pin"),
    ],
)  # fmt: skip
def test_capacity(decision: TuningDecision, status: str, reason: str) -> None:
    verdict = judge_capacity(decision, noisy=False)
    assert (verdict.status.value, verdict.reason.value) == (status, reason)


def test_short_capacity_says_what_to_do() -> None:
    message = judge_capacity(short(Reason.CAPACITY_LIMITED), noisy=False).message
    assert message == "P95 of 80 long waits is 9s; add replicas, or allow more in slo.longQueueWait."


def test_short_capacity_of_a_fleet_that_is_sized_says_when_it_grows() -> None:
    message = judge_capacity(short(Reason.CAPACITY_LIMITED), noisy=False, sized=True).message
    assert message == (
        "P95 of 80 long waits is 9s; it grows by itself once that is 90% of slo.longQueueWait, or allow more there."
    )


def test_a_wait_that_the_budget_holds_is_not_called_unknown() -> None:
    verdict = judge_capacity(found(Reason.RESTART_BUDGET_SPENT, "P95 is 9s, but the budget is spent"), noisy=False)
    assert (verdict.status.value, verdict.reason.value) == ("Unknown", "RestartBudgetSpent")
    assert verdict.message == "Not judged while the wait limit is held: P95 is 9s, but the budget is spent."


def degraded(reading: Reading[float], *before: Condition) -> Verdict:
    return judge_degraded(reading, make_spec(), before)


WAS_DEGRADED = merge_conditions([], [degraded(Sample(9, NOW))], 1, NOW)


@pytest.mark.parametrize(
    ("reading", "before", "status", "reason"),
    [
        pytest.param(Sample(DEGRADATIONS - 1, NOW), [], "False", "ServingAsSet", id="once or twice is a burst"),
        pytest.param(Sample(DEGRADATIONS, NOW), [], "True", "LongsHeldBack", id="again and again is a state"),
        pytest.param(Sample(1, NOW), WAS_DEGRADED, "True", "LongsHeldBack", id="which lasts while it happens at all"),
        pytest.param(Sample(0.2, NOW), WAS_DEGRADED, "False", "ServingAsSet", id="and ends with a window without"),
        pytest.param(Missing("no."), WAS_DEGRADED, "Unknown", "MetricsMissing", id="missing data is not zero"),
        pytest.param(Stale(9, NOW), [], "Unknown", "MetricsStale", id="nor is stale data news"),
    ],
)
def test_degraded(reading: Reading[float], before: list[Condition], status: str, reason: str) -> None:
    verdict = degraded(reading, *before)
    assert (verdict.status.value, verdict.reason.value) == (status, reason)


@pytest.mark.parametrize(
    ("share", "reason", "remedy"),
    [
        pytest.param(0.25, "LongsHeldBack", "raise agedShare", id="below 1 the longs suffer"),
        pytest.param(1.0, "ShortsOvertaken", "lower agedShare", id="under the plain rule the shorts do"),
    ],
)
def test_who_suffers_is_told_by_the_share(share: float, reason: str, remedy: str) -> None:
    verdict = judge_degraded(Sample(5, NOW), make_spec(scheduling={"agedShare": share}), [])
    assert verdict.reason.value == reason
    assert remedy in verdict.message


def conditions(**given: str) -> list[Condition]:
    """By type: status/reason, all in order unless said otherwise."""
    usual = {"Accepted": "True/Accepted", "Ready": "True/PodsReady", "PolicyActive": "True/GenerationReported"}
    parts = {kind: text.split("/") for kind, text in (usual | given).items()}
    verdicts = [
        Verdict(ConditionType(kind), ConditionStatus(status), Reason(reason), "")
        for kind, (status, reason) in parts.items()
    ]
    return merge_conditions([], verdicts, 1, NOW)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        pytest.param({}, "PodsReady", id="nothing is wrong"),
        pytest.param({"Ready": "True/ImageUnavailable"}, "ImageUnavailable", id="a rollout that cannot go on"),
        pytest.param(
            {"MetricsAvailable": "Unknown/NoReadyPods", "Tuned": "False/LearningLengths"}, "PodsReady", id="learning"
        ),
        pytest.param({"PolicyActive": "Unknown/Propagating"}, "Propagating", id="a change on its way"),
        pytest.param(
            {"PolicyActive": "Unknown/GenerationUnknown", "MetricsAvailable": "False/MetricsMissing"},
            "MetricsMissing",
            id="nothing is measured, and so no generation known",
        ),
        pytest.param({"CapacityLimited": "True/CapacityLimited"}, "CapacityLimited", id="capacity is short"),
        pytest.param(
            {"Accepted": "False/InvalidSpec", "Ready": "False/EngineCrashing"}, "InvalidSpec", id="the first one counts"
        ),
    ],
)
def test_the_headline(given: dict[str, str], reason: str) -> None:
    assert headline(conditions(**given)) == reason


def test_without_conditions_there_is_no_headline() -> None:
    assert headline([]) is None
