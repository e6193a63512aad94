"""Nobody loses a request, and no pod does one twice, while pods go behind the real vllm-router, which tries again.

The tests are steps of one story over one fleet, in their order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installation import Helm, OperatorProcess
from tests.support.loaded_fleet import GONE_S, POLL_S, LoadedFleet, ready, under_load
from tests.support.node_agent.launch import start_agent
from tests.support.plane.plane import ControlPlane
from tests.support.router_env import ensure_router_env
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

NAMESPACE = "draining-routed"
IMAGE = "example.com/vllm-router:0.1.17"
TWO = {"replicas": 2}


@pytest.fixture(scope="module", autouse=True)
def agent(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    routers = ensure_router_env(lambda line: print(line, flush=True))
    handle = start_agent(
        plane,
        tmp_path_factory.mktemp("agent"),
        name="draining-routed",
        default_image=Path(sys.prefix),
        images={IMAGE: routers},
    )
    yield
    handle.leave()


@pytest.fixture(scope="module")
def fleet(plane: ControlPlane, helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedFleet]:
    plane.create_namespace(NAMESPACE)
    router = {"type": "VLLMRouter", "image": IMAGE}
    found = LoadedFleet(plane, NAMESPACE, "routed", {"prefill": TWO, "decode": TWO}, router)
    with OperatorProcess(plane, tmp_path_factory.mktemp("operator")) as operator:
        operator.start()
        with ready([found]):
            yield found
    plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_a_rollout_behind_a_router_loses_nothing(fleet: LoadedFleet) -> None:
    before = fleet.pod_names
    with under_load([fleet]):
        fleet.apply(args=["--max-num-seqs", "200"])
        eventually(fleet.replaced(before), GONE_S, POLL_S)


def test_a_scale_down_behind_a_router_loses_nothing(fleet: LoadedFleet) -> None:
    with under_load([fleet]):
        fleet.apply(replicas=1)
        fleet.await_ready()
