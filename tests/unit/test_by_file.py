"""Test files beside each other: all are run, what failed is shown, and one failure is a failure of all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import by_file


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
