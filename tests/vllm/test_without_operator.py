"""README's "Use the scheduler without the operator", run as it is written: one install, one file, one flag.

The lines are taken from README.md and run by a shell in an environment that stands for a vLLM image. Changed are
only the places that a test may not use (/etc, fixed ports), and the flags that make an engine small.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiny_model import write_tiny_model
from tests.support.vllm_image import make_image
from tests.support.vllm_server import (
    ENGINE_ARGUMENTS,
    MODEL_NAME,
    REPOSITORY,
    VllmServer,
    burst,
    free_port,
    running,
    server_environment,
)
from tests.vllm.conftest import Governed, wait_until

pytestmark = pytest.mark.vllm

HEADING = "## Use the scheduler without the operator"
INSTALL_TIMEOUT_S = 300


def written_commands() -> tuple[str, str]:
    """The block of shell lines under the heading: what prepares, and the line that serves."""
    section = (REPOSITORY / "README.md").read_text().split(HEADING)[1]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block is not None
    prepare, serve = block[1].split("vllm serve ")
    return prepare, "vllm serve " + serve


@pytest.fixture(scope="module")
def image(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with vLLM and pip in it and without Prefleet; its interpreter."""
    return make_image(vllm_python, tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def served(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Governed]:
    folder = tmp_path_factory.mktemp("etc")
    model = write_tiny_model(folder / "model")
    prepare, serve = (text.replace("/etc/prefleet", str(folder)) for text in written_commands())
    environment = server_environment(image)
    del environment["PYTHONPATH"]
    checkout = _checkout(folder / "checkout")
    subprocess.run(["bash", "-ec", prepare], cwd=checkout, env=environment, check=True, timeout=INSTALL_TIMEOUT_S)
    server = _serve(serve, model, folder / "engine.log", environment)
    with running([server]):
        yield Governed(server, folder / "policy.json", generation=1)


def _checkout(target: Path) -> Path:
    """The files that a package is built from, and nothing that another build left."""
    target.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(REPOSITORY / name, target)
    for name in ("operator", "node_runtime"):
        shutil.copytree(REPOSITORY / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def _serve(line: str, model: Path, log: Path, environment: dict[str, str]) -> VllmServer:
    port, exporter_port = free_port(), free_port()
    small = ("--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL_NAME, *ENGINE_ARGUMENTS)
    exporter = f'"exporter_host": "127.0.0.1", "exporter_port": {exporter_port}, "policy_file"'
    line = line.replace("MODEL", " ".join([str(model), *small]), 1).replace('"policy_file"', exporter)
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=log.parent,
            start_new_session=True,
        )
    return VllmServer(port, log, process, exporter_port)


def test_the_policy_of_the_file_orders_the_queue(served: Governed) -> None:
    metrics = served.server.runtime_metrics()
    written = json.loads(served.policy_file.read_text())
    assert metrics["prefleet_policy_threshold_tokens"] == written["threshold"]
    answers = asyncio.run(burst(served.server, [[5] * 40, [6] * (written["threshold"] + 100)], 3))
    assert [len(answer.tokens) for answer in answers] == [3, 3]
    wait_until(lambda: (served.dispatches()["short"], served.dispatches()["long"]) == (1, 1))


def test_the_running_engine_follows_an_edit_within_a_second(served: Governed) -> None:
    seconds = served.set_policy(policy="fcfs")
    print(f"\nthe engine reported the edited policy after {seconds:.2f} s")
    assert seconds < 1


def test_the_runtime_is_the_installed_package_and_not_this_checkout(image: Path, served: Governed) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(image), "-c", "import prefleet_runtime; print(prefleet_runtime.__file__)"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd="/")
    assert Path(found.stdout.strip()).is_relative_to(image.parents[1])
    assert served.server.process.poll() is None
