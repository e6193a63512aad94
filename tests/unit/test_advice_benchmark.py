"""The judge of advice: what it compares, on a mix that is small enough, and when a bar is met."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prefleet_runtime.sim.traces import open_trace

from tests.benchmarks.advice import Judgement, judge


@pytest.fixture(scope="module")
def judgement() -> Judgement:
    return judge(open_trace("heavy-tail:seed=3,requests=1000"), 0.9)


def test_advice_is_judged_beside_the_grid_and_beside_strict_short_first(judgement):
    assert judgement.best_mean_s <= judgement.worst_mean_s
    assert judgement.strict_p95_s <= judgement.p95_s
    assert judgement.mean_s < judgement.fcfs_mean_s
    assert judgement.of_best == judgement.mean_s / judgement.best_mean_s


BARS = [
    # id, load, mean over the best, P95 over strict, which bars are met
    ("5% above the best is met", 0.9, 1.05, 9.0, [True]),
    ("more is missed", 0.9, 1.06, 1.0, [False]),
    ("under overload the P95 counts too", 1.1, 1.0, 1.5, [True, True]),
    ("and may be missed", 1.1, 1.0, 1.6, [True, False]),
]


@pytest.mark.parametrize(("load", "mean", "p95", "met"), [case[1:] for case in BARS], ids=[case[0] for case in BARS])
def test_a_bar_is_met_or_missed(judgement, load, mean, p95, met):
    known = replace(judgement, load=load, mean_s=mean, best_mean_s=1.0, p95_s=p95, strict_p95_s=1.0)
    assert [kept for _, kept in known.bars] == met
