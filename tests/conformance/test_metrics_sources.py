"""Every metrics source gives the same answers: a real Prometheus and the pod scrape, on the runtime's telemetry."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from prefleet_operator.api import LengthMeasure, Role
from prefleet_operator.core.histogram import quantile_interval
from prefleet_operator.core.observed import Missing, Sample
from prefleet_runtime.queueing import Lane

from tests.support.exporter import Exporter
from tests.support.lengths import demo_mix
from tests.support.watched_fleet import about, generations, total, value


async def test_lengths_waits_and_counts_of_all_pods_are_added(fleet):
    lengths = demo_mix(400, seed=1)
    for exporter in await fleet.start_idle():
        exporter.serve(lengths, waits_s=[0.5] * 30 + [3.0] * 10)
        exporter.publish(promotions=40, degradations=8, oldest_wait_s=2.5)
    reading = await fleet.read_until(lambda reading: total(reading) == about(800))
    reading = await fleet.read_until(lambda reading: value(reading.metrics.promotions) == about(80))
    metrics = reading.metrics
    assert metrics.long_waits.value.total == about(80)
    assert metrics.promotion_waits.value.total == about(80)
    assert metrics.degradations.value == about(16)
    assert metrics.oldest_long_wait_s.value == 2.5
    # The shape does not suffer from extrapolation: P70 of the uncached lengths, and the median wait.
    uncached = sorted(length - length // 4 for length in lengths)
    p70 = quantile_interval(metrics.lengths.value, 0.7)
    assert p70.low <= uncached[279] <= p70.high
    assert quantile_interval(metrics.long_waits.value, 0.5).high == 0.5


async def test_the_length_asked_for_is_the_one_given(fleet):
    fleet.query = replace(fleet.query, length=LengthMeasure.PROMPT)
    first, _ = await fleet.start_idle()
    first.serve([1000] * 100)
    reading = await fleet.read_until(lambda reading: total(reading) == about(100))
    interval = quantile_interval(reading.metrics.lengths.value, 0.5)
    assert interval.low <= 1000 <= interval.high


async def test_decode_pods_report_their_generation_and_nothing_else_of_them_counts(fleet):
    prefill, decode = fleet.query.pods
    fleet.query = replace(fleet.query, pods=(prefill, replace(decode, role=Role.DECODE)))
    prefill_exporter, decode_exporter = await fleet.start_idle()
    decode_exporter.serve([9000] * 500)
    prefill_exporter.serve([100] * 50)
    reading = await fleet.read_until(lambda reading: total(reading) == about(50))
    assert generations(reading) == {"pod-0": 1, "pod-1": 1}


async def test_a_new_generation_is_seen(fleet):
    _, second = await fleet.start_idle()
    second.restart(generation=2)
    await fleet.read_until(lambda reading: generations(reading) == {"pod-0": 1, "pod-1": 2})


async def test_an_idle_fleet_has_waited_for_nothing(fleet):
    await fleet.start_idle()
    metrics = (await fleet.read_until(lambda reading: total(reading) == 0)).metrics
    assert metrics.long_waits.value.total == 0
    assert (metrics.promotions.value, metrics.oldest_long_wait_s.value) == (0, 0)


async def test_under_fcfs_no_request_has_waited_as_a_long_one(fleet):
    first, _ = await fleet.start_idle()
    first.serve([100] * 50, waits_s=[1.0] * 50, lane=Lane.ALL)
    first.publish(oldest_wait_s=3.0, lane=Lane.ALL)
    reading = await fleet.read_until(lambda reading: total(reading) == about(50))
    assert value(reading.metrics.long_waits, lambda waits: waits.total) == 0
    assert value(reading.metrics.oldest_long_wait_s) == 0


async def test_a_counter_that_was_reset_goes_on_counting(fleet):
    first, _ = await fleet.start_idle()
    first.serve([100] * 200)
    await fleet.read_until(lambda reading: total(reading) == about(200))
    first.restart()
    first.serve([100] * 100)
    await fleet.read_until(lambda reading: total(reading) == about(300))


async def test_a_pod_that_fails_leaves_the_others_readings(fleet):
    first, second = await fleet.start_idle()
    second.close()
    first.serve([100] * 50)
    reading = await fleet.read_until(lambda reading: list(generations(reading)) == ["pod-0"])
    await fleet.read_until(lambda reading: total(reading) == about(50))
    assert not isinstance(reading.generations["pod-1"], Sample)


FAULTS: dict[str, Callable[[Exporter], None]] = {
    "it stops listening": Exporter.close,
    "it answers 500": lambda exporter: exporter.answer_with(500, b"engine core died"),
    "it answers a web page": lambda exporter: exporter.answer_with(200, b"<html>hello</html>"),
    "it answers half a line": lambda exporter: exporter.answer_with(200, b'prefleet_policy_generation{a="'),
    "it answers nothing": lambda exporter: exporter.answer_with(200, b""),
    "it answers another program's metrics": lambda exporter: exporter.answer_with(200, b"up 1\n"),
    "it hangs": lambda exporter: exporter.delay(5.0),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_pod_is_no_fresh_sample_when(fleet, fault):
    fleet.shrink(1)
    (exporter,) = await fleet.start_idle()
    FAULTS[fault](exporter)
    reading = await fleet.read_until(lambda reading: not generations(reading))
    metrics = reading.metrics
    for found in (metrics.lengths, metrics.long_waits, metrics.promotions, metrics.oldest_long_wait_s):
        assert not isinstance(found, Sample)


async def test_what_is_no_number_is_missing_and_the_rest_is_not(fleet):
    fleet.shrink(1)
    (exporter,) = await fleet.start_idle()
    exporter.publish(promotions=math.nan, oldest_wait_s=math.inf)
    told = Missing("pod pod-0 shows no finite value of prefleet_promotions_total over the window yet")
    reading = await fleet.read_until(lambda reading: reading.metrics.promotions == told)
    assert isinstance(reading.metrics.oldest_long_wait_s, Missing)
    assert isinstance(reading.metrics.lengths, Sample)


async def test_a_pod_that_never_answered_is_missing_with_a_sentence(fleet):
    reading = await fleet.read()
    assert isinstance(reading.metrics.lengths, Missing)
    assert "pod-0" in reading.metrics.lengths.reason
    assert isinstance(reading.generations["pod-0"], Missing)


async def test_a_fleet_without_pods_is_missing(fleet):
    fleet.shrink(0)
    reading = await fleet.read()
    assert reading.metrics.lengths == Missing("the fleet has no pod whose queue could be measured")
