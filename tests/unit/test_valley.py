"""Valleys: found between two kinds of requests, and nowhere else."""

import math
import random
from itertools import islice

import pytest
from prefleet_operator.core.observed import HistogramSnapshot
from prefleet_operator.core.valley import find_valleys

from tests.support.lengths import COARSE, FINE, demo_mix, histogram, two_kinds

SIZES = pytest.mark.parametrize("n", [300, 600, 1000, 3000])
BOUNDS = pytest.mark.parametrize("bounds", [FINE, COARSE], ids=["fine buckets", "coarse buckets"])

UNIMODAL = {
    "lognormal": lambda rng: rng.lognormvariate(7, 1),
    "narrow": lambda rng: rng.lognormvariate(7, 0.4),
    "exponential": lambda rng: rng.expovariate(1 / 2000),
    "uniform": lambda rng: rng.uniform(1, 8000),
    "even in the logarithm": lambda rng: 2 ** rng.uniform(4, 13),
    "constant": lambda rng: 1000,
}


@BOUNDS
@SIZES
def test_the_two_kinds_of_the_demo_fall_apart_between_1000_and_2000_tokens(n, bounds):
    for seed in range(20):
        (valley,) = find_valleys(histogram(demo_mix(n, seed), bounds))
        assert 400 <= valley.low <= valley.floor <= valley.high <= 3500
        assert 1000 <= valley.floor <= 2000
        assert valley.height < 0.1


@BOUNDS
@SIZES
@pytest.mark.parametrize("kind", UNIMODAL)
def test_one_kind_of_requests_has_no_valley(kind, n, bounds):
    for seed in range(20):
        rng = random.Random(seed)
        lengths = [max(1, math.ceil(UNIMODAL[kind](rng))) for _ in range(n)]
        assert find_valleys(histogram(lengths, bounds)) == ()


@pytest.mark.parametrize("long_share", [0.1, 0.4, 0.6])
def test_a_valley_is_found_whatever_the_share_of_longs(long_share):
    for seed in range(20):
        lengths = islice(two_kinds(random.Random(seed), long_share), 1000)
        (valley,) = find_valleys(histogram(lengths))
        assert 600 <= valley.floor <= 2500


def test_too_few_requests_on_one_side_are_a_tail():
    assert find_valleys(histogram([200] * 970 + [6000] * 30)) == ()


def test_a_few_requests_are_not_significant():
    assert find_valleys(histogram([200] * 6 + [6000] * 6)) == ()


def test_three_kinds_have_two_valleys():
    floors = [round(valley.floor) for valley in find_valleys(histogram([50] * 400 + [1000] * 400 + [20_000] * 400))]
    assert len(floors) == 2
    assert 50 < floors[0] < 1000 < floors[1] < 20_000


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param((0.0, 0.0, 0.0), id="an empty histogram"),
        pytest.param((0.0, 0.0, 500.0), id="everything beyond the last bound"),
        pytest.param((500.0, 0.0, 0.0), id="everything in the first bucket"),
    ],
)
def test_there_is_no_valley_in(counts):
    assert find_valleys(HistogramSnapshot((1.0, 2.0), counts)) == ()
