"""The worker processes of the policy benchmark's virtual half, played by shell scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.policies.rows import Run
from tests.benchmarks.policies.workers import VirtualPlan, virtual_runs

PLAN = VirtualPlan(nodes=["prefill"], costs=["cpu"], loads=["burst"], policies=["fcfs", "hrrn"], seeds=3, requests=9)
ANSWER = """
echo 'a library says hello'
while read series; do
  seed=$(echo "$series" | sed 's/.*"seed": \\([0-9]*\\).*/\\1/')
  for policy in fcfs hrrn; do
    echo '{"node": "prefill", "costs": "cpu", "load": "burst", "policy": "'$policy'", "seed": '$seed', "figures": {}}'
  done
done
"""
RUN = '{"node": "prefill", "costs": "cpu", "load": "burst", "policy": "fcfs", "seed": 0, "figures": {}}'


def script(folder: Path, text: str) -> Path:
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{text}")
    file.chmod(0o755)
    return file


def test_a_plan_counts_the_runs_that_workers_will_send() -> None:
    plan = VirtualPlan(
        nodes=["mixed", "prefill"],
        costs=["cpu", "accelerator"],
        loads=["burst", "sustained_60"],
        policies=["fcfs", "short_request_first+yield+stall_budget"],
        seeds=3,
        requests=9,
    )
    assert plan.total == 3 * 2 * 2 * (2 + 1)  # the stall budget runs on mixed nodes alone
    assert json.loads(json.dumps(plan.series()))[0]["seed"] == 0


def test_all_runs_of_all_workers_come(tmp_path: Path) -> None:
    runs = list(virtual_runs(script(tmp_path, ANSWER), PLAN, workers=2))
    assert sorted((run.number, run.policy) for run in runs) == [(n, p) for n in range(3) for p in ("fcfs", "hrrn")]
    assert runs[0] == Run("virtual", "prefill", "cpu", "burst", "fcfs", runs[0].number, {})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("exit_now", id="at its start"),
        pytest.param("read series; exit_now", id="after it took a series"),
        pytest.param(f"read series; echo '{RUN}'; exit_now", id="in mid series"),
    ],
)
def test_a_worker_that_dies_ends_the_run_with_its_last_words(tmp_path: Path, text: str) -> None:
    python = script(tmp_path, "exit_now() { echo 'no such model' >&2; exit 3; }\n" + text)
    with pytest.raises(RuntimeError, match="no such model"):
        list(virtual_runs(python, PLAN, workers=2))
