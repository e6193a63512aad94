"""From the loads of pods to those of roles: what one pod that is not read does to each value, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prefleet_operator.adapters import pod_load as names
from prefleet_operator.adapters.fleet_reading import LENGTHS, Key
from prefleet_operator.adapters.load_promql import fast_window, load_queries
from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, PodTarget
from prefleet_operator.adapters.pod_load import PodLoad, fast, to_pod_load
from prefleet_operator.adapters.role_load import Leavers, Windows, add_loads, long_ago, mean_length, missing_loads
from prefleet_operator.adapters.scraped_load import LoadHistory
from prefleet_operator.api import LengthMeasure, Role
from prefleet_operator.core.observed import HistogramSnapshot, Missing, Reading, Sample, Stale
from prefleet_operator.core.sizing.values import PodServed, RoleLoad, StepCost

from tests.support.native.cases import CASES

WINDOWS = Windows(slow_s=600.0, fast_s=60.0)
SGLANG = CASES["SGLang"].metrics
LENGTH = LengthMeasure.PROMPT
COST = StepCost(0.01, 1e-4)


def fleet(*roles: Role, name: str = "chat", **more: object) -> FleetQuery:
    pods = tuple(PodTarget(f"{name}-{number}", role, None) for number, role in enumerate(roles))
    return replace(FleetQuery("ns", name, pods, 300.0, LENGTH, sized=True), **more)  # type: ignore[arg-type]


def lengths(count: float, tokens: float = 100.0) -> HistogramSnapshot:
    return HistogramSnapshot((tokens,), (count, 0.0))


POD = PodLoad(
    watched_s=600.0,
    lengths=lengths(30),
    recent=lengths(3),
    prefill_tokens=6000.0,
    decode_tokens=1200.0,
    gaps=(60.0, 1200.0),
    recent_gaps=(12.0, 120.0),
    busy=0.5,
    waited=2.0,
    waiting=3.0,
    waiting_tokens=300.0,
    running=4.0,
    unfinished=7.0,
    kv_usage=0.5,
    kv_tokens=1000.0,
    step_tokens=512.0,
    cost=COST,
    cost_samples=500.0,
)
NEW = replace(
    POD, watched_s=None, lengths=names.NOTHING, recent=names.NOTHING, decode_tokens=0.0, busy=None, waited=None
)


def read(*pods: Reading[PodLoad], left: tuple[PodLoad, ...] = (), role: Role = Role.MIXED) -> RoleLoad:
    asked = fleet(*[role] * len(pods))
    found = {target.name: pod for target, pod in zip(asked.pods, pods, strict=True)}
    return add_loads(FleetReading(), asked, found, [(role, pod) for pod in left], WINDOWS).loads[role]


def test_pods_are_added_and_rates_are_of_the_time_watched() -> None:
    load = read(Sample(POD, 9.0), Sample(replace(POD, kv_usage=0.1, kv_tokens=900.0), 8.0))
    assert load.arrivals == Sample(lengths(60), 8.0)
    assert load.recent == Sample(lengths(6), 8.0)
    assert (load.slow_s, load.fast_s) == (600.0, 60.0)
    assert load.generated == Sample(4.0, 8.0)
    assert load.waiting == Sample(6.0, 8.0)
    assert load.waiting_tokens == Sample(600.0, 8.0)
    assert load.running == Sample(8.0, 8.0)
    assert load.kv_usage == Sample(pytest.approx(0.3), 8.0)
    assert load.kv_tokens == Sample(900.0, 8.0)
    assert load.step_tokens == Sample(512, 8.0)
    assert load.gap_s == Sample(0.1, 8.0)
    assert load.step_cost == Sample(COST, 8.0)
    assert load.served[0] == PodServed("chat-0", 10.0, 2.0, 0.5, 2.0)


SUMS = ("arrivals", "recent", "generated", "waiting", "waiting_tokens", "running", "kv_usage", "gap_s")
ALIKE = ("kv_tokens", "step_tokens", "step_cost")


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        pytest.param(Missing("it is gone"), Missing, id="one that is missing leaves no sum"),
        pytest.param(Stale(POD, 1.0), Stale, id="one that is stale makes sums stale"),
        pytest.param(Sample(PodLoad(), 9.0), Missing, id="one that shows nothing leaves no sum"),
    ],
)
def test_every_pod_is_needed_for_what_is_added_and_one_for_what_is_alike(
    other: Reading[PodLoad], kind: type[object]
) -> None:
    load = read(Sample(POD, 9.0), other)
    assert {name: type(getattr(load, name)) for name in SUMS} == dict.fromkeys(SUMS, kind)
    assert {name: getattr(load, name).at_s for name in ALIKE} == dict.fromkeys(ALIKE, 9.0)
    assert load.served == ()


def test_a_new_pod_adds_nothing_yet() -> None:
    load = read(Sample(POD, 9.0), Sample(NEW, 9.0))
    assert load.arrivals == Sample(lengths(30), 9.0)
    assert load.slow_s == 600.0
    assert load.waiting == Sample(6.0, 9.0)
    assert load.served == ()


def test_pods_that_have_left_count_to_what_came_and_to_nothing_else() -> None:
    load = read(Sample(POD, 9.0), left=(POD, PodLoad()))
    assert load.arrivals == Sample(lengths(60), 9.0)
    assert load.recent == Sample(lengths(6), 9.0)
    assert load.generated == Sample(4.0, 9.0)
    assert load.running == Sample(4.0, 9.0)
    assert len(load.served) == 1


def test_fresh_pods_that_took_over_have_not_had_all_of_it_themselves() -> None:
    fresh = replace(POD, watched_s=60.0, lengths=lengths(3), decode_tokens=120.0)
    left = replace(POD, watched_s=240.0, lengths=lengths(12), decode_tokens=480.0)
    load = read(Sample(fresh, 9.0), left=(long_ago(left, 60.0, WINDOWS),))
    assert (load.arrivals, load.slow_s) == (Sample(lengths(15), 9.0), 300.0)
    assert load.generated == Sample(2.0, 9.0)
    assert long_ago(POD, 60.0, WINDOWS) == POD, "no longer than the window"
    assert long_ago(NEW, 60.0, WINDOWS) == NEW, "one that was never watched is not watched now"


def test_nothing_follows_from_the_first_moments() -> None:
    load = read(Sample(replace(POD, watched_s=59.0), 9.0))
    told = Missing("the mixed pods have been watched for 59 s, and sizing wants 60 s of them")
    assert load.arrivals == load.recent == load.generated == told
    assert load.served == ()
    assert isinstance(load.waiting, Sample)
    assert isinstance(read(Sample(replace(POD, watched_s=60.0), 9.0)).arrivals, Sample)


@pytest.mark.parametrize(
    ("recent", "slow", "gap_s"),
    [
        pytest.param((12.0, 120.0), (60.0, 1200.0), 0.1, id="of the fast window"),
        pytest.param((0.0, 0.0), (60.0, 1200.0), 0.05, id="of the slow one where nothing was decoded since"),
        pytest.param(None, (60.0, 1200.0), 0.05, id="of the slow one where the fast one is not known"),
        pytest.param((0.0, 0.0), (0.0, 0.0), 0.0, id="none where nothing is decoded"),
        pytest.param(None, None, None, id="not known where no pod tells"),
    ],
)
def test_the_gap(recent: names.Gaps | None, slow: names.Gaps | None, gap_s: float | None) -> None:
    found = read(Sample(replace(POD, recent_gaps=recent, gaps=slow), 9.0)).gap_s
    assert (found.value if isinstance(found, Sample) else None) == gap_s


@pytest.mark.parametrize(
    ("token_s", "chosen"),
    [
        pytest.param((3e-4, 1e-4, 2e-4), 2e-4, id="the middle one of three"),
        pytest.param((1e-4, 2e-4), 2e-4, id="the dearer of two"),
        pytest.param((0.0, 1e-4, -1.0), 1e-4, id="one that costs nothing is no fit"),
        pytest.param((9.0, 1e-4), 1e-4, id="nor is one of hours"),
    ],
)
def test_of_several_fits(token_s: tuple[float, ...], chosen: float) -> None:
    fits = [Sample(replace(POD, cost=replace(COST, prefill_token=seconds)), 9.0) for seconds in token_s]
    found = read(*fits).step_cost
    assert isinstance(found, Sample)
    assert found.value.prefill_token == chosen


def test_a_fit_of_few_steps_is_none() -> None:
    told = "the mixed pods have learnt what a step costs from 99 steps at most, and 100 are needed"
    assert read(Sample(replace(POD, cost_samples=99.0), 9.0)).step_cost == Missing(told)


def test_a_decode_pod_needs_no_cost_of_prefill() -> None:
    cost = StepCost(0.02, 0.0, 1e-5)
    assert read(Sample(replace(POD, cost=cost), 9.0), role=Role.DECODE).step_cost == Sample(cost, 9.0)


def test_roles_do_not_mix_and_a_fleet_that_is_not_sized_has_no_loads() -> None:
    asked = fleet(Role.PREFILL, Role.DECODE)
    pods = {"chat-0": Sample(POD, 9.0), "chat-1": Sample(replace(POD, running=40.0), 9.0)}
    reading = add_loads(FleetReading(), asked, pods, [(Role.DECODE, POD)], WINDOWS)
    assert reading.loads[Role.PREFILL].arrivals == Sample(lengths(30), 9.0)
    assert reading.loads[Role.DECODE].running == Sample(40.0, 9.0)
    assert reading.pod_loads == {"chat-0": Sample(7.0, 9.0), "chat-1": Sample(7.0, 9.0)}
    assert add_loads(FleetReading(), replace(asked, sized=False), pods) == FleetReading()


def test_a_source_that_failed_leaves_its_reason_everywhere() -> None:
    reading = missing_loads(FleetReading(), fleet(Role.MIXED), "Prometheus is down")
    assert reading.loads[Role.MIXED].arrivals == Missing("Prometheus is down")
    assert reading.loads[Role.MIXED].kv_usage == Missing("Prometheus is down")
    assert reading.pod_loads == {"chat-0": Missing("Prometheus is down")}


# --- engines of their own


@pytest.mark.parametrize(
    ("waiting", "arrived", "tokens"),
    [
        pytest.param(0.0, 0.0, 0.0, id="nobody waits"),
        pytest.param(3.0, 10.0, 3 * mean_length(lengths(1)), id="so many of the mean length"),
        pytest.param(3.0, 0.0, None, id="no length is known"),
    ],
)
def test_tokens_that_wait_are_guessed(waiting: float, arrived: float, tokens: float | None) -> None:
    asked = fleet(Role.MIXED, engine=SGLANG)
    pod = replace(POD, waiting=waiting, lengths=lengths(arrived))
    load = add_loads(FleetReading(), asked, {"chat-0": Sample(pod, 9.0)}, (), WINDOWS).loads[Role.MIXED]
    found = load.waiting_tokens
    assert (found.value if isinstance(found, Sample) else None) == tokens
    assert load.step_cost == Missing("the engine shows no step cost")


def test_a_native_pods_work_is_what_ended_and_it_was_busy_while_requests_waited() -> None:
    (waiting, *_), (running, *_), (usage, *_) = SGLANG.waiting, SGLANG.running, SGLANG.kv_usage
    series: dict[Key, float] = {
        (f"{SGLANG.prompt_lengths[0]}_bucket", 100.0): 5.0,
        (f"{SGLANG.prompt_lengths[0]}_bucket", float("inf")): 5.0,
        (waiting, ""): 2.0,
        (running, ""): 3.0,
        (usage, ""): 0.25,
        (names.WATCHED, ""): 600.0,
        (names.WAITED, ""): 1.5,
        (names.QUEUED, ""): 0.95,
    }
    pod = to_pod_load(fleet(Role.MIXED, engine=SGLANG), series)
    assert pod.lengths == lengths(5)
    assert pod.prefill_tokens == pytest.approx(5 * mean_length(lengths(1)))
    assert (pod.waiting, pod.running, pod.unfinished, pod.kv_usage) == (2.0, 3.0, 5.0, 0.25)
    assert (pod.busy, pod.waited, pod.watched_s) == (0.95, 1.5, 600.0)


# --- one pod of the runtime


def shown(**more: float) -> dict[Key, float]:
    series: dict[Key, float] = {(names.RUNNING, ""): 1.0, (names.WAITING, "short"): 1.0, (names.WAITING, "long"): 2.0}
    return series | {(getattr(names, name), ""): value for name, value in more.items()}


def test_a_pod_of_which_no_counter_was_seen_twice_is_new() -> None:
    pod = to_pod_load(fleet(Role.MIXED), shown())
    assert (pod.lengths, pod.decode_tokens, pod.recent_gaps) == (names.NOTHING, 0.0, (0.0, 0.0))
    assert pod.waiting == 3.0


@pytest.mark.parametrize(
    "series",
    [
        pytest.param(shown(WATCHED=30.0), id="its time is counted, and no length"),
        pytest.param({}, id="it shows nothing at all"),
    ],
)
def test_a_pod_whose_counters_are_gone_is_not_new(series: dict[Key, float]) -> None:
    pod = to_pod_load(fleet(Role.MIXED), series)
    assert pod.lengths is None
    assert pod.decode_tokens is None


def test_increases_of_both_windows_are_told_apart() -> None:
    name = LENGTHS[LENGTH]
    series = shown(WATCHED=600.0, DECODE_TOKENS=90.0, DECODE_GAPS=9.0, STEP_SECONDS=300.0)
    series |= {(name, 100.0): 9.0, (name, float("inf")): 9.0, (fast(name), 100.0): 2.0}
    series |= {(fast(names.DECODE_TOKENS), ""): 10.0, (fast(names.DECODE_GAPS), ""): 2.0}
    pod = to_pod_load(fleet(Role.MIXED), series)
    assert (pod.lengths, pod.recent) == (lengths(9), lengths(2))
    assert (pod.gaps, pod.recent_gaps) == ((9.0, 90.0), (2.0, 10.0))
    assert pod.busy == 0.5


@pytest.mark.parametrize("value", [-1.0, 1e300, float("nan"), float("inf")])
def test_what_cannot_be_counts_as_not_shown(value: float) -> None:
    """A negative load would shrink a fleet, and one without end cannot be reckoned with."""
    name = LENGTHS[LENGTH]
    series = shown(DECODE_TOKENS=value, RUNNING=value, KV_TOKENS=value, WATCHED=600.0, STEP_SECONDS=value)
    series |= {(names.WAITING_TOKENS, "short"): 5.0, (names.WAITING_TOKENS, "long"): value, (name, 100.0): value}
    pod = to_pod_load(fleet(Role.MIXED), series)
    assert (pod.decode_tokens, pod.running, pod.kv_tokens, pod.busy) == (None, None, None, None)
    assert (pod.waiting_tokens, pod.lengths) == (None, None)
    assert pod.waiting == 3.0


@pytest.mark.parametrize(
    ("term", "kept"),
    [
        pytest.param(-1e-9, True, id="a fit may have negative terms"),
        pytest.param(61.0, False, id="none of a minute"),
        pytest.param(-1e150, False, id="nor of less than minus one"),
    ],
)
def test_a_cost_is_one_that_can_be(term: float, kept: bool) -> None:
    series = shown() | {(names.COST, each): 1e-5 for each in names.TERMS} | {(names.COST, "attention_pair"): term}
    assert (to_pod_load(fleet(Role.MIXED), series).cost is not None) is kept


# --- who was there, and how often they are scraped


def test_pods_that_left_are_known_for_a_window() -> None:
    leavers, both = Leavers(600.0), fleet(Role.MIXED, Role.MIXED)
    first = replace(both, pods=both.pods[:1])
    for asked, now, left in ((both, 0.0, []), (first, 10.0, ["chat-1"]), (first, 599.0, ["chat-1"]), (both, 599.5, [])):
        leavers.note([asked], now)
        assert [pod.name for pod, _ in leavers.of(asked)] == left
        assert all(at_s == 0.0 for _, at_s in leavers.of(asked)), "when it was last there"
    leavers.note([first], 700.0)
    leavers.note_shown(first, both.pods[1], 690.0)
    leavers.note([first], 1200.0)
    assert leavers.of(first) == ((both.pods[1], 690.0),), "one that goes slowly was still read"
    leavers.note([first], 1290.0)
    assert leavers.of(first) == ()
    leavers.note([], 1201.0)
    leavers.note([first], 1202.0)
    assert leavers.of(first) == ()


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param([48, 48], 60.0, id="scraped every 5 s"),
        pytest.param([16, 16, 2], 60.0, id="every 15 s, but for a pod that is hard to reach"),
        pytest.param([8], 120.0, id="every 30 s"),
        pytest.param([4], 240.0, id="every 60 s"),
        pytest.param([2, 2], None, id="every 2 minutes"),
        pytest.param([], 90.0, id="no pod is old enough to tell"),
    ],
)
def test_the_fast_window_holds_four_scrapes(samples: list[float], expected: float | None) -> None:
    assert fast_window(samples, 90.0, WINDOWS) == expected


def test_all_sized_fleets_are_asked_for_together_and_by_their_pods_alone() -> None:
    one, two = fleet(Role.PREFILL, name="a"), fleet(Role.DECODE, name="b")
    members = [(one, ("a-0",)), (two, ("b-0", "b-gone"))]
    queries = list(load_queries(members, 600.0, 60.0, WINDOWS))
    assert all('namespace=~"ns",pod=~"a-0|b-0|b-gone"}' in query.expression for query in queries)
    assert len(queries) == len(list(load_queries(members[:1], 600.0, 60.0, WINDOWS))) == 14
    without = [query.name for query in load_queries(members, 600.0, None, WINDOWS)]
    assert len(without) == 11
    assert not any(name.startswith("fast:") for name in without)
    assert list(load_queries([(one, ())], 600.0, 60.0, WINDOWS)) == []


def test_series_of_one_rank_are_of_one_queue() -> None:
    (sglang, mindie) = (CASES[kind].metrics for kind in ("SGLang", "MindIE"))
    queries = {}
    for engine in (sglang, mindie):
        asked = load_queries([(fleet(Role.MIXED, engine=engine), ("p",))], 600.0, None, WINDOWS)
        queries |= {query.name: query.expression for query in asked if query.name in engine.gauges}
    pods = '{namespace=~"ns",pod=~"p"}'
    waiting = f"sum by (namespace, pod) (max by (namespace, pod, dp_rank) (sglang:num_queue_reqs{pods}))"
    assert queries["sglang:num_queue_reqs"].startswith(f"{waiting} or on (namespace, pod) ")
    assert queries["sglang:token_usage"].startswith("avg by (namespace, pod) (max by (namespace, pod, dp_rank) (")
    assert queries["num_requests_waiting"].startswith("sum by (namespace, pod) (max by (namespace, pod) (num_")


# --- the pod scrape


def test_what_waited_between_scrapes_counts_as_the_first_of_them_has_shown() -> None:
    history = LoadHistory(None, WINDOWS)
    for now, waiting in ((0.0, 4.0), (10.0, 0.0), (20.0, 0.0), (40.0, 2.0)):
        history.add({(names.WAITING, "short"): waiting}, now)
    series = history.series(40.0)
    assert series[names.WATCHED, ""] == 40.0
    assert series[names.WAITED, ""] == 1.0
    assert series[names.QUEUED, ""] == 0.25


def test_what_waited_is_counted_on_after_a_clock_is_put_back() -> None:
    history = LoadHistory(None, WINDOWS)
    for now in (5000.0, 1000.0, 1010.0, 1020.0):
        history.add({(names.WAITING, "short"): 4.0}, now)
    series = history.series(1020.0)
    assert (series[names.WATCHED, ""], series[names.WAITED, ""], series[names.QUEUED, ""]) == (20.0, 4.0, 1.0)


def test_increases_are_those_of_their_window_and_fade_when_the_pod_is_gone() -> None:
    history = LoadHistory(None, WINDOWS)
    for step in range(11):
        history.add({(names.DECODE_TOKENS, ""): 100.0 * step, (names.RUNNING, ""): 1.0}, 30.0 * step)
    series = history.series(300.0)
    assert series[names.DECODE_TOKENS, ""] == 1000.0
    assert series[fast(names.DECODE_TOKENS), ""] == 200.0
    assert series[names.WATCHED, ""] == 300.0
    later = history.series(745.0)
    assert later[names.DECODE_TOKENS, ""] == pytest.approx(1000.0 * 155 / 300)
    assert (fast(names.DECODE_TOKENS), "") not in later
    assert (names.DECODE_TOKENS, "") not in history.series(1000.0)
