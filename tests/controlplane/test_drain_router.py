"""Nobody loses a request, and no pod does one twice, while pods go behind the real vllm-router, which tries again.

The tests are steps of one story over one fleet, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.installation import OperatorProcess
from tests.support.loaded_fleet import GONE_S, POLL_S, LoadedFleet, ready, under_load
from tests.support.plane.plane import ControlPlane
from tests.support.routing_node import ROUTER_IMAGE, routing_node
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

NAMESPACE = "draining-routed"
TWO = {"replicas": 2}


@pytest.fixture(scope="module", autouse=True)
def agent(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with routing_node(plane, tmp_path_factory.mktemp("agent"), "draining-routed"):
        yield


@pytest.fixture(scope="module")
def fleet(plane: ControlPlane, module_operator: OperatorProcess) -> Iterator[LoadedFleet]:
    plane.create_namespace(NAMESPACE)
    router = {"type": "VLLMRouter", "image": ROUTER_IMAGE}
    found = LoadedFleet(plane, NAMESPACE, "routed", {"prefill": TWO, "decode": TWO}, router)
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
