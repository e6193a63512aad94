"""Outlives the agent by a moment: when the agent is gone, however it went, its processes go too.

The agent holds the write end of this process's standard input. End of file means that the agent ended; then every
process that carries its mark is killed. (PR_SET_PDEATHSIG would reach the first process of a container alone and
leave its children to run on.)
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.node_agent.processes import kill_trees

_REPOSITORY = Path(__file__).parents[3]


def start_watchdog(mark: str) -> subprocess.Popen[bytes]:
    """Close its stdin, then wait for it, at an orderly end."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.node_agent.watchdog", mark],
        cwd=_REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main() -> None:
    sys.stdin.buffer.read()
    kill_trees(sys.argv[1])


if __name__ == "__main__":
    main()
