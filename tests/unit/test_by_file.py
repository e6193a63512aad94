"""Test files beside each other: all are run, what failed is shown, and one failure is a failure of all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support import by_file
from tests.support.stalls import BEAT_S, STALL_S, StallWatch


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.by_file", str(folder), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_file_runs_and_one_failure_counts(tmp_path: Path) -> None:
    (tmp_path / "test_right.py").write_text("def test_it() -> None:\n    pass\n")
    assert run(tmp_path).returncode == 0
    (tmp_path / "test_wrong.py").write_text("def test_it() -> None:\n    assert False, 'this is why'\n")
    done = run(tmp_path)
    assert done.returncode == 1
    assert "test_right.py: passed in" in done.stdout
    assert "this is why" in done.stdout
    assert "test_wrong.py: FAILED" in done.stdout


def test_a_folder_that_is_run_whole_counts_too(tmp_path: Path) -> None:
    whole, single = tmp_path / "whole", tmp_path / "single"
    for folder, number, outcome in ((whole, 0, "False"), (whole, 1, "False"), (single, 0, "True")):
        folder.mkdir(exist_ok=True)
        (folder / f"test_{folder.name}_{number}.py").write_text(f"def test_it() -> None:\n    assert {outcome}\n")
    done = run(single, "--whole", str(whole))
    assert done.returncode == 1
    assert f"{whole}: FAILED" in done.stdout
    assert "2 failed" in done.stdout
    assert done.stdout.count(": passed in") == 1


def test_files_that_wait_for_long_go_first(tmp_path: Path) -> None:
    for name, length in (("test_long.py", 30), ("test_short.py", 1), (by_file.SLOW[0], 2), ("conftest.py", 90)):
        (tmp_path / name).write_text("#" * length)
    found = [path.name for path in by_file.in_order(tmp_path)]
    assert found == [by_file.SLOW[0], "test_long.py", "test_short.py"]


def test_files_that_wait_for_long_are_there() -> None:
    folder = Path(by_file.__file__).parents[1] / "controlplane"
    assert [name for name in by_file.SLOW if not (folder / name).is_file()] == []


def test_a_folder_without_tests_is_no_success(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert "holds no test files" in done.stderr


FAILS_AT_FIRST = """
from pathlib import Path

def test_it() -> None:
    mark = Path(__file__).with_name("ran")
    first = not mark.exists()
    mark.touch()
    assert not first
"""


def test_what_failed_without_a_stall_is_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILS_AT_FIRST)
    (only,) = by_file.settle(tmp_path / "test_it.py", StallWatch())
    assert not only.passed


def test_what_failed_while_the_machine_stood_still_is_run_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = StallWatch()
    watch.beat(0.0, float("inf"))
    (tmp_path / "test_it.py").write_text(FAILS_AT_FIRST)
    runs = by_file.settle(tmp_path / "test_it.py", watch)
    assert [run.passed for run in runs] == [False, True]
    assert by_file.show(runs, "1 of 1")
    assert "run once more" in capsys.readouterr().out
    (tmp_path / "test_wrong.py").write_text("def test_it() -> None:\n    assert False\n")
    wrong = by_file.settle(tmp_path / "test_wrong.py", watch)
    assert [run.passed for run in wrong] == [False, False]
    assert not by_file.show(wrong, "1 of 1")


def test_a_late_wake_up_is_a_stall_and_a_slow_one_is_not() -> None:
    watch = StallWatch()
    watch.beat(100.0, 100.0 + BEAT_S + STALL_S)
    assert watch.longest_s(0.0) == 0.0
    watch.beat(200.0, 223.0 + BEAT_S)
    watch.beat(300.0, 310.0 + BEAT_S)
    assert watch.longest_s(0.0) == pytest.approx(23.0)
    assert watch.longest_s(250.0) == pytest.approx(10.0)
    assert watch.longest_s(400.0) == 0.0


def test_every_core_is_watched_by_a_thread_of_its_own() -> None:
    before = threading.active_count()
    with StallWatch():
        assert threading.active_count() - before == len(os.sched_getaffinity(0))
