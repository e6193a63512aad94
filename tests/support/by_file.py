"""Runs tests beside each other, each file of a folder by a pytest of its own:

    python -m tests.support.by_file [--workers N] [--whole FOLDER ...] FOLDER

For tests that wait far more than they compute, as those of the control plane do: a kubelet takes its time. Their files
are taken by a few workers, those that take longest first, so that none is left alone at the end; each has a plane
of its own. Before them go the folders that are run whole, whose tests compute what the others leave. What one printed
is shown in one piece when it has ended. Ends with 1 if any of them failed.

What failed while the machine stood still (see `stalls`) is run once more, and both runs are shown: such a failure says
nothing of the code. Any other failure counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from tests.support.stalls import StallWatch

WORKERS = 3
"""One more than the cores of the smallest machine that the tests have to do with."""

SLOW = (
    "test_autoscaling.py",
    "test_drain.py",
    "test_drain_router.py",
    "test_external_metrics.py",
    "test_rollouts.py",
    "test_scaling_hand_over.py",
)
"""Files of few lines that wait for minutes; of the others the longer ones take longer."""


@dataclass(frozen=True)
class Run:
    """One pytest that has ended: what it printed, how long it took, and the longest stall of the machine meanwhile."""

    path: Path
    output: str
    passed: bool
    seconds: float
    stalled_s: float

    @property
    def counts(self) -> str:
        """The last line of pytest, such as "3 passed in 2.10s"."""
        return self.output.rstrip().rpartition("\n")[2].strip("= ")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run tests beside each other.")
    parser.add_argument("folder", type=Path, help="its test files are run one by one")
    parser.add_argument("--whole", type=Path, nargs="*", default=[], help="folders that are run by one pytest each")
    parser.add_argument("--workers", type=int, default=WORKERS, help="how many run at a time")
    asked = parser.parse_args()
    files = in_order(asked.folder)
    if not files:
        sys.exit(f"{asked.folder} holds no test files")
    paths = [*asked.whole, *files]
    with StallWatch() as watch, ThreadPoolExecutor(asked.workers) as pool:
        runs = [pool.submit(settle, path, watch) for path in paths]
        passed = [show(done.result(), f"{number} of {len(paths)}") for number, done in enumerate(as_completed(runs), 1)]
    sys.exit(not all(passed))


def in_order(folder: Path) -> list[Path]:
    """Its test files, those first that are expected to take longest."""
    return sorted(folder.glob("test_*.py"), key=lambda path: (path.name in SLOW, path.stat().st_size), reverse=True)


def settle(path: Path, watch: StallWatch) -> list[Run]:
    """Run one file or folder, and once more if it failed while the machine stood still."""
    first = run(path, watch)
    return [first] if first.passed or not first.stalled_s else [first, run(path, watch)]


def run(path: Path, watch: StallWatch) -> Run:
    """One file or folder by a pytest of its own."""
    began_s = monotonic()
    command = [sys.executable, "-m", "pytest", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return Run(path, done.stdout, not done.returncode, monotonic() - began_s, watch.longest_s(began_s))


def show(runs: list[Run], number: str) -> bool:
    """Print what came of it; whether its last run passed."""
    for done in runs:
        if not done.passed:
            print(done.output, flush=True)
        stalled = f"; the machine stood still for {done.stalled_s:.0f} s" if done.stalled_s else ""
        again = ", run once more" if done is not runs[-1] else ""
        outcome = "passed" if done.passed else "FAILED"
        print(f"{number}: {done.path}: {outcome} in {done.seconds:.0f} s ({done.counts}){stalled}{again}", flush=True)
    return runs[-1].passed


if __name__ == "__main__":
    main()
