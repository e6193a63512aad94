"""The bars of the policy benchmark: what is missed says so, and what was not run is not judged."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.bars import Bar
from tests.benchmarks.policies.bars import LIMITS, bars
from tests.benchmarks.policies.cases import CANDIDATE, FCFS, LOADS, MAX_STALL_MS, NODES, STALL_BUDGET
from tests.benchmarks.policies.rows import VIRTUAL, WALL, Row

STALL_S = MAX_STALL_MS["cpu"] / 1000


def row(metric: str, ratio: float, **more: Any) -> Row:
    """Of the candidate on a prefill-only node under 90%, if not told otherwise."""
    place = {"half": VIRTUAL, "node": "prefill", "costs": "cpu", "load": "sustained_90", "policy": CANDIDATE}
    figures = {"value": 1.0, "worst": ratio, "noise": 0.0, "pairs": 5, "conclusive": True}
    return Row(**place | figures | {"metric": metric, "ratio": ratio} | more)


def only(rows: list[Row]) -> Bar:
    (bar,) = bars(rows)
    return bar


def wall_row(metric: str, ratio: float, **more: Any) -> Row:
    return row(metric, ratio, **{"half": WALL, "load": "burst"} | more)


def test_every_node_and_load_has_limits() -> None:
    assert {node: set(loads) for node, loads in LIMITS.items()} == {node: set(LOADS) for node in NODES}


def test_nothing_is_judged_without_rows() -> None:
    assert bars([]) == []


@pytest.mark.parametrize(
    ("metric", "ratio", "worst", "met"),
    [
        pytest.param("short_ttft_p95", 0.24, 0.34, True, id="shorts are soon enough in every seed"),
        pytest.param("short_ttft_p95", 0.26, 0.26, False, id="shorts are too late in the median"),
        pytest.param("short_ttft_p95", 0.24, 0.36, False, id="shorts are too late in one seed"),
        pytest.param("long_ttft_p95", 1.04, 1.09, True, id="longs are soon enough in every seed"),
        pytest.param("long_ttft_p95", 1.06, 1.06, False, id="longs are too late in the median"),
        pytest.param("long_ttft_p95", 1.04, 1.11, False, id="longs are too late in one seed"),
        pytest.param("output_tokens_per_s", 0.981, 0.5, True, id="throughput counts in the median alone"),
        pytest.param("output_tokens_per_s", 0.979, 0.979, False, id="throughput is too low"),
        pytest.param("short_tpot_p50", 1.09, 1.09, True, id="a token takes little longer"),
        pytest.param("short_tpot_p50", 1.11, 1.11, False, id="a token takes too long"),
        pytest.param("long_e2e_p95", 1.11, 1.11, False, id="long answers take too long"),
    ],
)
def test_the_candidate_under_90_percent(metric: str, ratio: float, worst: float, met: bool) -> None:
    assert only([row(metric, ratio, worst=worst)]).met is met


def test_a_missed_bar_shows_the_figures_that_missed_it() -> None:
    bar = only([row("short_ttft_p95", 0.26, worst=0.4)])
    assert bar.claim == "prefill, cpu, sustained_90: short TTFT P95 at least 75% lower, in no seed under 65%"
    assert bar.figure == "-74.0%, worst -60.0%"


def test_a_limit_without_a_worst_seed_leaves_seeds_free() -> None:
    assert only([row("short_ttft_p95", 0.5, worst=0.9, load="sustained_60")]).met


def test_answers_above_capacity_have_no_price() -> None:
    assert bars([row("e2e_p95", 2.0, load="sustained_110")]) == []


@pytest.mark.parametrize("policy", ["promote_shortest", "hrrn"])
def test_a_plain_policy_is_judged_by_its_worst_load(policy: str) -> None:
    rows = [
        row("short_ttft_p95", ratio, policy=policy, load=load)
        for load, ratio in (("burst", 1.06), ("sustained_60", 0.5))
    ]
    bar = only(rows)
    assert not bar.met
    assert bar.figure == "at most +6.0% (burst)"
    assert only(rows[1:]).met


def stall_rows(stock_s: float, gap_s: float) -> list[Row]:
    common = {"node": "mixed", "load": "burst"}
    return [
        row("gap_p99", 1.0, policy=FCFS, value=stock_s, **common),
        row("gap_p99", gap_s / stock_s, policy=STALL_BUDGET, value=gap_s, **common),
        row("short_tpot_p50", 1.0, policy=STALL_BUDGET, value=0.010, **common),
        row("long_ttft_p95", 1.4, policy=STALL_BUDGET, **common),
    ]


@pytest.mark.parametrize(("over_s", "met"), [(0.009, True), (0.011, False)], ids=["less than a step", "more"])
def test_a_stall_may_be_a_step_over_its_budget_and_its_price_is_told(over_s: float, met: bool) -> None:
    bar = only(stall_rows(6 * STALL_S, STALL_S + over_s))
    assert bar.met is met
    assert "long TTFT P95 pays +40.0%" in bar.figure


def test_a_stall_budget_that_stock_hardly_exceeds_proves_nothing() -> None:
    bar = only(stall_rows(3 * STALL_S, STALL_S))
    assert not bar.met
    assert "3.0 times" in bar.figure


def test_wall_clock_rows_may_miss_their_limits_by_their_noise() -> None:
    rows = [wall_row("short_ttft_p95", 0.12, noise=0.03), wall_row("output_tokens_per_s", 0.95, noise=0.02)]
    bar = only(rows)
    assert bar.met
    assert bar.figure == "1 of 2 (not: prefill, cpu, burst output_tokens_per_s -5.0% +-2.0%)"


def test_inconclusive_wall_clock_rows_do_not_agree() -> None:
    rows = [wall_row("short_ttft_p95", 0.05, conclusive=False), wall_row("long_ttft_p95", 1.0)]
    assert only(rows).met
    assert not only([*rows, wall_row("output_tokens_per_s", 1.0, conclusive=False)]).met
