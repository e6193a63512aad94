"""Runs the tests of SGLang's own parser (sglang/) inside the vLLM environment, with SGLang's package beside it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.sglang_package import ensure_sglang
from tests.support.vllm_server import server_environment

SUITE = Path(__file__).parent / "sglang"
TIMEOUT_S = 180


@pytest.mark.vllm
def test_sglangs_parser_accepts_what_is_rendered(vllm_python: Path) -> None:
    folder = ensure_sglang(vllm_python, lambda line: print(line, flush=True))
    command = [str(vllm_python), "-W", "ignore", "-m", "pytest", "-c", str(SUITE / "pytest.ini"), str(SUITE)]
    environment = server_environment(vllm_python) | {"PYTHONPATH": str(folder), "VLLM_LOGGING_LEVEL": "WARNING"}
    environment.pop("PYTEST_ADDOPTS", None)
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, cwd=os.fspath(SUITE)
    )
    print(result.stdout[-2000:])
    assert result.returncode == 0, result.stdout + result.stderr
