"""Every metrics source reads the same loads: a real Prometheus and the pod scrape, on the runtime's telemetry.

The windows are short (`WINDOWS`), so that a fleet is watched for long enough within seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from prefleet_operator.adapters.metrics_source import FleetReading
from prefleet_operator.api import LengthMeasure, Role
from prefleet_operator.core.histogram import quantile_interval
from prefleet_operator.core.observed import Missing, Sample
from prefleet_operator.core.sizing.values import RoleLoad, StepCost
from prefleet_runtime.queueing import Lane

from tests.support.exporter import Exporter
from tests.support.watched_fleet import WINDOWS, WatchedFleet, about, value

COST = (0.01, 1e-4, 2e-5, 1e-8, 1e-9)


@pytest.fixture
def sized(fleet: WatchedFleet) -> WatchedFleet:
    """A fleet that is sized."""
    fleet.query = replace(fleet.query, sized=True)
    return fleet


def load(reading: FleetReading, role: Role = Role.PREFILL) -> RoleLoad:
    return reading.loads.get(role, RoleLoad())


def arrived(reading: FleetReading, role: Role = Role.PREFILL) -> float:
    return value(load(reading, role).arrivals, lambda lengths: lengths.total)


def amount(reading: FleetReading) -> float:
    """Tokens generated in the time that is looked at."""
    return value(load(reading).generated) * load(reading).slow_s


async def watched(fleet: WatchedFleet) -> list[Exporter]:
    """Start every pod and read until it has been watched for long enough."""
    exporters = fleet.start()
    await fleet.read_until(lambda reading: arrived(reading) == 0)
    return exporters


async def test_a_role_is_read_from_all_of_its_pods(sized: WatchedFleet) -> None:
    first, second = await watched(sized)
    for exporter, waits, running, usage in ((first, 5, 3, 0.5), (second, 2, 1, 0.1)):
        exporter.serve([1000] * 100)
        exporter.wait(waits, waits * 100)
        exporter.hold(running=running, kv_usage=usage, more=waits)
        exporter.compute(prefill_tokens=4000, decode_tokens=0, seconds=0.5)
        exporter.compute(prefill_tokens=0, decode_tokens=200, seconds=0.25)
        exporter.learn(*COST)

    def all_there(reading: FleetReading) -> bool:
        return bool(arrived(reading) == about(200) and amount(reading) == about(400) and len(load(reading).served) == 2)

    reading = await sized.read_until(all_there)
    seen = load(reading)
    assert seen.arrivals.value.total == about(200)
    interval = quantile_interval(seen.arrivals.value, 0.5)
    assert interval.low <= 750 <= interval.high  # a quarter of each is cached
    assert value(seen.recent, lambda lengths: lengths.total) == about(200)
    assert (value(seen.waiting), value(seen.waiting_tokens)) == (7, 700)
    assert (value(seen.running), value(seen.kv_usage)) == (4, pytest.approx(0.3))
    assert (value(seen.kv_tokens), value(seen.step_tokens)) == (10_000, 512)
    assert isinstance(seen.step_cost, Sample)
    assert seen.step_cost.value == StepCost(*COST)
    assert value(seen.gap_s) == about(0.25)
    for pod in seen.served:
        assert pod.prefill_tokens * seen.slow_s == about(4000)
        assert pod.decode_tokens * seen.slow_s == about(200)
        assert pod.busy * seen.slow_s == about(0.75)
        assert 0 < pod.waiting <= 5
    assert {name: value(found) for name, found in reading.pod_loads.items()} == {"pod-0": 8, "pod-1": 3}


async def test_the_length_asked_for_is_the_one_given(sized: WatchedFleet) -> None:
    sized.query = replace(sized.query, length=LengthMeasure.PROMPT)
    first, _ = await watched(sized)
    first.serve([1000] * 100)
    reading = await sized.read_until(lambda reading: arrived(reading) == about(100))
    interval = quantile_interval(load(reading).arrivals.value, 0.5)
    assert interval.low <= 1000 <= interval.high


async def test_what_came_before_the_fast_window_is_not_recent(sized: WatchedFleet) -> None:
    first, _ = await watched(sized)
    first.serve([100] * 100)
    await sized.read_until(lambda reading: arrived(reading) == about(100))
    reading = await sized.read_until(lambda reading: value(load(reading).recent, lambda lengths: lengths.total) == 0)
    assert arrived(reading) == about(100)


async def test_each_role_has_its_own_pods(sized: WatchedFleet) -> None:
    prefill, decode = sized.query.pods
    sized.query = replace(sized.query, pods=(prefill, replace(decode, role=Role.DECODE)))
    prefill_exporter, decode_exporter = sized.start()
    await sized.read_until(lambda reading: arrived(reading) == arrived(reading, Role.DECODE) == 0)
    prefill_exporter.serve([100] * 50)
    decode_exporter.serve([9000] * 500)
    decode_exporter.hold(running=9)
    reading = await sized.read_until(
        lambda reading: arrived(reading) == about(50) and arrived(reading, Role.DECODE) == about(500)
    )
    assert value(load(reading).running) == 0
    assert value(load(reading, Role.DECODE).running) == 9


async def test_nothing_follows_from_the_first_moments_and_rates_are_over_the_time_watched(sized: WatchedFleet) -> None:
    sized.start()
    reading = await sized.read_until(lambda reading: isinstance(load(reading).running, Sample))
    assert isinstance(load(reading).arrivals, Missing)
    assert "have been watched for" in load(reading).arrivals.reason
    assert load(reading).served == ()
    reading = await sized.read_until(lambda reading: arrived(reading) == 0)
    assert WINDOWS.fast_s <= load(reading).slow_s < WINDOWS.slow_s


async def test_a_new_pod_adds_nothing_until_it_is_read_twice_and_hides_nothing(sized: WatchedFleet) -> None:
    both = sized.query.pods
    sized.shrink(1)
    (first,) = await watched(sized)
    first.serve([100] * 100)
    reading = await sized.read_until(lambda reading: arrived(reading) == about(100))
    known_s = load(reading).slow_s
    sized.query = replace(sized.query, pods=both[1:])
    (second,) = sized.start()
    sized.query = replace(sized.query, pods=both)
    reading = await sized.read_until(lambda reading: arrived(reading) == about(100))
    assert load(reading).slow_s >= min(known_s, WINDOWS.slow_s) * 0.85
    second.serve([100] * 100)
    await sized.read_until(lambda reading: arrived(reading) == about(200))


async def test_a_pod_that_has_left_has_still_had_its_requests(sized: WatchedFleet) -> None:
    first, second = await watched(sized)
    for exporter in (first, second):
        exporter.serve([100] * 100)
        exporter.wait(4, 400)
        exporter.compute(prefill_tokens=0, decode_tokens=50, seconds=0.1)
    await sized.read_until(lambda reading: arrived(reading) == about(200) and amount(reading) == about(100))
    sized.shrink(1)
    second.close()
    reading = await sized.read()
    assert arrived(reading) == about(200)
    assert amount(reading) == about(100)
    assert value(load(reading).waiting) == 4
    assert list(reading.pod_loads) == ["pod-0"]


async def test_a_pod_that_took_over_has_not_had_all_of_it_itself(sized: WatchedFleet) -> None:
    both = sized.query.pods
    sized.shrink(1)
    (first,) = await watched(sized)
    first.serve([100] * 100)
    known_s = load(await sized.read_until(lambda reading: arrived(reading) == about(100))).slow_s
    first.close()
    sized.query = replace(sized.query, pods=both[1:])
    sized.start()
    reading = await sized.read_until(lambda reading: isinstance(load(reading).running, Sample))
    assert arrived(reading) == about(100)
    assert load(reading).slow_s >= min(known_s, WINDOWS.slow_s) * 0.85


async def test_time_in_which_a_pod_ends_what_it_has_begun_counts_once(sized: WatchedFleet) -> None:
    both = sized.query.pods
    sized.shrink(1)
    await watched(sized)
    sized.query = replace(sized.query, pods=both[1:])
    sized.start()
    known_s = load(await sized.read_until(lambda reading: isinstance(load(reading).arrivals, Sample))).slow_s
    known_at_s = time.monotonic()
    reading = await sized.read_until(lambda reading: load(reading).slow_s >= known_s + 4)
    assert load(reading).slow_s <= known_s + time.monotonic() - known_at_s + 1


async def test_counters_that_were_reset_go_on_counting(sized: WatchedFleet) -> None:
    first, _ = await watched(sized)
    first.serve([100] * 200)
    first.compute(prefill_tokens=0, decode_tokens=200, seconds=1.0)
    await sized.read_until(lambda reading: arrived(reading) == about(200) and amount(reading) == about(200))
    first.restart()
    first.serve([100] * 100)
    first.compute(prefill_tokens=0, decode_tokens=100, seconds=1.0)
    await sized.read_until(lambda reading: arrived(reading) == about(300) and amount(reading) == about(300))


async def test_one_pod_that_is_not_read_leaves_no_sum(sized: WatchedFleet) -> None:
    first, second = await watched(sized)
    first.learn(*COST)
    await sized.read_until(lambda reading: isinstance(load(reading).step_cost, Sample))
    second.close()

    def as_it_should_be(reading: FleetReading) -> bool:
        seen = load(reading)
        alike = (seen.kv_tokens, seen.step_tokens, seen.step_cost, reading.pod_loads["pod-0"])
        return all(isinstance(found, Sample) for found in alike) and not isinstance(seen.waiting, Sample)

    # What is the same in every pod is known of the other.
    reading = await sized.read_until(as_it_should_be)
    seen = load(reading)
    summed = (seen.arrivals, seen.recent, seen.waiting_tokens, seen.running, seen.kv_usage, seen.generated, seen.gap_s)
    assert not any(isinstance(found, Sample) for found in summed)
    assert seen.served == ()
    assert not isinstance(reading.pod_loads["pod-1"], Sample)


NONSENSE: dict[str, tuple[Callable[[Exporter], None], str]] = {
    "tokens that wait are no number": (lambda exporter: exporter.wait(1, math.nan), "waiting_tokens"),
    "KV use is no number": (lambda exporter: exporter.hold(kv_usage=math.nan), "kv_usage"),
    "KV use is more than all": (lambda exporter: exporter.hold(kv_usage=1.5), "kv_usage"),
    "the KV cache holds nothing": (lambda exporter: exporter.hold(kv_tokens=0), "kv_tokens"),
    "a step computes nothing": (lambda exporter: exporter.hold(step_tokens=0), "step_tokens"),
    "the step cost is no number": (lambda exporter: exporter.learn(math.inf, 1e-4, 0, 0, 0), "step_cost"),
    "a step costs nothing": (lambda exporter: exporter.learn(0.01, -1e-4, 0, 0, 0), "step_cost"),
    "a step costs minutes": (lambda exporter: exporter.learn(0.01, 1.0, 0, 0, 0), "step_cost"),
    "few steps were learnt from": (lambda exporter: exporter.learn(*COST, samples=99), "step_cost"),
}


@pytest.mark.parametrize("fault", NONSENSE)
async def test_a_value_is_missing_with_a_sentence_where(sized: WatchedFleet, fault: str) -> None:
    sized.shrink(1)
    (exporter,) = sized.start()
    exporter.learn(*COST)
    await sized.read_until(lambda reading: isinstance(load(reading).step_cost, Sample))
    spoil, field = NONSENSE[fault]
    spoil(exporter)
    others = {"waiting", "running", "kv_usage", "kv_tokens", "step_tokens", "step_cost", "waiting_tokens"} - {field}

    def alone(reading: FleetReading) -> bool:
        missing = isinstance(getattr(load(reading), field), Missing)
        return missing and all(isinstance(getattr(load(reading), name), Sample) for name in others)

    reading = await sized.read_until(alone)
    assert "pod" in getattr(load(reading), field).reason


async def test_all_lanes_that_wait_are_added(sized: WatchedFleet) -> None:
    sized.shrink(1)
    (exporter,) = sized.start()
    exporter.wait(3, 300, Lane.SHORT)
    await sized.read_until(lambda reading: value(load(reading).waiting) == 3)
    exporter.wait(2, 9000, Lane.LONG)
    await sized.read_until(lambda reading: value(load(reading).waiting_tokens) == 9000)


async def test_an_empty_answer_is_not_zero(sized: WatchedFleet) -> None:
    sized.shrink(1)
    (exporter,) = await watched(sized)
    exporter.answer_with(200, b"prefleet_policy_generation 1\n")
    reading = await sized.read_until(lambda reading: not isinstance(load(reading).waiting, Sample))
    # What was counted in the window stays known for a while; what is held now is not.
    for found in (load(reading).waiting_tokens, load(reading).running, load(reading).kv_usage):
        assert isinstance(found, Missing)
        assert "pod-0 shows no usable value" in found.reason
    assert isinstance(reading.pod_loads["pod-0"], Missing)


async def test_pods_that_never_answered_are_missing_with_a_sentence(sized: WatchedFleet) -> None:
    reading = await sized.read()
    for found in (load(reading).arrivals, load(reading).waiting, load(reading).kv_usage):
        assert isinstance(found, Missing)
        assert "pod-0" in found.reason


async def test_of_a_fleet_that_is_not_sized_is_told_what_is_in_its_pods_alone(fleet: WatchedFleet) -> None:
    fleet.start()

    def told(reading: FleetReading) -> dict[str, float]:
        return {name: value(found) for name, found in reading.pod_loads.items()}

    reading = await fleet.read_until(lambda reading: told(reading) == {"pod-0": 0, "pod-1": 0})
    assert reading.loads == {}


async def test_a_fleet_without_pods_has_no_load(sized: WatchedFleet) -> None:
    sized.shrink(0)
    reading = await sized.read()
    assert (reading.loads, reading.pod_loads) == ({}, {})
