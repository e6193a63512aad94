"""Process trees of the node agent: found by their mark, killed as a whole, nothing else touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_agent.processes import MARK_VARIABLE, end_trees, find_trees, kill_trees
from tests.support.node_agent.watchdog import start_watchdog

TREE = """
import os, subprocess, sys, time
inherits = subprocess.Popen(["sleep", "60"], start_new_session=True)
wiped = subprocess.Popen(["sleep", "60"], env={})
print(inherits.pid, wiped.pid, flush=True)
time.sleep(60)
"""


def _start(mark: Path) -> tuple[subprocess.Popen[str], set[int]]:
    """A process with two children: one in a session of its own, one without the mark."""
    leader = subprocess.Popen(
        [sys.executable, "-c", TREE],
        env={**os.environ, MARK_VARIABLE: str(mark)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert leader.stdout
    children = {int(pid) for pid in leader.stdout.readline().split()}
    return leader, {leader.pid, *children}


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[set[int]]:
    leader, pids = _start(tmp_path / "pods" / "a")
    yield pids
    kill_trees(str(tmp_path))
    leader.communicate()


def test_a_tree_is_its_marked_processes_and_their_sessions(tree: set[int], tmp_path: Path) -> None:
    assert find_trees(str(tmp_path)) == tree
    assert find_trees(str(tmp_path / "pods" / "a")) == tree


def test_a_mark_does_not_cover_one_that_only_begins_like_it(tree: set[int], tmp_path: Path) -> None:
    assert tree
    assert find_trees(str(tmp_path / "pod")) == set()


def test_a_process_whose_session_began_outside_its_pid_namespace_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Containers started into a namespace from outside see their session as 0.
    child = subprocess.Popen(["sleep", "60"], env={MARK_VARIABLE: str(tmp_path)})
    stat = Path.read_text

    def as_inside(path: Path) -> str:
        head, _, tail = stat(path).rpartition(")")
        fields = tail.split()
        return f"{head}) {' '.join([*fields[:3], '0', *fields[4:]])}"

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", as_inside)
        assert find_trees(str(tmp_path)) == {child.pid}
        assert kill_trees(str(tmp_path)) == 1
    assert child.wait() == -signal.SIGKILL


def test_killing_leaves_nothing(tree: set[int], tmp_path: Path) -> None:
    assert kill_trees(str(tmp_path)) == len(tree)
    assert find_trees(str(tmp_path)) == set()


def test_what_ignores_the_first_signal_gets_the_last(tmp_path: Path) -> None:
    stubborn = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal,time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)",
        ],
        env={**os.environ, MARK_VARIABLE: str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    assert stubborn.stdout
    stubborn.stdout.readline()
    end_trees(str(tmp_path), grace_s=0.1)
    stubborn.communicate()
    assert stubborn.returncode == -signal.SIGKILL


def test_the_watchdog_ends_the_tree_when_its_pipe_ends(tree: set[int], tmp_path: Path) -> None:
    watchdog = start_watchdog(str(tmp_path))
    time.sleep(0.1)
    assert find_trees(str(tmp_path)) == tree
    watchdog.communicate(timeout=20)
    assert find_trees(str(tmp_path)) == set()
