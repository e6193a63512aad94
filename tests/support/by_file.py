"""Runs tests beside each other, each file of a folder by a pytest of its own:

    python -m tests.support.by_file [--whole FOLDER ...] FOLDER

For tests that wait far more than they compute, as those of the control plane do: a kubelet takes its time. Their files
are taken by `WORKERS` workers, those that take longest first, so that none is left alone at the end; each has a plane
of its own. Before them go the folders that are run whole, whose tests compute what the others leave. What one printed
is shown in one piece when it has ended. Ends with 1 if any of them failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from time import monotonic

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


def main() -> None:
    parser = argparse.ArgumentParser(description="Run tests beside each other.")
    parser.add_argument("folder", type=Path, help="its test files are run one by one")
    parser.add_argument("--whole", type=Path, nargs="*", default=[], help="folders that are run by one pytest each")
    asked = parser.parse_args()
    files = in_order(asked.folder)
    if not files:
        sys.exit(f"{asked.folder} holds no test files")
    paths = [*asked.whole, *files]
    with ThreadPoolExecutor(WORKERS) as pool:
        runs = [pool.submit(run, path) for path in paths]
        passed = [show(done.result(), f"{number} of {len(paths)}") for number, done in enumerate(as_completed(runs), 1)]
    sys.exit(not all(passed))


def in_order(folder: Path) -> list[Path]:
    """Its test files, those first that are expected to take longest."""
    return sorted(folder.glob("test_*.py"), key=lambda path: (path.name in SLOW, path.stat().st_size), reverse=True)


def run(path: Path) -> tuple[Path, subprocess.CompletedProcess[str], float]:
    """One file or folder; what it printed, and how long it took."""
    began_s = monotonic()
    command = [sys.executable, "-m", "pytest", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return path, done, monotonic() - began_s


def show(ended: tuple[Path, subprocess.CompletedProcess[str], float], number: str) -> bool:
    """Print what came of it; whether it passed."""
    path, done, seconds = ended
    if done.returncode:
        print(done.stdout, flush=True)
    counts = done.stdout.rstrip().rpartition("\n")[2].strip("= ")
    print(
        f"{number}: {path}: {'passed' if not done.returncode else 'FAILED'} in {seconds:.0f} s ({counts})", flush=True
    )
    return not done.returncode


if __name__ == "__main__":
    main()
