"""The parts of the sizing benchmark that can be wrong by themselves: stretches, flaps, the others' algorithm, bars."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from prefleet_runtime.sim.state import SimRequest

from tests.benchmarks.sizing import fleet as fleets
from tests.benchmarks.sizing.bars import sizing_bars
from tests.benchmarks.sizing.fleet import ScalingFleet
from tests.benchmarks.sizing.prometheus import PodScrape, Prometheus
from tests.benchmarks.sizing.rows import CLAIRVOYANT, OURS, USUAL, Row, best, count_flaps, pooled
from tests.benchmarks.sizing.scalers import on_kv_use, on_waiting


def requests() -> list[SimRequest]:
    return [SimRequest(f"r{n}", 300 + 3977 * (n % 7), 20 + 31 * (n % 5), 3.1 * n) for n in range(60)]


def test_stretches_change_no_request_by_more_than_a_step(monkeypatch):
    ends: list[dict[str, float]] = []
    for stretch in (ScalingFleet._stretch, lambda *_: (1, 0.0)):
        ended: dict[str, float] = {}
        monkeypatch.setattr(ScalingFleet, "_stretch", stretch)
        monkeypatch.setattr(fleets, "keeps", lambda one, now, to=ended: bool(to.update({one.request_id: now})))
        ScalingFleet(2, 60, lambda fleet, now: 2).run(iter(requests()), 200)
        ends.append(ended)
    assert ends[0].keys() == ends[1].keys()
    assert max(abs(ends[0][name] - ends[1][name]) for name in ends[0]) < 0.1


def test_pods_that_come_and_go_lose_no_request_and_cost_from_creation_to_end():
    sizes = iter([2, 3, 3, 1, 1, 2] * 100)
    fleet = ScalingFleet(2, 20, lambda fleet, now: next(sizes))
    outcome = fleet.run(iter(requests()), 200)
    assert outcome.requests == len(requests())
    assert all(pod.engine.unfinished == 0 for pod in fleet.pods)
    assert all(after == before for (_, _, after), (_, before, _) in pairwise(outcome.moves))
    hours = outcome.accelerator_hours * 3600 / fleets.ACCELERATORS
    assert 200 < hours < 3 * 200


def test_a_pod_serves_only_after_its_start():
    fleet = ScalingFleet(1, 1000, lambda fleet, now: 4)
    fleet.run(iter(requests()), 200)
    assert [pod.busy_s > 0 for pod in fleet.pods] == [True, False, False, False]


@pytest.mark.parametrize(
    ("moves", "flaps"),
    [
        pytest.param([(0, 2, 3), (299, 3, 2)], 1, id="a reversal within the window"),
        pytest.param([(0, 2, 3), (301, 3, 2)], 0, id="one after it"),
        pytest.param([(0, 2, 3), (15, 3, 4)], 0, id="the same way is none"),
        pytest.param([(0, 3, 2), (15, 2, 3), (30, 3, 2)], 2, id="each reversal counts"),
    ],
)
def test_flaps(moves, flaps):
    assert count_flaps(moves) == flaps


def scraped(*waiting: int, kv: float = 0.0) -> dict[str, PodScrape]:
    return {f"p{n}": PodScrape(0.0, 0, 0, one, 0, 0, kv) for n, one in enumerate(waiting)}


@pytest.mark.parametrize(
    ("waiting", "replicas", "expected"),
    [
        pytest.param((4, 4), 2, 4, id="twice the target"),
        pytest.param((2, 2), 2, 2, id="at the target"),
        pytest.param((2, 2, 2, 2, 2, 2, 2, 2, 2, 3), 10, 10, id="within the tolerance"),
        pytest.param((0, 0), 2, 0, id="nothing waits"),
        pytest.param((4, 4), 4, 4, id="pods that start count as idle"),
        pytest.param((8, 8), 4, 8, id="unless they would not do"),
    ],
)
def test_the_usual_recipe(waiting, replicas, expected):
    assert on_waiting(2.0)(scraped(*waiting), replicas) == expected


def test_kv_use_is_summed():
    assert on_kv_use(0.3)(scraped(0, 0, kv=0.6), 2) == 4
    assert on_kv_use(0.3)(scraped(0, 0, kv=0.31), 2) == 2


def test_prometheus_answers_nothing_while_it_is_gone_and_nothing_old_after():
    fleet, prometheus = ScalingFleet(1, 60, lambda fleet, now: 1), Prometheus((100.0, 700.0))
    for now in range(15, 900, 15):
        prometheus.scrape(fleet, float(now))
        told = prometheus.pods(float(now)) is not None
        assert told is not (100 <= now < 700)
        window = prometheus.window(300, float(now))
        assert window is None or window[0].at_s >= now - 300


ROW = Row("wave", OURS, 0.97, 10.0, 0, None, 100, (1,), ())


def test_the_best_of_a_grid_is_the_cheapest_that_reaches_the_goal_else_the_one_that_attains_most():
    dear, cheap, poor = ROW, replace(ROW, accelerator_hours=8.0), replace(ROW, attainment=0.9, accelerator_hours=5.0)
    assert best([dear, cheap, poor]) == cheap
    assert best([poor, replace(poor, attainment=0.8)]) == poor


def test_a_run_that_misses_more_than_it_may_is_given_up():
    crowd = [SimRequest(f"r{n}", 30_000, 1, 4.0 * n) for n in range(20)]
    whole = ScalingFleet(1, 60, lambda fleet, now: 1).run(iter(crowd), 200)
    assert whole is not None
    missed = round((1 - whole.attainment) * len(crowd))
    assert 0 < missed < len(crowd)
    again = [[SimRequest(f"r{n}", 30_000, 1, 4.0 * n) for n in range(20)] for _ in range(2)]
    assert ScalingFleet(1, 60, lambda fleet, now: 1).run(iter(again[0]), 200, missed) == whole
    assert ScalingFleet(1, 60, lambda fleet, now: 1).run(iter(again[1]), 200, missed - 1) is None


def test_runs_of_several_seeds_are_one_row():
    row = pooled([replace(ROW, seeds=(1,), flaps=1), replace(ROW, seeds=(2,), requests=300, attainment=0.93)])
    assert (row.seeds, row.requests, row.flaps) == ((1, 2), 400, 1)
    assert (row.attainment, row.accelerator_hours) == (0.94, 20.0)


def test_bars_of_one_scenario():
    rows = [
        ROW,
        replace(ROW, scaler=USUAL, attainment=0.98),
        replace(ROW, scaler=CLAIRVOYANT, accelerator_hours=9.0),
    ]
    assert [bar.met for bar in sizing_bars(rows)] == [False, True, True]
    rows[0] = replace(ROW, attainment=0.99, accelerator_hours=12.0, flaps=1)
    assert [bar.met for bar in sizing_bars(rows)] == [True, False, False]
