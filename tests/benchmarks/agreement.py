"""Does a replay foretell what a real engine does? `make bench-agreement`.

In each round real vLLM servers (stock FCFS, ours under short_request_first+yield) serve the same Poisson arrivals at
60 and 80% of the capacity measured beside the run. The step cost is taken from our server's own metrics, as `prefleet
replay --engine http://.../metrics` does, and the simulated engine serves the same arrivals. What is compared is the
ratio of the short TTFT P95 to FCFS: the replay's may be at most `MOST_APART` off the real one, in the median over the
steady rounds.

A round is steady if the drift probes around its two runs differ by at most 10% (`policies/rows.py`); fewer than
`FEWEST` steady ones make a load inconclusive. The figures go to build/bench/agreement.json.

Left out: whatever surrounds the engine (HTTP, detokenization), which is in the real TTFT and not in the replay's.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from prefleet_runtime.sim.calibrate import cost_from_metrics
from prefleet_runtime.sim.cost_model import StepCost
from prefleet_runtime.sim.state import Limits

from tests.benchmarks.bars import Bar
from tests.benchmarks.console import show_bars, write
from tests.benchmarks.policies.cases import CANDIDATE, CONTENDERS, FCFS, NODES, Job, burst, sustained
from tests.benchmarks.policies.client import serve
from tests.benchmarks.policies.fleet import BUDGET, Fleet, started
from tests.benchmarks.policies.rows import Pair, Run
from tests.benchmarks.policies.simulated import STOCK, Served, shape_of, simulate
from tests.benchmarks.policies.wall import COSTS, Bench, Case
from tests.support.demo.workload import quantile
from tests.support.vllm_env import ensure_vllm_env

LOADS = {"60%": 0.6, "80%": 0.8}
NODE = "mixed"
MOST_APART = 0.25
FEWEST = 3
KV_TOKENS = 512 * 2**20 // 3072
OUTPUT = Path(__file__).resolve().parents[2] / "build" / "bench" / "agreement.json"
PAIR = tuple(next(c for c in CONTENDERS if c.name == name) for name in (FCFS, CANDIDATE))


@dataclass(frozen=True)
class Row:
    """One load in one round: the short TTFT P95 in seconds, real and replayed; `steady`: the machine kept its speed."""

    round: int
    load: str
    real_fcfs_s: float
    real_s: float
    replayed_fcfs_s: float
    replayed_s: float
    steady: bool

    @property
    def apart(self) -> float:
        """The replay's ratio over the real one, less 1."""
        return (self.replayed_s / self.replayed_fcfs_s) / (self.real_s / self.real_fcfs_s) - 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.benchmarks.agreement", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--requests", type=int, default=120, help="of each load")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    python = ensure_vllm_env(lambda line: print(line, file=sys.stderr, flush=True))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}: starting servers", flush=True)
            with started(python, Path(folder) / f"round-{number}", [FCFS, CANDIDATE]) as fleet:
                rows += _round(fleet, number, options.requests)
    verdicts = [_bar(load, [row for row in rows if row.load == load]) for load in LOADS]
    show_bars(verdicts)
    document = {
        "command": "make bench-agreement",
        "rows": [asdict(row) | {"apart": row.apart} for row in rows],
        "bars": [asdict(bar) for bar in verdicts],
    }
    write(options.output, document)
    print(f"written to {options.output}")


def _round(fleet: Fleet, number: int, requests: int) -> Iterator[Row]:
    bench = Bench(fleet, random.Random(number))
    bench.warm_up(PAIR)
    capacity = bench.capacity(NODE, requests, number)
    served: dict[str, tuple[list[Job], list[Run]]] = {}
    for load, part in LOADS.items():
        jobs = sustained(NODES[NODE], part * capacity, requests, random.Random(f"{load} {number}"))
        served[load] = jobs, list(bench.runs(Case(NODE, load, PAIR), jobs, number))
    cost = _learnt_cost(fleet)
    for load, (jobs, runs) in served.items():
        row = _row(number, load, jobs, runs, cost)
        print(f"  {load}: {_told(row)}", flush=True)
        yield row


def _learnt_cost(fleet: Fleet) -> StepCost:
    """What our server has learnt, after steps of every kind: short bursts are added to what the loads brought."""
    server = fleet.server(PAIR[1])
    rng = random.Random(1)
    for _ in range(2):
        serve(server, burst(NODES[NODE], True, rng)[:30], False, rng)
    url = f"http://127.0.0.1:{server.exporter_port}/metrics"
    with urllib.request.urlopen(url, timeout=5) as page:
        return cost_from_metrics(page.read().decode(), url).cost


def _row(number: int, load: str, jobs: list[Job], runs: list[Run], cost: StepCost) -> Row:
    real = {run.policy: run for run in runs}
    shape = shape_of(cost, Limits(BUDGET, 256, KV_TOKENS))
    policy = PAIR[1].policy_on(COSTS)
    assert policy is not None
    metric = "short_ttft_p95"
    return Row(
        round=number,
        load=load,
        real_fcfs_s=real[FCFS].figures[metric],
        real_s=real[CANDIDATE].figures[metric],
        replayed_fcfs_s=_short_p95(simulate(jobs, STOCK, shape)),
        replayed_s=_short_p95(simulate(jobs, policy, shape)),
        steady=Pair(real[CANDIDATE], real[FCFS]).is_steady,
    )


def _short_p95(fates: list[Served]) -> float:
    return quantile((fate.ttft_s for fate in fates if not fate.job.is_long), 0.95)


def _told(row: Row) -> str:
    real, replayed = row.real_s / row.real_fcfs_s, row.replayed_s / row.replayed_fcfs_s
    drift = "" if row.steady else " (the machine drifted)"
    return (
        f"short TTFT P95 {row.real_fcfs_s:.3f} to {row.real_s:.3f} s real ({real - 1:+.0%}),"
        f" {row.replayed_fcfs_s:.3f} to {row.replayed_s:.3f} s replayed ({replayed - 1:+.0%});"
        f" ratios {row.apart:+.0%} apart{drift}"
    )


def _bar(load: str, rows: list[Row]) -> Bar:
    claim = f"at {load} of capacity the replay's ratio of short TTFT P95 is within {MOST_APART:.0%} of the real one"
    steady = [row for row in rows if row.steady]
    told = median(row.apart for row in steady or rows)
    if len(steady) < FEWEST:
        return Bar(claim, False, f"inconclusive: {len(steady)} of {len(rows)} rounds were steady; {told:+.0%} apart")
    return Bar(claim, abs(told) <= MOST_APART, f"{told:+.0%} apart in the median of {len(steady)} steady rounds")


if __name__ == "__main__":
    main()
