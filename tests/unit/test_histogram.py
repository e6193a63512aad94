"""Quantile intervals and shares against the exact figures of the sample."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefleet_operator.core.histogram import count_above, nearest_bound, quantile, quantile_interval, shares_below
from prefleet_operator.core.observed import HistogramSnapshot
from prefleet_operator.core.survival import estimate_wait, samples_needed

from tests.support.lengths import COARSE, FINE, exact_quantile, histogram

LENGTHS = st.lists(st.integers(1, 200_000), min_size=1, max_size=200)
BOUNDS = pytest.mark.parametrize("bounds", [FINE, COARSE], ids=["fine buckets", "coarse buckets"])


@BOUNDS
@given(lengths=LENGTHS, q=st.floats(0.01, 0.99))
def test_the_interval_holds_the_exact_quantile_and_the_point(bounds, lengths, q):
    interval = quantile_interval(histogram(lengths, bounds), q)
    assert interval.low <= exact_quantile(lengths, q) <= interval.high
    assert interval.low <= interval.point <= interval.high


@BOUNDS
@given(lengths=LENGTHS)
def test_quantiles_rise_with_the_rank(bounds, lengths):
    answers = [quantile(histogram(lengths, bounds), step / 20) for step in range(1, 20)]
    assert answers == sorted(answers)


@given(lengths=LENGTHS, bound=st.sampled_from(FINE))
def test_shares_at_a_bound_are_exact_in_requests_and_close_in_work(lengths, bound):
    shares = shares_below(histogram(lengths), bound)
    below = [length for length in lengths if length <= bound]
    assert shares.p == pytest.approx(len(below) / len(lengths))
    # A quarter octave is a factor of 1.19 (2 among the small whole numbers), for both sums.
    assert shares.w == pytest.approx(sum(below) / sum(lengths), abs=0.15)


@given(lengths=LENGTHS, thresholds=st.lists(st.floats(0.5, 3e5), min_size=2, max_size=2))
def test_shares_rise_with_the_threshold_and_end_at_one(lengths, thresholds):
    sample = histogram(lengths)
    low, high = (shares_below(sample, threshold) for threshold in sorted(thresholds))
    assert 0 <= low.p <= high.p <= 1 + 1e-9
    assert 0 <= low.w <= high.w + 1e-9
    assert shares_below(sample, 2.0**21).p == pytest.approx(1)


def test_95_of_100_intervals_cover_the_true_quantile():
    # Uniform on 1..8192 has its P70 at 5734; the bucket's edges only widen the binomial interval.
    covered = 0
    for seed in range(100):
        rng = random.Random(seed)
        interval = quantile_interval(histogram([rng.randint(1, 8192) for _ in range(300)]), 0.7)
        covered += interval.low <= 5734 <= interval.high
    assert covered >= 95


def test_a_quantile_beyond_the_last_bound_is_infinite():
    sample = HistogramSnapshot((10.0,), (5.0, 95.0))
    interval = quantile_interval(sample, 0.9)
    assert (interval.low, interval.point, interval.high) == (10, math.inf, math.inf)


def test_counts_of_an_extrapolated_rate_are_fractions():
    # 1.5 in (0, 1] and 4.5 in (1, 2]: the median rank 3 lies a third into the upper bucket, 2^(1/3).
    assert quantile(HistogramSnapshot((1.0, 2.0), (1.5, 4.5, 0.0)), 0.5) == pytest.approx(2 ** (1 / 3))


def test_only_buckets_that_begin_above_a_value_surely_lie_above_it():
    waits = HistogramSnapshot((1.0, 2.0, 4.0), (1.0, 2.0, 3.0, 4.0))
    assert [count_above(waits, value) for value in (1.0, 1.5, 2.0, 5.0)] == [9.0, 7.0, 7.0, 0.0]


@pytest.mark.parametrize(("value", "bound"), [(1100, 1024), (1200, 1218), (3e6, 2.0**20), (0.1, 1)])
def test_the_nearest_bound_is_nearest_in_ratio(value, bound):
    assert nearest_bound(histogram([1]), value) == bound


@pytest.mark.parametrize(("q", "needed"), [(0.95, 59), (0.90, 29)])
def test_a_wait_estimate_needs_a_sample_that_reaches_the_quantile(q, needed):
    assert samples_needed(q) == needed
    assert estimate_wait(histogram([1.0] * (needed - 1), FINE), q) is None
    assert estimate_wait(histogram([1.0] * needed, FINE), q) is not None


@pytest.mark.parametrize(
    ("oldest_s", "tail_known"),
    [
        pytest.param(2.0, True, id="the tail is known while nothing waits longer than the quantile"),
        pytest.param(9.0, False, id="a request that waits longer makes the tail unknown"),
    ],
)
def test_the_oldest_wait_labels_the_tail(oldest_s, tail_known):
    estimate = estimate_wait(histogram([3.0] * 100, (1.0, 2.0, 4.0)), 0.95, oldest_s)
    assert estimate is not None
    assert estimate.tail_known is tail_known


def test_a_quantile_beyond_the_last_bucket_is_a_lower_limit():
    estimate = estimate_wait(histogram([9.0] * 100, (1.0, 2.0, 4.0)), 0.95)
    assert estimate is not None
    assert (estimate.wait_s, estimate.tail_known) == (4.0, False)
