"""A gap in the readings: nobody is told of a short one, everybody of a long one, and neither moves anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prefleet_operator.api import Condition, ConditionType, PrefillPolicyStatus
from prefleet_operator.core.measured import GAP_S
from prefleet_operator.core.observed import FleetMetrics, HistogramSnapshot, Missing, PodView, Reading, Sample, Stale
from prefleet_operator.core.plan import Plan, make_plan
from prefleet_operator.core.situation import LivePolicy, Situation
from prefleet_operator.core.status import find_condition

from tests.support.policies import make_spec

NOW = 1_700_000_000.0
TIME = "2023-11-14T22:13:20Z"
LENGTHS = HistogramSnapshot(bounds=(100.0, 1000.0, 8000.0), counts=(500.0, 300.0, 200.0, 0.0))
WAITS = HistogramSnapshot(bounds=(1.0, 2.0), counts=(90.0, 10.0, 0.0))
DOWN = "pod p0 cannot be scraped at http://10.0.0.1:9400/metrics (Connection refused): look at its log"


def measured(at_s: float) -> FleetMetrics:
    return FleetMetrics(
        lengths=Sample(LENGTHS, at_s),
        long_waits=Sample(WAITS, at_s),
        degradations=Sample(4.0, at_s),
        oldest_long_wait_s=Sample(0.0, at_s),
    )


def missing() -> FleetMetrics:
    gap = Missing(DOWN)
    return FleetMetrics(gap, gap, gap, gap, gap, gap)


def stale(at_s: float, why: str = DOWN) -> FleetMetrics:
    """What the operator itself scraped last, or what a Prometheus that no longer scrapes goes on to show."""
    return FleetMetrics(
        lengths=Stale(LENGTHS, at_s, why), long_waits=Stale(WAITS, at_s, why), degradations=Stale(4.0, at_s, why)
    )


def pods(generation: int) -> tuple[PodView, ...]:
    report: Reading[int] = Sample(generation, NOW)
    return (PodView("p0", make_spec().role_names()[0], "10.0.0.1", True, False, NOW - 3600, report),)


def carried_out(before: Situation, plan: Plan) -> Situation:
    live = LivePolicy(plan.policy, plan.policy.generation)
    return replace(before, status=plan.status, live=live, pods=pods(plan.policy.generation))


def tuned() -> Situation:
    """A fleet whose threshold and wait limit were learnt, and which is measured at NOW."""
    now, fleet = NOW - 3600, Situation(make_spec(), 1, PrefillPolicyStatus(), None, measured(NOW - 3600), pods(1))
    for _ in range(3):
        fleet = carried_out(fleet, make_plan(fleet, now))
        now += 1200
    return carried_out(fleet, make_plan(replace(fleet, metrics=measured(NOW)), NOW))


def in_gap(metrics: FleetMetrics, since_s: float) -> Situation:
    return replace(tuned(), metrics=metrics, missed_since_s=since_s)


def condition(plan: Plan, kind: ConditionType = ConditionType.METRICS_AVAILABLE) -> Condition:
    found = find_condition(plan.status.conditions, kind)
    assert found is not None
    return found


GAPS = [
    pytest.param(missing(), id="nothing is known"),
    pytest.param(stale(NOW), id="what was scraped last is known"),
]


@pytest.mark.parametrize("metrics", GAPS)
@pytest.mark.parametrize("age_s", [0.0, 5.0, GAP_S - 1])
def test_a_scrape_that_fails_is_no_news(metrics: FleetMetrics, age_s: float) -> None:
    fleet = in_gap(metrics, NOW)
    told = {each.type.value: (each.status.value, each.reason) for each in fleet.status.conditions}
    assert told["MetricsAvailable"] == ("True", "MetricsFresh")
    assert told["Tuned"] == ("True", "WithinBand")
    assert told["CapacityLimited"] == ("False", "CapacitySuffices")
    assert told["Degraded"] == ("True", "LongsHeldBack")
    plan = make_plan(fleet, NOW + age_s)
    assert (plan.status, plan.events) == (fleet.status, ())


@pytest.mark.parametrize("metrics", GAPS)
def test_a_loss_that_lasts_is_told_with_its_beginning_and_its_cause(metrics: FleetMetrics) -> None:
    plan = make_plan(in_gap(metrics, NOW), NOW + GAP_S)
    found = condition(plan)
    assert (found.status.value, found.last_transition_time) == ("False", "2023-11-14T22:14:20Z")
    assert f"no request lengths since {TIME}: {DOWN}" in found.message
    assert [(event.warning, event.reason.value) for event in plan.events if "MetricsAvailable" in event.message] == [
        (True, found.reason)
    ]
    for kind in (ConditionType.TUNED, ConditionType.CAPACITY_LIMITED, ConditionType.DEGRADED):
        assert condition(plan, kind).status.value == "Unknown"


def test_it_is_told_once_however_long_it_lasts() -> None:
    fleet = in_gap(missing(), NOW)
    first = make_plan(fleet, NOW + GAP_S)
    again = make_plan(carried_out(fleet, first), NOW + 10 * GAP_S)
    assert (again.status, again.events) == (first.status, ())


@pytest.mark.parametrize("metrics", GAPS)
def test_what_is_decided_in_a_gap_is_what_is_decided_without_readings(metrics: FleetMetrics) -> None:
    fleet = in_gap(metrics, NOW)
    brief, long = make_plan(fleet, NOW + 5), make_plan(fleet, NOW + 5 + GAP_S)
    assert (brief.policy, brief.decision) == (long.policy, long.decision)
    assert brief.decision.moves == ()
    assert brief.decision.threshold_finding.reason in ("MetricsMissing", "MetricsStale")


def test_a_prometheus_that_has_long_stopped_scraping_is_told_of_at_once() -> None:
    """What it shows is stale for longer than a gap may last when it is first read so."""
    found = condition(make_plan(in_gap(stale(NOW - 151, why=""), NOW), NOW))
    assert (found.status.value, found.reason) == ("False", "MetricsStale")
    assert found.message == (
        "PodScrape answers, but its latest request lengths are of 2023-11-14T22:10:49Z: "
        "see whether it still scrapes the pods."
    )


def test_under_another_spec_a_missing_reading_is_told_at_once() -> None:
    """It may name another source, of which nothing was ever read."""
    fleet = replace(in_gap(missing(), NOW), generation=2)
    assert condition(make_plan(fleet, NOW)).reason == "MetricsMissing"


def test_of_a_fleet_that_was_not_measured_before_nothing_is_passed_over() -> None:
    fleet = in_gap(missing(), NOW)
    lost = carried_out(fleet, make_plan(fleet, NOW + GAP_S))
    assert condition(make_plan(replace(lost, missed_since_s=NOW + GAP_S), NOW + GAP_S + 1)).status.value == "False"


def test_a_clock_that_goes_back_hides_no_loss() -> None:
    assert condition(make_plan(in_gap(missing(), NOW + 3600), NOW)).status.value == "False"
