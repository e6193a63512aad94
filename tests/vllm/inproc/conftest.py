"""Schedulers to drive, synchronous and asynchronous; each must be empty when its test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_model import write_tiny_model
from tests.vllm.inproc.engine import Engine, Setup, policy_text

Start = Callable[..., Engine]
SHORT_FIRST: dict[str, Any] = {"policy": "short_request_first", "threshold": 100}
FIRST_COME: dict[str, Any] = {"policy": "fcfs"}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    file = tmp_path / "policy.json"
    file.write_text(policy_text(**SHORT_FIRST))
    return file


@pytest.fixture(params=[False, True], ids=["synchronous", "asynchronous"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def start(model: Path, policy_file: Path, asynchronous: bool) -> Iterator[Start]:
    """Start an engine under a policy (short requests first by default); it must end empty."""
    engines: list[Engine] = []

    def start_engine(policy: dict[str, Any] = SHORT_FIRST, **setup: Any) -> Engine:
        policy_file.write_text(policy_text(**policy))
        scheduler = Setup(model, policy_file, asynchronous=asynchronous, **setup).scheduler()
        engines.append(Engine(scheduler, policy_file, asynchronous))
        return engines[-1]

    yield start_engine
    for engine in engines:
        engine.scheduler.shutdown()
        engine.check_empty()
