"""Starting the scheduler: what it refuses, and where its metrics are served."""

from __future__ import annotations

import logging
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import vllm
from prefleet_runtime.contract import InvalidPolicyError
from prefleet_runtime.device import Device, DeviceKind, find_cpu
from prefleet_runtime.vllm import releases, scheduler
from prefleet_runtime.vllm.scheduler import SetupError
from vllm.v1.core.sched.scheduler import Scheduler

from tests.support.vllm_server import free_port, read_metrics
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
    started = Setup(model, policy_file, exporter_port=base, rank=2).scheduler()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{base + 2}/metrics", timeout=5) as response:
            assert b"prefleet_policy_generation 1.0" in response.read()
    finally:
        started.shutdown()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{base + 2}/metrics", timeout=5)


def test_the_device_is_named_in_the_log_and_beside_the_step_cost(
    model: Path, policy_file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefleet_runtime.vllm.scheduler._log_as_the_engine_does", lambda: None)
    caplog.set_level(logging.INFO, "prefleet_runtime")
    device = find_cpu()
    port = free_port()
    started = Setup(model, policy_file, exporter_port=port).scheduler()
    try:
        metrics = read_metrics(f"http://127.0.0.1:{port}/metrics")
    finally:
        started.shutdown()
    assert metrics[f'prefleet_device_info{{kind="cpu",name="{device.name}"}}'] == 1
    assert f"on {device};" in caplog.text


def test_where_the_process_has_no_context_the_platform_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Platform:
        is_cpu = staticmethod(lambda: False)
        get_device_name = staticmethod(lambda: "NVIDIA H200")

    monkeypatch.setattr(scheduler, "current_platform", Platform)
    monkeypatch.setattr(scheduler, "find_device", lambda: Device(DeviceKind.CUDA, count=8))
    assert scheduler._device() == Device(DeviceKind.CUDA, "NVIDIA H200", 8)


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
