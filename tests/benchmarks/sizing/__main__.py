"""How well a fleet is sized: seven loads under a virtual clock, ours beside three others.

    prefleet      the pipeline of prefleet_operator.core.sizing, by the formula (no replay), over Prometheus' samples
    hpa-waiting   HorizontalPodAutoscaler on waiting requests per pod, at the best target of a grid
    keda-kv       KEDA on KV use, likewise
    clairvoyant   the cheapest plan made with the requests known before, at no less attainment than ours

Attainment is the share of requests that start within 10 s and get a token each 0.4 s on average. The best target is the
cheapest that attains 95% in that very scenario; where none does, the one that attains most. Accelerator hours count
from a pod's creation to its end, start and drain included. Equal code, equal figures.

Run by `make bench-sizing`; figures go to build/bench/sizing.json and build/bench/sizing.png.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.console import show_bars, tell, write
from tests.benchmarks.sizing.bars import sizing_bars
from tests.benchmarks.sizing.clairvoyant import least
from tests.benchmarks.sizing.fleet import ScalingFleet
from tests.benchmarks.sizing.picture import draw
from tests.benchmarks.sizing.prometheus import Prometheus
from tests.benchmarks.sizing.rows import CLAIRVOYANT, KEDA, OURS, USUAL, Row, best
from tests.benchmarks.sizing.scalers import KubernetesScaler, Ours, Scaler, on_kv_use, on_waiting
from tests.benchmarks.sizing.scenarios import SCENARIOS, TRACE, Scenario, first_replicas, requests

GRIDS = {USUAL: (0.25, 0.5, 1.0, 2.0, 5.0, 10.0), KEDA: (0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.6)}
ORDER = (OURS, USUAL, KEDA, CLAIRVOYANT)
PROCESSES = 2
OUTPUT, PICTURE = Path("build/bench/sizing.json"), Path("build/bench/sizing.png")


def run(name: str, scaler: str, target: float | None = None) -> Row:
    """One scaler in one scenario; for another process."""
    scenario = SCENARIOS[name]
    decide = make_scaler(scenario, scaler, target)
    fleet = ScalingFleet(first_replicas(scenario), scenario.start_s, decide, scenario.quota)
    return Row.of(name, scaler, target, fleet.run(requests(scenario), scenario.seconds))


def make_scaler(scenario: Scenario, scaler: str, target: float | None) -> Scaler:
    prometheus = Prometheus(scenario.outage)
    if target is None:
        return Ours(prometheus, scenario.quota)
    return KubernetesScaler(prometheus, on_waiting(target) if scaler == USUAL else on_kv_use(target))


def run_clairvoyant(name: str, attainment: float) -> Row:
    return Row.of(name, CLAIRVOYANT, None, least(SCENARIOS[name], attainment))


def run_all(names: Sequence[str]) -> list[Row]:
    """One row of each scaler and scenario, of grids the best."""
    rows: list[Row] = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        ours = [pool.submit(run, name, OURS) for name in names]
        waiting: list[Future[Row]] = [
            pool.submit(run, name, scaler, target)
            for name in names
            for scaler, grid in GRIDS.items()
            for target in grid
        ]
        for done in as_completed(ours):
            rows.append(done.result())
            waiting.append(pool.submit(run_clairvoyant, rows[-1].scenario, rows[-1].attainment))
        for number, done in enumerate(as_completed(waiting), 1):
            rows.append(done.result())
            tell(f"{number} of {len(waiting)} runs beside ours")
    return [
        best(row for row in rows if (row.scenario, row.scaler) == (name, scaler)) for name in names for scaler in ORDER
    ]


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
    options = parser.parse_args()
    if not TRACE.exists():
        print(f"{TRACE} is missing: put it there (kvcache-ai/Mooncake, FAST25-release/traces)")
        return 2
    rows = run_all(options.scenario or list(SCENARIOS))
    show(rows)
    write(OUTPUT, [{**asdict(row), "moves": len(row.moves)} for row in rows])
    draw(rows, PICTURE)
    verdicts = list(sizing_bars(rows))
    show_bars(verdicts)
    print(f"\nwritten to {OUTPUT} and {PICTURE}")
    return 0 if all(bar.met for bar in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
