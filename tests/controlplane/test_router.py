"""A fleet behind the real vllm-router: found by Services, then by watching pods; missing, and taken away.

The tests are steps of one story over one fleet, in their order in this file; the node agent runs the pods.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.installation import Fleet, OperatorProcess
from tests.support.plane.plane import ControlPlane
from tests.support.plane.processes import direct_opener
from tests.support.routing_node import ROUTER_IMAGE, routing_node
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]

NAMESPACE = "routed"
ROUTER: Json = {"type": "VLLMRouter", "image": ROUTER_IMAGE}
ACCOUNT = "router"
OUTPUT_TOKENS = 5

# What docs/router.md tells a user to apply for serviceAccountName.
RIGHTS = [
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}},
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": ACCOUNT},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    },
]


@pytest.fixture(scope="module", autouse=True)
def agent(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with routing_node(plane, tmp_path_factory.mktemp("agent"), "routed"):
        yield


@pytest.fixture(scope="module")
def fleet(plane: ControlPlane, module_operator: OperatorProcess) -> Iterator[Fleet]:
    plane.create_namespace(NAMESPACE)
    yield Fleet(plane, NAMESPACE)
    plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def apply(fleet: Fleet, prefill: int = 2, **router: Any) -> None:
    fleet.apply(prefill={"replicas": prefill}, decode={"replicas": 1}, router=ROUTER | router)


def router_url(fleet: Fleet) -> str:
    service = fleet.get("service", "chat-router")
    assert service is not None
    return f"http://{service['spec']['clusterIP']}:8000"


def complete(fleet: Fleet, length: int, stream: bool = False) -> str:
    """One completion through the router's Service: the text that came."""
    body = {"model": "chat", "prompt": [1] * length, "max_tokens": OUTPUT_TOKENS, "stream": stream}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{router_url(fleet)}/v1/completions", json.dumps(body).encode(), headers)
    with direct_opener().open(request, timeout=20) as answer:
        text = answer.read().decode()
    if not stream:
        return str(json.loads(text)["choices"][0]["text"])
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


def pods(fleet: Fleet, role: str) -> list[Json]:
    selector = f"prefleet.dev/fleet=chat,prefleet.dev/role={role}"
    found = json.loads(fleet.plane.kubectl("-n", fleet.namespace, "get", "pods", "-l", selector, "-o", "json"))
    return [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]


def served(fleet: Fleet, role: str) -> dict[str, list[int]]:
    """The prompt lengths of the requests that each pod of a role has ended."""
    ended = {}
    for pod in pods(fleet, role):
        with direct_opener().open(f"http://{pod['status']['podIP']}:9400/recent", timeout=5) as answer:
            ended[pod["metadata"]["name"]] = [r["prompt_tokens"] for r in json.loads(answer.read())["requests"]]
    return ended


def all_served(fleet: Fleet, role: str) -> list[int]:
    return sorted(length for lengths in served(fleet, role).values() for length in lengths)


def test_a_router_that_cannot_start_is_said_though_every_engine_pod_is_ready(fleet: Fleet) -> None:
    apply(fleet, image="example.com/no-router:1")
    condition = fleet.await_condition("Ready", "False", "EngineCrashing", timeout_s=60)
    assert "The router has 0 of 1 pods ready" in condition["message"]
    assert fleet.status()["pods"] == {"prefill": "2/2", "decode": "1/1"}


def test_requests_through_the_routers_service_are_prefilled_and_decoded_once(fleet: Fleet) -> None:
    apply(fleet)
    condition = fleet.await_condition("Ready", "True", timeout_s=60)
    assert condition["message"] == "All pods are ready: 2 prefill, 1 decode, 1 router."
    lengths = list(range(30, 42))
    for length in lengths:
        assert complete(fleet, length, stream=length % 2 == 0) == " 1 2 3 4 5"
    eventually(lambda: all_served(fleet, "prefill") == lengths and all_served(fleet, "decode") == lengths, 20)


def test_the_operator_takes_the_routers_pods_for_no_engine_pods(fleet: Fleet) -> None:
    (pod,) = pods(fleet, "router")
    assert "prefleet.dev/policy-generation" not in pod["metadata"].get("annotations", {})
    assert {role["name"] for role in fleet.status()["roles"]} == {"prefill", "decode"}
    fleet.await_condition("PolicyActive", "True", timeout_s=30)
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert not any("projected" in volume for volume in pod["spec"]["volumes"])


def test_with_an_account_it_finds_the_pods_itself_and_follows_their_number(fleet: Fleet) -> None:
    for item in RIGHTS:
        fleet.plane.kubectl("-n", fleet.namespace, "apply", "-f", "-", stdin=json.dumps(item))
    (before,) = pods(fleet, "router")
    apply(fleet, serviceAccountName=ACCOUNT, args=["--policy", "round_robin"])
    eventually(lambda: before["metadata"]["name"] not in {p["metadata"]["name"] for p in pods(fleet, "router")}, 60)
    fleet.await_condition("Ready", "True", timeout_s=60)
    assert complete(fleet, 50, stream=True) == " 1 2 3 4 5"
    apply(fleet, prefill=3, serviceAccountName=ACCOUNT, args=["--policy", "round_robin"])
    eventually(lambda: (fleet.status().get("pods") or {}).get("prefill") == "3/3", 60)

    def all_three_prefill() -> bool:
        complete(fleet, 60)
        return all(60 in lengths for lengths in served(fleet, "prefill").values())

    eventually(all_three_prefill, 40)
    lengths = list(range(100, 112))
    for length in lengths:
        complete(fleet, length, stream=length % 2 == 0)
    eventually(lambda: [n for n in all_served(fleet, "prefill") if n >= 100] == lengths, 20)
    assert [n for n in all_served(fleet, "decode") if n >= 100] == lengths
    apply(fleet, prefill=1, serviceAccountName=ACCOUNT, args=["--policy", "round_robin"])
    eventually(lambda: len(pods(fleet, "prefill")) == 1, 30)
    assert {complete(fleet, 70) for _ in range(6)} == {" 1 2 3 4 5"}


def test_a_router_taken_out_of_the_spec_is_pruned(fleet: Fleet) -> None:
    fleet.apply(prefill={"replicas": 1}, decode={"replicas": 1})
    eventually(lambda: not {name for name in fleet.children() if name.endswith("-router")}, 20)
    condition = fleet.await_condition("Ready", "True", timeout_s=30)
    assert "router" not in condition["message"]
