"""Runs test files beside each other, each by a pytest of its own: `python -m tests.support.by_file FOLDER`.

For tests that wait far more than they compute, as those of the control plane do: a kubelet takes its time. Files are
taken by `WORKERS` workers, those that take longest first, so that none is left alone at the end; each has a plane of
its own. What a file printed is shown whole when it has ended, in one piece. Ends with 1 if any of them failed.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from time import monotonic

WORKERS = 2

SLOW = ("test_autoscaling.py", "test_drain.py", "test_rollouts.py", "test_scaling_hand_over.py", "test_drain_router.py")
"""Files of few lines that wait for minutes; of the others the longer ones take longer."""


def main() -> None:
    (folder,) = map(Path, sys.argv[1:])
    files = in_order(folder)
    if not files:
        sys.exit(f"{folder} holds no test files")
    with ThreadPoolExecutor(WORKERS) as pool:
        runs = [pool.submit(run, path) for path in files]
        passed = [show(done.result(), f"{number} of {len(files)}") for number, done in enumerate(as_completed(runs), 1)]
    sys.exit(not all(passed))


def in_order(folder: Path) -> list[Path]:
    """Its test files, those first that are expected to take longest."""
    return sorted(folder.glob("test_*.py"), key=lambda path: (path.name in SLOW, path.stat().st_size), reverse=True)


def run(path: Path) -> tuple[Path, subprocess.CompletedProcess[str], float]:
    """One file; what it printed, and how long it took."""
    began_s = monotonic()
    command = [sys.executable, "-m", "pytest", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return path, done, monotonic() - began_s


def show(ended: tuple[Path, subprocess.CompletedProcess[str], float], number: str) -> bool:
    """Print what came of a file; whether it passed."""
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
