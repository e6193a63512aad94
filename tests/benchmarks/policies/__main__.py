"""What the policies do to users, against stock FCFS, inside the real vLLM: `make bench-vllm`.

Two halves. Virtual: the real scheduler with made-up answers under a virtual clock, exact and repeatable
(`virtual.py`). Wall clock: real engines on this machine, in interleaved pairs (`wall.py`). It prints a table for each
node and each set of step costs, then the bars (`bars.py`); the rows (`rows.py`) go to build/bench/vllm_policies.json,
and a picture beside them. `--from` shows earlier results again, several files as one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks.console import show_bars, write
from tests.benchmarks.policies.bars import bars
from tests.benchmarks.policies.cases import CONTENDERS, FCFS, LOADS, NODES
from tests.benchmarks.policies.picture import draw
from tests.benchmarks.policies.progress import followed
from tests.benchmarks.policies.rows import VIRTUAL, WALL, Row, Run, rows_of
from tests.benchmarks.policies.tables import WIDTH, print_tables
from tests.benchmarks.policies.wall import WallPlan, wall_runs
from tests.benchmarks.policies.workers import COSTS, VirtualPlan, virtual_runs
from tests.support.vllm_env import ensure_vllm_env

POLICIES = tuple(contender.name for contender in CONTENDERS)
OUTPUT = Path(__file__).resolve().parents[3] / "build" / "bench" / "vllm_policies.json"
MOST_WORKERS = 2
INTERRUPTED = 130


def main() -> None:
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    try:
        document = _joined(options.earlier) if options.earlier else _measured(console, options)
    except KeyboardInterrupt:
        console.print("interrupted: nothing is left running; what was written is the half that ended, if any")
        sys.exit(INTERRUPTED)
    rows = [Row(**row) for row in document["rows"]]
    verdicts = bars(rows)
    print_tables(console, rows)
    show_bars(verdicts)
    console.print(f"{sum(bar.met for bar in verdicts)} of {len(verdicts)} are met", highlight=False)
    write(options.output, document | {"bars": [asdict(bar) for bar in verdicts]})
    draw(rows, options.output.with_suffix(".png"))
    console.print(f"\nwritten to {options.output} and {options.output.with_suffix('.png').name}", soft_wrap=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.benchmarks.policies", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--half", choices=(VIRTUAL, WALL, "both"), default="both")
    parser.add_argument("--seeds", type=int, default=10, help="of the virtual half")
    parser.add_argument("--requests", type=int, default=400, help="of a sustained load of a mixed node, virtual half")
    parser.add_argument("--workers", type=int, default=min(MOST_WORKERS, os.cpu_count() or 1))
    parser.add_argument("--pairs", type=int, default=5, help="rounds of the wall-clock half")
    parser.add_argument("--wall-requests", type=int, default=60, help="of a sustained load, wall-clock half")
    for name, choices in (("nodes", tuple(NODES)), ("costs", COSTS), ("loads", LOADS), ("policies", POLICIES)):
        parser.add_argument(f"--{name}", nargs="+", choices=choices, default=choices)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--from", dest="earlier", nargs="+", type=Path, metavar="FILE", help="measure nothing")
    return parser.parse_args()


def _measured(console: Console, options: argparse.Namespace) -> dict[str, Any]:
    """Each half in turn; the first one is written before the second one begins."""
    python = ensure_vllm_env(lambda line: console.print(line, soft_wrap=True))
    policies = [name for name in POLICIES if name == FCFS or name in options.policies]
    common = {"nodes": options.nodes, "loads": options.loads, "policies": policies}
    plans: dict[str, Any] = {}
    runs: list[Run] = []
    if options.half != WALL:
        virtual = VirtualPlan(**common, costs=options.costs, seeds=options.seeds, requests=options.requests)
        runs += _virtual(console, python, virtual, options.workers)
        plans[VIRTUAL] = asdict(virtual)
        write(options.output, _document(plans, runs))
    if options.half != VIRTUAL:
        wall = WallPlan(**common, pairs=options.pairs, requests=options.wall_requests)
        runs += _wall(console, python, wall)
        plans[WALL] = asdict(wall)
    return _document(plans, runs)


def _document(plans: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "command": "make bench-vllm",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "plans": plans,
        "rows": [asdict(row) for row in rows_of(runs)],
        # Virtual runs can be had again; these cannot, and their probes say why a row is inconclusive.
        "wall_runs": [asdict(run) for run in runs if run.half == WALL],
    }


def _virtual(console: Console, python: Path, plan: VirtualPlan, workers: int) -> list[Run]:
    with closing(virtual_runs(python, plan, workers)) as runs:
        return list(followed(console, "virtual", runs, plan.total))


def _wall(console: Console, python: Path, plan: WallPlan) -> list[Run]:
    if not plan.total:
        console.print("the wall-clock half has none of these cases: see wall.py for what it leaves to the virtual one")
        return []
    with tempfile.TemporaryDirectory() as folder, closing(wall_runs(python, Path(folder), plan)) as runs:
        return list(followed(console, "wall clock", runs, plan.total))


def _joined(files: Sequence[Path]) -> dict[str, Any]:
    """Earlier results as one document; of a row that several have, the last counts."""
    documents = [json.loads(file.read_text()) for file in files]
    rows = {tuple(list(row.values())[:6]): row for document in documents for row in document["rows"]}
    plans = {half: plan for document in documents for half, plan in document["plans"].items()}
    wall = [run for document in documents for run in document["wall_runs"]]
    joined: dict[str, Any] = documents[-1] | {"plans": plans, "rows": list(rows.values()), "wall_runs": wall}
    return joined


if __name__ == "__main__":
    main()
