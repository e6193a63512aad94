"""The virtual half of the policy benchmark: exact, and no job is lost."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from tests.benchmarks.policies.cases import CANDIDATE, CONTENDERS, FCFS, STALL_BUDGET, sustained
from tests.benchmarks.policies.virtual import COSTS, Series, VirtualEngine, runs

SERIES = Series("mixed", "cpu", seed=1, requests=20, loads=("sustained_90",), policies=(FCFS, CANDIDATE, STALL_BUDGET))


def test_the_same_series_gives_the_same_figures(model: Path, policy_file: Path) -> None:
    first, second = (list(runs(SERIES, model, policy_file)) for _ in range(2))
    assert first == second
    assert [run["policy"] for run in first] == [FCFS, CANDIDATE, STALL_BUDGET]


def test_every_job_gets_all_its_tokens_after_it_arrived(model: Path, policy_file: Path) -> None:
    jobs = sustained(8, 10.0, 30, random.Random(1))
    for contender in CONTENDERS:
        outcomes = VirtualEngine(contender, COSTS["cpu"], model, policy_file).run(jobs)
        assert Counter(outcome.job for outcome in outcomes) == Counter(jobs)
        assert all(len(outcome.tokens_s) == 8 for outcome in outcomes)
        assert all(outcome.tokens_s[0] > outcome.job.at_s for outcome in outcomes)
        assert all(outcome.tokens_s == sorted(outcome.tokens_s) for outcome in outcomes)
