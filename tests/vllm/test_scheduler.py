"""Runs the scheduler tests (inproc/) inside the vLLM environment: they drive vLLM's own scheduler by hand."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.vllm_server import server_environment

INPROC = Path(__file__).parent / "inproc"
TIMEOUT_S = 240


@pytest.mark.vllm
def test_the_scheduler_suite_passes_inside_the_vllm_environment(vllm_python: Path) -> None:
    command = [str(vllm_python), "-m", "pytest", "-c", str(INPROC / "pytest.ini"), str(INPROC)]
    environment = server_environment(vllm_python) | {"VLLM_LOGGING_LEVEL": "WARNING"}
    environment.pop("PYTEST_ADDOPTS", None)
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, cwd=os.fspath(INPROC)
    )
    print(result.stdout[-2000:])
    assert result.returncode == 0, result.stdout + result.stderr
