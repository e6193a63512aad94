"""The plan of the policy benchmark's wall-clock half, and the order of its rounds; no server runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.policies import wall
from tests.benchmarks.policies.cases import CANDIDATE, CONTENDERS, FCFS, LOADS, NODES, STALL_BUDGET, SUSTAINED, Job
from tests.benchmarks.policies.figures import Outcome
from tests.benchmarks.policies.fleet import Fleet
from tests.benchmarks.policies.rows import Run
from tests.benchmarks.policies.wall import Bench, WallPlan

POLICIES = [contender.name for contender in CONTENDERS]


def plan(**changes: Any) -> WallPlan:
    return WallPlan(**{"nodes": list(NODES), "loads": LOADS, "policies": POLICIES, "pairs": 5, "requests": 9} | changes)


def names(node: str, load: str) -> list[str]:
    (case,) = [case for case in plan().cases() if (case.node, case.load) == (node, load)]
    return [contender.name for contender in case.contenders]


@pytest.mark.parametrize("load", ["burst", "interleaved"])
def test_bursts_on_a_mixed_node_have_all_policies_the_candidate_next_to_fcfs(load: str) -> None:
    assert names("mixed", load)[:2] == [FCFS, CANDIDATE]
    assert set(names("mixed", load)) == set(POLICIES)


@pytest.mark.parametrize("load", SUSTAINED)
def test_sustained_loads_have_the_candidate_alone(load: str) -> None:
    assert names("mixed", load) == [FCFS, CANDIDATE]


def test_a_prefill_node_has_bursts_and_the_candidate_alone() -> None:
    assert names("prefill", "burst") == [FCFS, CANDIDATE]
    assert not [case for case in plan().cases() if case.node == "prefill" and case.load in SUSTAINED]


def test_a_plan_counts_its_runs_and_needs_the_servers_of_its_contenders() -> None:
    narrow = plan(nodes=["mixed"], loads=["burst"], policies=[FCFS, "hrrn", STALL_BUDGET], pairs=3)
    assert narrow.total == 9
    assert narrow.names == {FCFS, "hrrn", STALL_BUDGET}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """A bench whose n-th probe takes n seconds (each is the least of several), and whose jobs take one."""
    served = iter(range(10_000))

    def serve(_server: object, jobs: Sequence[Job], _by_length: bool, _rng: random.Random) -> list[Outcome]:
        is_probe = [job.prompt_tokens for job in jobs] == [wall.PROBE_TOKENS]
        took_s = 1.0 + next(served) // wall.PROBES if is_probe else 1.0
        return [Outcome(job, [job.at_s + took_s]) for job in jobs]

    monkeypatch.setattr(wall, "serve", serve)
    monkeypatch.setattr(Fleet, "server", lambda *_: None)
    monkeypatch.setattr(Fleet, "stock", None)
    return Bench(Fleet(tmp_path / "policy.json"), random.Random(1))


def round_of(bench: Bench, number: int) -> list[Run]:
    case = plan(loads=["burst"], nodes=["mixed"], policies=[FCFS, CANDIDATE, "hrrn"]).cases()[0]
    return list(bench.runs(case, [Job(0.0, 64, 1)], number))


def test_the_order_turns_round_in_every_other_round(bench: Bench) -> None:
    assert [run.policy for run in round_of(bench, 0)] == [FCFS, CANDIDATE, "hrrn"]
    assert [run.policy for run in round_of(bench, 1)] == ["hrrn", CANDIDATE, FCFS]


def test_the_probe_after_a_run_is_the_one_before_the_next(bench: Bench) -> None:
    assert [run.probes_s for run in round_of(bench, 0)] == [(1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]


def test_the_capacity_is_what_the_stock_engine_ends_in_a_second(bench: Bench) -> None:
    assert bench.capacity("prefill", 9, 1) == pytest.approx(9, rel=1e-6)
