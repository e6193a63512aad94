"""The scheduler suite (tests/vllm/inproc) under every vLLM release that the runtime supports.

It drives vLLM's own scheduler without an engine, synchronous and asynchronous. The engine as a whole runs in
tests/vllm, on the one release that has a CPU build in the lock file.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from prefleet_runtime.vllm.releases import SUPPORTED_MINORS

from tests.support.vllm_env import ensure_vllm_env
from tests.support.vllm_releases import Release, ensure_release, pinned_releases, release_environment

pytestmark = pytest.mark.vllm

INPROC = Path(__file__).resolve().parents[1] / "vllm" / "inproc"
TIMEOUT_S = 300


def say(line: str) -> None:
    print(line, flush=True)


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    return ensure_vllm_env(say)


def test_the_matrix_has_every_supported_release_once() -> None:
    assert tuple(release.minor for release in pinned_releases()) == SUPPORTED_MINORS


@pytest.mark.parametrize("release", pinned_releases(), ids=lambda release: release.version)
def test_the_scheduler_suite_passes_under_vllm(release: Release, vllm_python: Path) -> None:
    environment = release_environment(vllm_python, ensure_release(release, vllm_python, say))
    environment.pop("PYTEST_ADDOPTS", None)
    assert _imported_version(vllm_python, environment).startswith(release.version)
    command = [str(vllm_python), "-m", "pytest", "-c", str(INPROC / "pytest.ini"), str(INPROC)]
    began = time.monotonic()
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, cwd=os.fspath(INPROC)
    )
    assert result.returncode == 0, result.stdout + result.stderr
    say(f"vLLM {release.version}: {result.stdout.splitlines()[-1]} ({time.monotonic() - began:.0f} s in all)")


def _imported_version(python: Path, environment: dict[str, str]) -> str:
    """Which vLLM a process of the suite imports: the one that its name says, or the test would prove nothing."""
    command = [str(python), "-c", "import vllm; print(vllm.__version__)"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=True)
    return result.stdout.strip()
