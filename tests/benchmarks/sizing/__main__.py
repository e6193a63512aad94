"""How well a fleet is sized: seven loads under a virtual clock, ours beside three others.

    prefleet      the pipeline of prefleet_operator.core.sizing, by the formula (no replay), over Prometheus' samples
    hpa-waiting   HorizontalPodAutoscaler on waiting requests per pod, at the best target of a grid
    keda-kv       KEDA on KV use, likewise
    clairvoyant   the cheapest plan made with the requests known before, at no less attainment than ours

Attainment is the share of requests that start within 10 s and get a token each 0.4 s on average. The best target is the
cheapest that attains 95% in that very scenario; where none does, the one that attains most. Accelerator hours count
from a pod's creation to its end, start and drain included. Equal code, equal figures.

Each scenario but the day is run with several seeds, whose figures are taken together; the pipeline's constants were
chosen with others (`--tuned` runs those). The clairvoyant plan attains as much as ours with each of them.

Run by `make bench-sizing`; figures go to build/bench/sizing.json and build/bench/sizing.png.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.benchmarks.console import show_bars, tell, write
from tests.benchmarks.sizing.bars import sizing_bars
from tests.benchmarks.sizing.clairvoyant import least
from tests.benchmarks.sizing.fleet import ScalingFleet
from tests.benchmarks.sizing.picture import draw
from tests.benchmarks.sizing.prometheus import Prometheus
from tests.benchmarks.sizing.rows import CLAIRVOYANT, KEDA, OURS, USUAL, Row, best, pooled
from tests.benchmarks.sizing.scalers import KubernetesScaler, Ours, Scaler, on_kv_use, on_waiting
from tests.benchmarks.sizing.scenarios import JUDGED, SCENARIOS, TRACE, TUNED, Scenario, first_replicas, requests

GRIDS = {USUAL: (0.25, 0.5, 1.0, 2.0, 5.0, 10.0), KEDA: (0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.6)}
ORDER = (OURS, USUAL, KEDA, CLAIRVOYANT)
PROCESSES = 2
TOLD_EVERY = 20
"""Of so many runs one line is left where there is no terminal."""
OUTPUT, PICTURE = Path("build/bench/sizing.json"), Path("build/bench/sizing.png")


@dataclass(frozen=True)
class Job:
    """One scaler in one scenario; a clairvoyant one is to keep `attainment`."""

    scenario: str
    seed: int
    scaler: str
    target: float | None = None
    attainment: float = 0.0


def run(job: Job) -> Row:
    """For another process."""
    scenario, seed = SCENARIOS[job.scenario], job.seed
    if job.scaler == CLAIRVOYANT:
        outcome = least(scenario, seed, job.attainment)
    else:
        decide = make_scaler(scenario, job.scaler, job.target)
        replicas, learns = first_replicas(scenario), job.scaler == OURS
        fleet = ScalingFleet(replicas, scenario.start_s, decide, scenario.quota, learns=learns)
        found = fleet.run(requests(scenario, seed), scenario.seconds)
        assert found is not None, "nothing ends it before"
        outcome = found
    return Row.of(job.scenario, job.scaler, seed, job.target, outcome)


def make_scaler(scenario: Scenario, scaler: str, target: float | None) -> Scaler:
    prometheus = Prometheus(scenario.outage)
    if target is None:
        return Ours(prometheus, scenario.quota)
    return KubernetesScaler(prometheus, on_waiting(target) if scaler == USUAL else on_kv_use(target))


def run_all(names: Sequence[str], seeds: Sequence[int], processes: int) -> list[Row]:
    """One row of each scaler and scenario, of grids the best."""
    began, rows = time.monotonic(), []
    runs = [(name, seed) for name in names for seed in SCENARIOS[name].seeds(seeds)]
    with ProcessPoolExecutor(processes) as pool:
        jobs = [Job(name, seed, OURS) for name, seed in runs]
        jobs += [
            Job(name, seed, scaler, target) for name, seed in runs for scaler, grid in GRIDS.items() for target in grid
        ]
        waiting = {pool.submit(run, job) for job in jobs}
        number, total = 0, len(jobs) + len(runs)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for row in (one.result() for one in done):
                rows.append(row)
                number += 1
                if row.scaler == OURS:
                    job = Job(row.scenario, row.seeds[0], CLAIRVOYANT, attainment=row.attainment)
                    waiting.add(pool.submit(run, job))
                progress = f"{number} of {total} runs, {time.monotonic() - began:.0f} s: {row.scenario}, {row.scaler}"
                tell(progress)
                if number % TOLD_EVERY == 0 and not sys.stderr.isatty():
                    print(progress, file=sys.stderr, flush=True)
    rows.sort(key=lambda row: row.seeds)
    return [best_of(rows, name, scaler) for name in names for scaler in ORDER]


def best_of(rows: Sequence[Row], scenario: str, scaler: str) -> Row:
    """All seeds together, at the best target of the grid."""
    found = [row for row in rows if (row.scenario, row.scaler) == (scenario, scaler)]
    targets = dict.fromkeys(row.target for row in found)
    return best(pooled([row for row in found if row.target == target]) for target in targets)


def show(rows: Sequence[Row]) -> None:
    print(f"{'scenario':<17}{'scaler':<13}{'target':>7}{'attained':>10}{'hours':>9}{'flaps':>7}{'moves':>7}")
    for row in rows:
        target = "" if row.target is None else f"{row.target:g}"
        print(
            f"{row.scenario:<17}{row.scaler:<13}{target:>7}{row.attainment:>10.2%}{row.accelerator_hours:>9.1f}"
            f"{row.flaps:>7}{len(row.moves):>7}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="how well a fleet is sized, under a virtual clock")
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="only this; may be repeated")
    parser.add_argument("--tuned", action="store_true", help="with the seeds that the constants were chosen with")
    parser.add_argument("--processes", type=int, default=PROCESSES, help=f"at once (default {PROCESSES})")
    options = parser.parse_args()
    if not TRACE.exists():
        print(f"{TRACE} is missing: put it there (kvcache-ai/Mooncake, FAST25-release/traces)")
        return 2
    names = options.scenario or list(SCENARIOS)
    rows = run_all(names, TUNED if options.tuned else JUDGED, options.processes)
    show(rows)
    write(OUTPUT, [{**asdict(row), "moves": len(row.moves)} for row in rows])
    draw(rows, PICTURE)
    verdicts = list(sizing_bars(rows))
    show_bars(verdicts)
    print(f"\nwritten to {OUTPUT} and {PICTURE}")
    return 0 if all(bar.met for bar in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
