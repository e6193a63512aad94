"""A VLLMAscend fleet under traffic is tuned from the engine's own metrics, by restarts within the budget.

The pods are stand-ins (tests/support/native): vLLM's metrics, vLLM Ascend's arguments, and the queue that they ask for.
"""

from __future__ import annotations

import json
import random
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.support.demo.workload import mix_lengths
from tests.support.installation import Fleet
from tests.support.native.images import make_native_images
from tests.support.node_agent.launch import start_agent
from tests.support.plane.plane import ControlPlane
from tests.support.waiting import eventually

pytestmark = [pytest.mark.controlplane, pytest.mark.usefixtures("module_operator")]

Json = dict[str, Any]

MOVED_S = 120
CLIENTS = 8
PAUSE_S = 0.15


@pytest.fixture(scope="module", autouse=True)
def agent(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    images = make_native_images(tmp_path_factory.mktemp("image"))
    handle = start_agent(plane, tmp_path_factory.mktemp("agent"), name="tuned-natives", images=images)
    yield
    handle.leave()


@pytest.fixture
def fleet(plane: ControlPlane, namespace: str) -> Iterator[Fleet]:
    fleet = Fleet(plane, namespace)
    yield fleet
    fleet.delete()


@contextmanager
def traffic(fleet: Fleet) -> Iterator[None]:
    """Clients that ask whatever pod there is for lengths of two kinds, until the context ends."""
    over = threading.Event()
    addresses: list[str] = []

    def look() -> None:
        while not over.wait(1.0):
            addresses[:] = [pod["status"]["podIP"] for pod in fleet.pods() if "podIP" in pod["status"]]

    def ask(seed: int) -> None:
        rng = random.Random(seed)
        lengths = mix_lengths(rng)
        while not over.wait(PAUSE_S):
            if not addresses:
                continue
            body = json.dumps({"model": "chat", "prompt": [1] * next(lengths), "max_tokens": 1}).encode()
            # A pod may be starting or going: the next request finds another one.
            with suppress(OSError, IndexError):
                url = f"http://{rng.choice(addresses)}:8000/v1/completions"
                call = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
                urllib.request.urlopen(call, timeout=10).read()

    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        running = [pool.submit(look), *(pool.submit(ask, seed) for seed in range(CLIENTS))]
        try:
            yield
        finally:
            over.set()
    for each in running:
        each.result()


def apply(fleet: Fleet, budget: int) -> None:
    fleet.apply(
        engine={"type": "VLLMAscend", "version": "0.25.1rc1"},
        mixed={"replicas": 1},
        tuning={
            "window": "60s",
            "minSamples": 200,
            "cooldown": "20s",
            "waitQuantile": "P90",
            "restartBudget": budget,
        },
    )


def await_active(fleet: Fleet, generation: int) -> str:
    """Wait until the pods run that generation; the arguments of the one pod."""

    def active() -> bool:
        effective = (fleet.status().get("effective") or {}).get("generation")
        return effective == generation and fleet.condition("PolicyActive").get("reason") == "StartedWithGeneration"

    eventually(active, MOVED_S)
    eventually(lambda: len(fleet.pods()) == 1, MOVED_S)
    return json.dumps(fleet.pods()[0]["spec"]["containers"][0]["args"]).replace('\\"', '"')


def tuned(fleet: Fleet, value: str) -> Json:
    return (fleet.status().get("tuning") or {}).get(value) or {}


def test_threshold_and_wait_are_tuned_by_restarts_within_the_budget(fleet: Fleet) -> None:
    apply(fleet, budget=1)
    assert "short_request_first_config" not in await_active(fleet, 1)
    with traffic(fleet):
        # The lengths fall apart between 200 and 6,000 tokens; of vLLM's bounds 1,000 lies there.
        args = await_active(fleet, 2)
        assert '"enabled": true, "long_max_wait_ms": 0, "threshold": 1000' in args
        assert fleet.status()["history"][-1]["reason"] == "Valley"
        fleet.await_condition("MetricsAvailable", "True")

        # What the engine shows bounds the long requests' waits, and the budget holds what would follow.
        held = eventually(lambda: tuned(fleet, "longMaxWait").get("reason") == "RestartBudgetSpent", MOVED_S)
        assert held
        told = tuned(fleet, "longMaxWait")["message"]
        assert "P90 of long waits is at most" in told
        assert "an upper bound since VLLMAscend shows no lanes" in told
        assert "spend tuning.restartBudget 1" in told
        assert fleet.status()["effective"]["generation"] == 2

        apply(fleet, budget=2)
        assert '"long_max_wait_ms": 5600, "threshold": 1000' in await_active(fleet, 3)
        assert fleet.status()["history"][-1]["reason"] == "WaitFromLongWaits"
