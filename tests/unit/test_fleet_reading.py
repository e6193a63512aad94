"""From the series of pods to the readings of a fleet, and the growth of counters between scrapes."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefleet_operator.adapters import fleet_reading as names
from prefleet_operator.adapters.fleet_reading import PodMetrics, assemble, merge_histograms, to_pod_metrics
from prefleet_operator.adapters.metrics_source import FleetQuery, PodTarget
from prefleet_operator.adapters.pod_history import SLOTS, PodHistory
from prefleet_operator.adapters.podscrape import PodScrape, counts_up
from prefleet_operator.api import LengthMeasure, Role
from prefleet_operator.core.observed import HistogramSnapshot, Missing, Sample, Stale

LENGTHS = names.LENGTHS[LengthMeasure.PROMPT]
KEY = (names.PROMOTIONS, "")
WINDOW_S = 60.0
FLEET = FleetQuery(
    "ns", "chat", tuple(PodTarget(f"pod-{i}", Role.PREFILL, None) for i in range(2)), WINDOW_S, LengthMeasure.PROMPT
)


def histogram(*counts: float) -> HistogramSnapshot:
    return HistogramSnapshot((1.0, 2.0), counts)


# --- one pod


def test_cumulative_buckets_become_counts_and_never_fall():
    series = {(LENGTHS, 1.0): 5.0, (LENGTHS, 2.0): 4.9, (LENGTHS, math.inf): 8.0}
    pod = to_pod_metrics(series, LengthMeasure.PROMPT)
    assert pod.lengths == histogram(5.0, 0.0, 3.0)


@pytest.mark.parametrize(
    ("series", "long_waits"),
    [
        pytest.param({(LENGTHS, 1.0): 0.0, (LENGTHS, math.inf): 0.0}, 0, id="no request at all has waited for nothing"),
        pytest.param({(names.WAIT_COUNTS, "all"): 9.0}, 0, id="another lane shows that there is no long one"),
        pytest.param({(LENGTHS, 1.0): 5.0, (LENGTHS, math.inf): 5.0}, None, id="requests without any lane are a gap"),
        pytest.param({}, None, id="an empty answer is not zero"),
        pytest.param(
            {(names.WAIT_COUNTS, "long"): 9.0, (names.LONG_WAITS, 1.0): math.nan},
            None,
            id="a lane that shows no number is not zero",
        ),
    ],
)
def test_a_lane_that_is_not_shown(series, long_waits):
    pod = to_pod_metrics(series, LengthMeasure.PROMPT)
    assert (None if pod.long_waits is None else pod.long_waits.total) == long_waits


# --- a fleet


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param(
            Sample(PodMetrics(promotions=2.0), 9.0),
            Sample(PodMetrics(promotions=3.0), 8.0),
            Sample(5.0, 8.0),
            id="fresh pods are added, as old as the older",
        ),
        pytest.param(
            Sample(PodMetrics(promotions=2.0), 9.0),
            Stale(PodMetrics(promotions=3.0), 1.0),
            Sample(2.0, 9.0),
            id="a stale pod is left out beside a fresh one",
        ),
        pytest.param(
            Stale(PodMetrics(promotions=2.0), 2.0), Missing("gone"), Stale(2.0, 2.0), id="stale pods alone are stale"
        ),
        pytest.param(Missing("first"), Missing("second"), Missing("first"), id="missing pods give the first reason"),
        pytest.param(
            Sample(PodMetrics(), 9.0),
            Missing("second"),
            Missing("pod pod-0 shows no finite value of prefleet_promotions_total over the window yet"),
            id="a pod that shows other things is named",
        ),
    ],
)
def test_promotions_of_two_pods(first, second, expected):
    assert assemble(FLEET, {"pod-0": first, "pod-1": second}).metrics.promotions == expected


def test_the_oldest_wait_is_the_highest_and_a_pod_not_found_is_missing():
    reading = assemble(FLEET, {"pod-0": Sample(PodMetrics(oldest_long_wait_s=4.0, generation=7), 9.0)})
    assert reading.metrics.oldest_long_wait_s == Sample(4.0, 9.0)
    assert reading.generations == {"pod-0": Sample(7, 9.0), "pod-1": Missing("pod pod-1 was not found")}


def test_the_requests_in_each_pod_are_told_pod_by_pod():
    reading = assemble(FLEET, {"pod-0": Sample(PodMetrics(unfinished=4.0), 9.0), "pod-1": Sample(PodMetrics(), 9.0)})
    assert reading.pod_loads["pod-0"] == Sample(4.0, 9.0)
    assert isinstance(reading.pod_loads["pod-1"], Missing)


def test_histograms_with_other_bounds_are_added_at_the_bounds_of_both():
    merged = merge_histograms([histogram(1, 2, 3), HistogramSnapshot((1.5, 2.0), (10.0, 20.0, 30.0))])
    assert merged == HistogramSnapshot((1.0, 1.5, 2.0), (1, 10, 22, 33))


# --- growth between scrapes


def test_the_first_scrape_gives_no_increase_and_the_gauges():
    history = PodHistory(counts_up)
    history.add({KEY: 100.0, (names.GENERATION, ""): 3.0}, 0.0, WINDOW_S)
    assert history.series() == {(names.GENERATION, ""): 3.0}


@pytest.mark.parametrize(
    ("shown", "increase"),
    [
        pytest.param([100, 130, 130], 30, id="growth since the first scrape"),
        pytest.param([100, 130, 20, 25], 55, id="a counter that has fallen has grown by what it shows"),
        pytest.param([None, 7], 7, id="a series that appears has grown by all it shows"),
        pytest.param([100, None, 110], 10, id="a series left out once is compared with its last number"),
        pytest.param([100, math.nan, 110], 10, id="so is one that was no number"),
    ],
)
def test_increase(shown, increase):
    history = PodHistory(counts_up)
    for at, value in enumerate(shown):
        history.add({} if value is None else {KEY: float(value)}, 10.0 * at, WINDOW_S)
    assert history.series()[KEY] == increase


def test_what_is_no_number_now_is_shown_as_such():
    history = PodHistory(counts_up)
    for at, value in enumerate([1.0, 2.0, math.nan]):
        history.add({KEY: value}, 10.0 * at, WINDOW_S)
    assert math.isnan(history.series()[KEY])


def test_growth_leaves_the_window_by_its_end():
    history = PodHistory(counts_up)
    for at in range(0, 130, 10):
        history.add({KEY: float(at)}, float(at), WINDOW_S)
    assert history.series()[KEY] == 60


def test_a_gap_longer_than_the_window_begins_anew():
    history = PodHistory(counts_up)
    history.add({KEY: 1.0}, 0.0, WINDOW_S)
    history.add({KEY: 500.0}, WINDOW_S + 1, WINDOW_S)
    assert KEY not in history.series()


def test_a_clock_that_is_put_back_begins_anew():
    history = PodHistory(counts_up)
    for at, value in ((5000.0, 0.0), (5010.0, 70.0), (1000.0, 80.0), (1010.0, 95.0)):
        history.add({KEY: value}, at, WINDOW_S)
    assert history.series()[KEY] == 15
    assert history.watched_s(0.0) == 10


@given(steps=st.lists(st.tuples(st.floats(0.01, 5), st.integers(0, 100)), min_size=1, max_size=300))
def test_many_scrapes_take_a_bounded_number_of_slots_and_lose_nothing(steps):
    history, now, count = PodHistory(counts_up), 0.0, 0
    history.add({KEY: 0.0}, now, 1000.0)
    for seconds, growth in steps:
        now, count = now + seconds, count + growth
        history.add({KEY: float(count)}, now, 1000.0)
    # Two neighbouring slots together are wider than a slot's width, or they would be one.
    assert len(history._slots) <= 2 * SLOTS + 1
    if now < 1000:
        assert history.series()[KEY] == count


# --- scraping


async def test_a_pod_without_an_address_is_missing_and_costs_no_time():
    source = PodScrape()
    reading = (await source.read([FLEET], 0.0))["ns/chat"]
    assert reading.metrics.lengths == Missing("pod pod-0 has no address yet")
    await source.close()


async def test_pods_that_are_gone_are_forgotten():
    source = PodScrape()
    await source.read([FLEET], 0.0)
    assert len(source._histories) == 2
    await source.read([], 1.0)
    assert source._histories == {}
    await source.close()


async def test_many_pods_that_hang_cost_the_deadline_and_no_more():
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pods = tuple(PodTarget(f"pod-{i}", Role.PREFILL, "127.0.0.1", port) for i in range(20))
    source = PodScrape(timeout_s=30.0, deadline_s=0.2, concurrency=2)
    reading = (await source.read([FleetQuery("ns", "chat", pods, WINDOW_S, LengthMeasure.PROMPT)], 0.0))["ns/chat"]
    assert all("was not scraped within the 0.2 s" in found.reason for found in reading.generations.values())
    await source.close()
    server.close()
