"""Starting the scheduler: what it refuses, and where its metrics are served."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest
import vllm
from prefleet_runtime.contract import InvalidPolicyError
from prefleet_runtime.vllm import releases
from prefleet_runtime.vllm.scheduler import SetupError
from vllm.v1.core.sched.scheduler import Scheduler

from tests.support.vllm_server import free_port
from tests.vllm.inproc.engine import Setup


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        pytest.param({"additional": {}}, "add --additional-config", id="no settings"),
        pytest.param({"additional": {"prefleet": {}}}, "policy_file: Field required", id="no policy file named"),
        pytest.param(
            {"additional": {"prefleet": {"policy_file": "x", "port": 1}}}, "port: Extra inputs", id="unknown key"
        ),
        pytest.param({"scheduling_policy": "priority"}, "leave --scheduling-policy priority out", id="priority"),
    ],
)
def test_wrong_settings_are_refused_with_a_sentence(
    model: Path, policy_file: Path, setup: dict[str, Any], message: str
) -> None:
    with pytest.raises(SetupError, match=message):
        Setup(model, policy_file, **setup).scheduler()


def test_a_missing_policy_file_is_refused_with_its_name(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidPolicyError, match="nowhere"):
        Setup(model, tmp_path / "nowhere.json").scheduler()


def test_another_release_is_refused(model: Path, policy_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.27.4")
    with pytest.raises(releases.UnsupportedReleaseError, match=r"this is vLLM 0\.27\.4"):
        Setup(model, policy_file).scheduler()


def test_each_data_parallel_rank_serves_its_metrics_on_its_own_port(model: Path, policy_file: Path) -> None:
    base = free_port()
    scheduler = Setup(model, policy_file, exporter_port=base, rank=2).scheduler()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{base + 2}/metrics", timeout=5) as response:
            assert b"prefleet_policy_generation 1.0" in response.read()
    finally:
        scheduler.shutdown()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{base + 2}/metrics", timeout=5)


def test_a_scheduler_that_cannot_be_made_gives_its_port_back(
    model: Path, policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    setup = Setup(model, policy_file, exporter_port=port)
    with monkeypatch.context() as broken:
        broken.setattr(Scheduler, "__init__", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            setup.scheduler()
    setup.scheduler().shutdown()
