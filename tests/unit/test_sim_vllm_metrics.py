"""The bucket bounds that the simulated server shares with vLLM."""

import pytest
from prefleet_runtime.sim.vllm_metrics import (
    INTER_TOKEN_LATENCY_BUCKETS,
    ITERATION_TOKENS_BUCKETS,
    REQUEST_LATENCY_BUCKETS,
    TIME_TO_FIRST_TOKEN_BUCKETS,
    one_two_five,
)


@pytest.mark.parametrize(
    ("limit", "bounds"),
    [
        pytest.param(100, (1, 2, 5, 10, 20, 50, 100), id="a power of ten is the last bound"),
        pytest.param(4096, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000), id="bounds beyond the limit are out"),
        pytest.param(1, (1,), id="the smallest"),
    ],
)
def test_token_bounds_follow_one_two_five(limit: int, bounds: tuple[int, ...]) -> None:
    assert one_two_five(limit) == bounds


def test_steps_are_counted_in_powers_of_two_but_for_two_and_four() -> None:
    assert ITERATION_TOKENS_BUCKETS == (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@pytest.mark.parametrize(
    ("bounds", "count", "first", "last"),
    [
        pytest.param(REQUEST_LATENCY_BUCKETS, 21, 0.3, 7680, id="latencies: nothing below 300 ms"),
        pytest.param(TIME_TO_FIRST_TOKEN_BUCKETS, 22, 0.001, 2560, id="time to first token"),
        pytest.param(INTER_TOKEN_LATENCY_BUCKETS, 19, 0.01, 80, id="time between tokens"),
    ],
)
def test_second_bounds_are_those_of_vllm(bounds: tuple[float, ...], count: int, first: float, last: float) -> None:
    assert list(bounds) == sorted(bounds)
    assert (len(bounds), bounds[0], bounds[-1]) == (count, first, last)
