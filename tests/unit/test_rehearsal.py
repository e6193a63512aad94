"""What replay prefers, and what the tuner makes of it; the replay is a stand-in that is told what to answer."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefleet_operator.api import SchedulingPolicy
from prefleet_operator.core.observed import FleetMetrics, Sample
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.rehearsal import (
    HALVINGS,
    THRESHOLDS,
    WAITS,
    ReplayScore,
    cheapest,
    fits,
    prefer_wait,
    price,
    search,
    spread,
)
from prefleet_operator.core.tuner import decide
from prefleet_operator.core.tuning import TunerMemory

from tests.support.lengths import demo_mix, exact_quantile, histogram
from tests.support.policies import make_spec

NOW = 1_800_000_000.0
ONE_KIND = [round(random.Random(seed).lognormvariate(7, 1)) for seed in range(3000)]
BAND = (exact_quantile(ONE_KIND, 0.70), exact_quantile(ONE_KIND, 0.85))
SPREADLESS = [1000 + seed % 50 for seed in range(1000)]
GOOD = ReplayScore(
    shorts=800, short_mean_s=0.2, short_p95_s=0.5, late_share=0.0, long_waits=200, long_p90_s=2.0, long_p95_s=3.0
)


class StandIn:
    """A replay that scores as `answer` says, and keeps what it was asked."""

    def __init__(self, answer: Callable[[int, float], ReplayScore] = lambda threshold, wait_s: GOOD) -> None:
        self.answer = answer
        self.asked: list[tuple[int, float]] = []

    def __call__(self, threshold: int, wait_s: float) -> ReplayScore:
        self.asked.append((threshold, wait_s))
        return self.answer(threshold, wait_s)


def metrics(lengths: list[int]) -> FleetMetrics:
    return FleetMetrics(lengths=Sample(histogram(lengths), NOW))


def mean(seconds: float, late: float = 0.0) -> ReplayScore:
    return replace(GOOD, short_mean_s=seconds, late_share=late)


scores = st.dictionaries(
    st.floats(1, 1e6),
    st.builds(mean, st.floats(0.001, 1000), st.floats(0, 1)),
    min_size=1,
    max_size=8,
)


@given(scores, st.floats(0, 1))
def test_short_requests_pay_no_more_than_the_price_and_longs_get_the_best_of_it(given_scores, bias):
    chosen = given_scores[prefer_wait(given_scores, bias, usual_s=1.0)]
    limit = min(score.short_mean_s for score in given_scores.values()) * price(bias)
    assert chosen.short_mean_s <= limit
    assert all(chosen.late_share <= each.late_share for each in given_scores.values() if each.short_mean_s <= limit)


@given(scores)
def test_with_bias_1_only_short_requests_count(given_scores):
    preferred = prefer_wait(given_scores, bias=1, usual_s=1.0)
    assert given_scores[preferred].short_mean_s == min(score.short_mean_s for score in given_scores.values())


def test_without_short_requests_the_usual_limit_stays():
    nobody = replace(GOOD, shorts=0, short_mean_s=math.nan)
    assert prefer_wait({1.0: nobody, 2.0: nobody, 3.0: nobody}, bias=0.5, usual_s=2.1) == 2.0


@given(st.integers(200, 1000), st.integers(1000, 2000), st.integers(100, 3000))
def test_a_search_comes_close_to_the_top_of_a_cliff(low, high, cliff):
    # Below the cliff some short requests wait with the long ones; above it each token costs a little.
    def rehearse(threshold: int) -> ReplayScore:
        return mean(100.0 if threshold < cliff else threshold / cliff)

    coarse = sorted({int(at) for at in spread(low, high, THRESHOLDS)})
    tried = search(coarse, rehearse)
    found = cheapest(tried)
    assert low <= found <= high
    assert len(tried) <= len(coarse) + 2 * HALVINGS
    if low <= cliff <= high:
        ratio = (high / low) ** (1 / (THRESHOLDS - 1) / 2**HALVINGS)
        assert cliff <= found <= cliff * ratio * 1.05 or found - cliff <= 4 or cliff > coarse[-1]


def test_nothing_to_search_is_not_rehearsed():
    assert search([], mean) == {}


@pytest.mark.parametrize(("p95_s", "fit"), [(0.5, True), (0.65, True), (0.66, False)])
def test_a_share_fits_that_leaves_shorts_nearly_what_they_had(p95_s, fit):
    assert fits(replace(GOOD, short_p95_s=p95_s), GOOD) is fit


@given(st.floats(0.1, 1e5), st.floats(1, 100), st.integers(2, 9))
def test_a_spread_reaches_from_end_to_end_and_rises(low, ratio, count):
    values = spread(low, low * ratio, count)
    assert values[0] == low
    assert values[-1] == pytest.approx(low * ratio)
    assert values == sorted(values)
    assert len(values) <= count


def test_inside_the_band_the_threshold_is_the_one_that_replay_prefers():
    goal = 2000
    assert BAND[0] < goal < BAND[1]
    replay = StandIn(lambda threshold, wait_s: mean(1 + abs(threshold - goal) / goal))
    decision, _ = decide(metrics(ONE_KIND), make_spec(), TunerMemory(), NOW, replay)
    tried = {threshold for threshold, _ in replay.asked}
    assert decision.threshold == min(tried, key=lambda threshold: abs(threshold - goal))
    assert abs(decision.threshold - goal) < 0.02 * goal
    assert decision.threshold_finding.reason is Reason.BAND_OPTIMUM
    assert f"replay prefers {decision.threshold:,}" in decision.threshold_finding.message


def test_thresholds_are_compared_at_the_highest_wait_that_keeps_the_slo_or_at_the_pinned_one():
    for scheduling, wait_s in (({}, 7.2), ({"longMaxWait": "3s"}, 3.0)):
        replay = StandIn()
        decide(metrics(ONE_KIND), make_spec(scheduling), TunerMemory(), NOW, replay)
        assert {asked[1] for asked in replay.asked[:THRESHOLDS]} == {wait_s}


def test_a_valley_that_costs_shorts_hardly_more_wins():
    replay = StandIn(lambda threshold, wait_s: mean(1.01 if threshold == 1218 else 1.0))
    decision, _ = decide(metrics(demo_mix(1000, seed=1)), make_spec(), TunerMemory(), NOW, replay)
    assert decision.threshold == 1218
    assert decision.threshold_finding.reason is Reason.VALLEY
    assert "replay agrees" in decision.threshold_finding.message


def test_a_valley_that_shorts_pay_for_is_rejected():
    replay = StandIn(lambda threshold, wait_s: mean(1.1 if threshold == 1218 else 1.0))
    decision, _ = decide(metrics(demo_mix(1000, seed=1)), make_spec(), TunerMemory(), NOW, replay)
    assert decision.valley is None
    assert decision.threshold_finding.reason is Reason.BAND_OPTIMUM
    assert "replay rejects the valley at 1,218" in decision.threshold_finding.message


def test_a_threshold_that_replay_set_beside_a_rejected_valley_stays():
    replay = StandIn(lambda threshold, wait_s: mean(1.1 if threshold == 1218 else 1.0))
    memory = TunerMemory(SchedulingPolicy.SHORT_REQUEST_FIRST, 3000, int(NOW) - 3600)
    decision, _ = decide(metrics(demo_mix(1000, seed=1)), make_spec(), memory, NOW, replay)
    assert decision.threshold == 3000
    assert decision.threshold_finding.reason is Reason.WITHIN_BAND


def test_a_threshold_that_may_stay_is_not_replayed_against_others():
    memory = TunerMemory(SchedulingPolicy.SHORT_REQUEST_FIRST, 2000, int(NOW) - 3600)
    replay = StandIn(lambda threshold, wait_s: mean(threshold))
    decision, _ = decide(metrics(ONE_KIND), make_spec(), memory, NOW, replay)
    assert decision.threshold == 2000
    assert {threshold for threshold, _ in replay.asked} == {2000}


def test_lengths_without_spread_are_not_replayed_at_all():
    replay = StandIn()
    decision, _ = decide(metrics(SPREADLESS), make_spec(), TunerMemory(), NOW, replay)
    assert decision.policy is SchedulingPolicy.FCFS
    assert decision.threshold_finding.reason is Reason.NO_LENGTH_SPREAD
    assert replay.asked == []


WAIT_CASES = [
    # id, P95 of long waits without promotion, which limit replay likes, the limit set
    ("a low normal wait leaves half of the SLO to its 0.9", 1.0, min, 4.0),
    ("the high end is chosen where replay prefers it", 1.0, max, 7.2),
    ("1.5 normal waits are the low end", 4.0, min, 6.0),
    ("no room means 0.9 of the SLO and that capacity is short", 5.0, min, 7.2),
]


@pytest.mark.parametrize(
    ("normal_s", "liked", "limit_s"), [case[1:] for case in WAIT_CASES], ids=[c[0] for c in WAIT_CASES]
)
def test_the_wait_limit_is_the_one_that_replay_prefers(normal_s, liked, limit_s):
    def answer(threshold: int, wait_s: float) -> ReplayScore:
        far = wait_s if liked is min else 10 - wait_s
        return replace(GOOD, short_mean_s=0.2 if wait_s == 0 else 1 + far, long_p95_s=normal_s, long_p90_s=0.0)

    replay = StandIn(answer)
    decision, memory = decide(metrics(demo_mix(1000, seed=1)), make_spec(), TunerMemory(), NOW, replay)
    assert decision.long_max_wait_s == memory.long_max_wait_s == limit_s
    assert decision.capacity_limited is (normal_s == 5.0)
    waits = [wait_s for _, wait_s in replay.asked]
    tried = waits[waits.index(0) + 1 :]
    assert len(tried) == (0 if decision.capacity_limited else WAITS)


def test_the_spec_says_which_quantile_is_normal():
    replay = StandIn(lambda threshold, wait_s: replace(GOOD, long_p90_s=4.0, long_p95_s=6.0))
    spec = make_spec(tuning={"waitQuantile": "P90"})
    decision, _ = decide(metrics(demo_mix(1000, seed=1)), spec, TunerMemory(), NOW, replay)
    assert not decision.capacity_limited
    assert "P90 of 200 long waits is 4s" in decision.wait_finding.message


def test_too_few_replayed_longs_leave_the_wait_unknown():
    replay = StandIn(lambda threshold, wait_s: replace(GOOD, long_waits=58))
    decision, _ = decide(metrics(demo_mix(1000, seed=1)), make_spec(), TunerMemory(), NOW, replay)
    assert decision.long_max_wait_s == 0
    assert decision.wait_finding.reason is Reason.LEARNING_WAITS
    assert "58 long waits in replay, of 59 needed" in decision.wait_finding.message


def test_in_advise_mode_replay_finds_a_wait_that_no_fleet_has_measured():
    spec = make_spec(tuning={"mode": "Advise"})
    decision, memory = decide(metrics(demo_mix(1000, seed=1)), spec, TunerMemory(), NOW, StandIn())
    assert decision.policy is SchedulingPolicy.FCFS
    assert memory.long_max_wait_s == decision.wait_finding.value
    assert 4.5 <= memory.long_max_wait_s <= 7.2


def test_what_replay_cannot_tell_apart_is_left_to_bias():
    limits = []
    for bias in (0, 0.5, 1):
        spec = make_spec(tuning={"bias": bias})
        decision, _ = decide(metrics(demo_mix(1000, seed=1)), spec, TunerMemory(), NOW, StandIn())
        limits.append(decision.long_max_wait_s)
    # From 1.5 x 3 s to 7.2 s in five steps of equal ratio, 4.5 x 1.6^(k/4): 5.692 is nearest to the middle, 5.85.
    assert limits == [4.5, 5.692, 7.2]
