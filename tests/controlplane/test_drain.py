"""Nobody loses a request, and no pod does one twice, while pods go: in a rollout, a scale-down, a drain, an eviction.

Two fleets on two nodes, under clients that count: prefill and decode with a client that hands over as a proxy does, and
mixed pods with clients that keep their connections. The tests are steps of one story over both, in their order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import OperatorProcess
from tests.support.loaded_fleet import GONE_S, POLL_S, LoadedFleet, ready, under_load
from tests.support.node_agent.launch import start_agent
from tests.support.plane.plane import ControlPlane
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

NAMESPACE = "draining"
NODES = ("drain-a", "drain-b")
SERVICE_LAG_S = 3.0
"""Services go on to send to a pod that has been told to go, as kube-proxy does for a while."""
TWO = {"replicas": 2}
COST = "controller.kubernetes.io/pod-deletion-cost"

Fleets = tuple[LoadedFleet, ...]


@pytest.fixture(scope="module", autouse=True)
def agents(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with ExitStack() as stack:
        for name in NODES:
            handle = start_agent(
                plane,
                tmp_path_factory.mktemp(name),
                name=name,
                default_image=Path(sys.prefix),
                forward_services=name == NODES[0],
                flags=(f"--service-lag={SERVICE_LAG_S}",),
            )
            stack.callback(handle.leave)
        yield


@pytest.fixture(scope="module")
def fleets(plane: ControlPlane, module_operator: OperatorProcess) -> Iterator[Fleets]:
    plane.create_namespace(NAMESPACE)
    found = (
        LoadedFleet(plane, NAMESPACE, "pair", {"prefill": TWO, "decode": TWO}),
        LoadedFleet(plane, NAMESPACE, "mixed", {"mixed": TWO}, keep_alive=True),
    )
    with ready(found):
        yield found
    plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_a_rollout_loses_nothing_and_does_nothing_twice(fleets: Fleets) -> None:
    before = {each: each.pod_names for each in fleets}
    with under_load(fleets):
        for each in fleets:
            each.apply(args=["--max-num-seqs", "200"])
        for each in fleets:
            eventually(each.replaced(before[each]), GONE_S, POLL_S)


def test_a_node_that_is_drained_loses_nothing(plane: ControlPlane, fleets: Fleets) -> None:
    away = NODES[1]
    assert any(pod["spec"]["nodeName"] == away for each in fleets for pod in each.pods())
    with under_load(fleets):
        plane.kubectl("drain", away, f"--timeout={GONE_S}s", timeout_s=GONE_S + 10)
        assert not any(pod["spec"].get("nodeName") == away for each in fleets for pod in each.pods())
    plane.kubectl("uncordon", away)


def test_pods_that_are_evicted_lose_nothing(plane: ControlPlane, fleets: Fleets) -> None:
    with under_load(fleets):
        evicted = [each.pods(role)[0]["metadata"]["name"] for each in fleets for role in each.spec]
        for name in evicted:
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
            plane.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
        for each in fleets:
            eventually(each.replaced(set(evicted)), GONE_S, POLL_S)


def test_a_scale_down_takes_the_pod_with_the_least_to_do_and_loses_nothing(
    module_operator: OperatorProcess, fleets: Fleets
) -> None:
    (*_, mixed) = fleets
    with under_load(fleets):
        # The one that is ready for the shortest time would go by itself.
        idle, busy = sorted(mixed.pods(), key=ready_since)
        mixed.keep_busy(busy, requests=12, output_tokens=1500)
        module_operator.await_turns()
        for each in fleets:
            each.apply(replicas=1)
        (goes,) = eventually(lambda: [pod for pod in mixed.pods() if "deletionTimestamp" in pod["metadata"]], GONE_S)
        assert goes["metadata"]["name"] == idle["metadata"]["name"]
        costs = {pod["metadata"]["name"]: int(pod["metadata"]["annotations"][COST]) for pod in mixed.pods()}
        assert costs[busy["metadata"]["name"]] > costs[idle["metadata"]["name"]]
        for each in fleets:
            each.await_ready()


def ready_since(pod: dict[str, Any]) -> str:
    """When it began to serve."""
    (condition,) = (each for each in pod["status"]["conditions"] if each["type"] == "Ready")
    return str(condition["lastTransitionTime"])
