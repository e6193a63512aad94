"""The loads of the policy benchmark, and what a run is judged by."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from prefleet_runtime.contract import StallBudgetStage

from tests.benchmarks.policies.cases import (
    CANDIDATE,
    CONTENDERS,
    FCFS,
    LONGS_IN_BURST,
    MAX_STALL_MS,
    SHORTS_IN_BURST,
    STALL_BUDGET,
    Contender,
    Job,
    burst,
    sustained,
)
from tests.benchmarks.policies.figures import Outcome, figures_of
from tests.support.demo.workload import quantile

SHORT, LONG = 64, 4000


def test_a_burst_is_all_longs_and_then_all_shorts() -> None:
    jobs = burst(128, False, random.Random(1))
    assert [job.is_long for job in jobs] == [True] * LONGS_IN_BURST + [False] * SHORTS_IN_BURST
    assert {job.output_tokens for job in jobs} == {128}


def test_an_interleaved_load_has_the_same_requests_in_another_order() -> None:
    plain, mixed = (burst(1, interleaved, random.Random(1)) for interleaved in (False, True))
    assert [j.prompt_tokens for j in mixed] != [j.prompt_tokens for j in plain]
    assert sorted(j.prompt_tokens for j in mixed) == sorted(j.prompt_tokens for j in plain)


def test_sustained_arrivals_come_at_their_rate_a_quarter_of_them_long() -> None:
    jobs = sustained(1, 5.0, 4000, random.Random(1))
    # Of 4,000 exponential gaps the mean has a deviation of 1.6%, of 4,000 draws the share one of 0.7 points.
    assert len(jobs) / jobs[-1].at_s == pytest.approx(5.0, rel=0.06)
    assert sum(job.is_long for job in jobs) / len(jobs) == pytest.approx(0.25, abs=0.03)
    assert all(earlier.at_s <= later.at_s for earlier, later in pairwise(jobs))


def test_the_same_seed_draws_the_same_load() -> None:
    assert sustained(1, 2.0, 50, random.Random("a 1")) == sustained(1, 2.0, 50, random.Random("a 1"))


@pytest.mark.parametrize("costs", MAX_STALL_MS)
@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
def test_every_policy_is_one_that_the_runtime_accepts(contender: Contender, costs: str) -> None:
    policy = contender.policy_on(costs)
    assert (policy is None) == (contender.policy is None)
    if contender.bounds_stalls:
        assert policy is not None
        assert policy.stage == StallBudgetStage(type="stall_budget", max_stall_ms=MAX_STALL_MS[costs])


def test_the_names_that_the_bars_speak_of_are_contenders() -> None:
    assert {FCFS, CANDIDATE, STALL_BUDGET} <= {contender.name for contender in CONTENDERS}


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        pytest.param([3.0, 1.0, 2.0], 0.5, 2.0, id="the middle one of three"),
        pytest.param([1.0, 2.0, 3.0, 4.0], 0.5, 2.0, id="the lower middle one of four"),
        pytest.param(list(map(float, range(1, 21))), 0.95, 19.0, id="rank 19 of 20"),
        pytest.param([5.0], 0.99, 5.0, id="the only one"),
        pytest.param([1.0, 2.0], 0.0, 1.0, id="the least"),
    ],
)
def test_a_quantile_is_the_value_at_its_rank(values: list[float], q: float, expected: float) -> None:
    assert quantile(values, q) == expected


def test_a_quantile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(quantile([], 0.5))


def test_figures_are_told_by_lane_from_the_arrival() -> None:
    figures = figures_of(
        [Outcome(Job(1.0, SHORT, 3), [2.0, 2.5, 4.0]), Outcome(Job(1.0, LONG, 3), [5.0, 5.0, 6.0])],
    )
    assert figures == {
        "short_ttft_p50": 1.0,
        "short_ttft_p95": 1.0,
        "long_ttft_p95": 4.0,
        "short_e2e_p95": 3.0,
        "long_e2e_p95": 5.0,
        "e2e_p95": 5.0,
        "short_tpot_p50": 1.0,
        "gap_p99": 1.5,
        "output_tokens_per_s": 6 / 5,
    }


def test_an_answer_of_one_token_has_neither_gaps_nor_a_time_per_token() -> None:
    figures = figures_of([Outcome(Job(0.0, SHORT, 1), [1.0]), Outcome(Job(0.0, LONG, 1), [2.0])])
    assert "gap_p99" not in figures
    assert "short_tpot_p50" not in figures


def test_a_run_without_longs_shows_nothing_of_them() -> None:
    figures = figures_of([Outcome(Job(0.0, SHORT, 1), [1.0])])
    assert not [metric for metric in figures if metric.startswith("long")]
