"""How runs of the policy benchmark become rows: paired, and silent about pairs between which the machine drifted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from tests.benchmarks.policies.cases import FCFS
from tests.benchmarks.policies.rows import VIRTUAL, WALL, Row, Run, noise_of, rows_of

METRIC = "short_ttft_p95"
STEADY = (1.0, 1.05)
MOVED = (1.0, 1.2)


def run(policy: str, number: int, value: float, metric: str = METRIC, **more: Any) -> Run:
    return Run(
        **{"half": VIRTUAL, "node": "mixed", "costs": "cpu", "load": "burst"} | more,
        policy=policy,
        number=number,
        figures={metric: value},
    )


def pairs(values: Sequence[tuple[float, float]], metric: str = METRIC) -> list[Run]:
    """Virtual runs of FCFS and of hrrn, by seed."""
    found = []
    for seed, (stock, ours) in enumerate(values):
        found += [run(FCFS, seed, stock, metric), run("hrrn", seed, ours, metric)]
    return found


def wall_pairs(*pairs_probes: tuple[float, ...]) -> list[Run]:
    """One pair each, whose runs both have these probes; the pair of number n has the ratio 0.1 n."""
    found = []
    for number, probes in enumerate(pairs_probes, start=1):
        found += [run(FCFS, number, 1.0, half=WALL, probes_s=probes)]
        found += [run("hrrn", number, 0.1 * number, half=WALL, probes_s=probes)]
    return found


def row_of(runs: Sequence[Run], policy: str = "hrrn") -> Row:
    (found,) = [row for row in rows_of(runs) if row.policy == policy]
    return found


def test_a_ratio_is_the_median_of_the_ratios_within_each_seed() -> None:
    row = row_of(pairs([(1.0, 0.9), (10.0, 1.0), (4.0, 2.0)]))
    assert row.ratio == 0.5  # of 0.9, 0.1 and 0.5; the ratio of the medians is 0.25
    assert row.value == 1.0


def test_the_worst_seed_is_the_highest_ratio_of_what_should_be_low() -> None:
    assert row_of(pairs([(1.0, 0.5), (1.0, 0.2), (1.0, 0.9)])).worst == 0.9


def test_the_worst_seed_is_the_lowest_ratio_of_throughput() -> None:
    values = [(1.0, 0.5), (1.0, 1.2), (1.0, 0.9)]
    assert row_of(pairs(values, "output_tokens_per_s")).worst == 0.5


def test_fcfs_is_its_own_measure() -> None:
    row = row_of(pairs([(1.0, 0.5), (3.0, 0.5)]), FCFS)
    assert (row.value, row.ratio, row.worst, row.noise) == (2.0, 1.0, 1.0, 0.0)


def test_a_run_without_its_fcfs_run_is_left_out() -> None:
    assert rows_of([run("hrrn", 1, 0.5)]) == []


def test_what_is_zero_under_fcfs_has_no_ratio() -> None:
    assert rows_of(pairs([(0.0, 0.5)])) == []


def test_loads_are_not_mixed() -> None:
    runs = [*pairs([(1.0, 0.5)]), run(FCFS, 0, 2.0, load="interleaved"), run("hrrn", 0, 0.2, load="interleaved")]
    assert [(row.load, row.ratio) for row in rows_of(runs) if row.policy == "hrrn"] == [
        ("burst", 0.5),
        ("interleaved", 0.1),
    ]


def test_a_virtual_row_is_always_conclusive() -> None:
    assert row_of(pairs([(1.0, 0.5)])).conclusive


@pytest.mark.parametrize(
    ("probes", "conclusive", "ratio", "told"),
    [
        pytest.param([STEADY] * 5, True, 0.3, 5, id="all pairs are steady"),
        pytest.param([MOVED, MOVED, STEADY, STEADY, STEADY], True, 0.4, 3, id="three of five, which alone count"),
        pytest.param([MOVED, MOVED, MOVED, STEADY, STEADY], False, 0.45, 2, id="too few of five"),
        pytest.param([STEADY] * 3 + [MOVED] * 4, False, 0.2, 3, id="three, but less than half"),
        pytest.param([STEADY, STEADY], False, 0.15, 2, id="two are too few, though both are steady"),
        pytest.param([MOVED] * 3, False, 0.2, 3, id="none is steady: all are told"),
    ],
)
def test_a_pair_whose_probes_moved_does_not_count(
    probes: list[tuple[float, ...]], conclusive: bool, ratio: float, told: int
) -> None:
    row = row_of(wall_pairs(*probes))
    assert (row.conclusive, row.pairs) == (conclusive, told)
    assert row.ratio == pytest.approx(ratio)


def test_a_drift_between_the_two_runs_of_a_pair_counts_though_neither_saw_it() -> None:
    runs = [run(FCFS, n, 1.0, half=WALL, probes_s=(1.0, 1.0)) for n in range(5)]
    runs += [run("hrrn", n, 0.5, half=WALL, probes_s=(1.2, 1.2)) for n in range(5)]
    assert not row_of(runs).conclusive
    assert row_of(runs, FCFS).conclusive


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        pytest.param([0.5], 0.0, id="one says nothing"),
        pytest.param([0.4, 0.8], 0.2, id="half the distance of two"),
        pytest.param([9.0, 0.5, 0.4, 0.6, 0.0], 0.1, id="of five, the outermost two are left out"),
    ],
)
def test_noise_is_half_the_range_of_the_middle_pairs(ratios: list[float], expected: float) -> None:
    assert noise_of(ratios) == pytest.approx(expected)


def test_a_row_survives_json() -> None:
    row = row_of(pairs([(1.0, 0.5)]))
    assert Row(**json.loads(json.dumps(asdict(row)))) == row
