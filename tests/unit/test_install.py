"""The runtime copied into a directory of its own, as an init container does it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from prefleet_runtime import install


def test_the_copy_is_imported_from_the_target(tmp_path: Path) -> None:
    assert install.main([str(tmp_path / "new" / "runtime")]) == 0
    program = "import prefleet_runtime.governor as it; print(it.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(tmp_path / "new" / "runtime"), "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(tmp_path / "new" / "runtime" / "prefleet_runtime" / "governor.py")


def test_only_sources_are_copied(tmp_path: Path) -> None:
    place = install.install(tmp_path)
    copied = {path.relative_to(place) for path in place.rglob("*.py")}
    assert copied == {path.relative_to(install.PACKAGE) for path in install.PACKAGE.rglob("*.py")}
    assert not list(place.rglob("__pycache__"))


def test_a_second_run_replaces_what_the_first_left_and_leaves_nothing_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = install.install(tmp_path)
    (place / "stale.py").write_text("left over from an older release\n")
    (place / "contract.py").unlink()
    assert install.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"the runtime is in {place}\n"
    assert (place / "contract.py").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["prefleet_runtime"]
    assert not (place / "stale.py").exists()


def test_a_target_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert install.main([str(tmp_path / "file")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(tmp_path / "file") in said
    assert "mount a writable volume" in said


@pytest.mark.parametrize(
    ("needs", "lacks"),
    [
        pytest.param((), "", id="nothing is asked for"),
        pytest.param(("prefleet_runtime.drain", "prefleet_runtime.vllm.front"), "", id="all is there"),
        pytest.param(
            ("prefleet_runtime.drain", "prefleet_runtime.vllm.later"), "prefleet_runtime.vllm.later", id="one"
        ),
        pytest.param(("prefleet_runtime.later.part",), "prefleet_runtime.later.part", id="nor what it would be in"),
    ],
)
def test_a_runtime_that_lacks_what_the_engine_is_started_with_is_refused_before_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], needs: tuple[str, ...], lacks: str
) -> None:
    flags = ["--needs", *needs] if needs else []
    assert install.main([str(tmp_path / "runtime"), *flags]) == bool(lacks)
    told = capsys.readouterr().err
    assert told == (f"this runtime image lacks {lacks}: use one of the operator's release\n" if lacks else "")
    assert (tmp_path / "runtime").exists() is not bool(lacks)
