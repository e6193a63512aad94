"""Replicas of several nodes on the real API server, with a CRD of ours and the test in the controller's place: the
operator sees the kind come and go, applies and prunes, and says only what is so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.installation import Fleet, OperatorProcess
from tests.support.leader_worker_set import served
from tests.support.plane.plane import ControlPlane
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]

VLLM: Json = {"engine": {"type": "VLLM", "version": "0.33.0"}}
GROUPS: Json = VLLM | {"mixed": {"replicas": 1, "nodesPerReplica": 2}}
NOTICE_S = 30
"""The operator asks every 10 seconds whether the kind is served."""


def group_set(fleet: Fleet) -> Json:
    return fleet.get("leaderworkerset", "chat-mixed-group") or {}


def make_pod(fleet: Fleet, name: str, template: Json) -> None:
    """What the controller of the LeaderWorkerSet and a kubelet would do: a pod of the template, that is ready."""
    pod = {**template, "apiVersion": "v1", "kind": "Pod"}
    pod["metadata"] = {**template["metadata"], "name": name, "namespace": fleet.namespace}
    fleet.plane.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    patch = json.dumps({"status": status})
    fleet.plane.kubectl(
        "-n", fleet.namespace, "patch", "pod", name, "--subresource=status", "--type=merge", "-p", patch
    )


def told(operator: OperatorProcess, fleet: Fleet) -> int:
    """How many lines of the operator's log are about the fleet, or about the kind."""
    lines = operator.log.read_text().splitlines()
    return sum(fleet.namespace in line or "LeaderWorkerSet" in line for line in lines)


def test_without_the_kind_the_fleet_is_refused_once_and_what_runs_is_left_alone(
    operator: OperatorProcess, fleet: Fleet
) -> None:
    fleet.apply(**VLLM, mixed={"replicas": 1})
    eventually(lambda: fleet.get("deployment", "chat-mixed"), 20)
    fleet.apply(**GROUPS)
    accepted = fleet.await_condition("Accepted", "False", "KindNotServed")
    assert "install LeaderWorkerSet (lws.sigs.k8s.io) or write nodesPerReplica: 1" in accepted["message"]
    before = told(operator, fleet)
    operator.await_turns()
    assert told(operator, fleet) - before <= 2
    assert fleet.get("deployment", "chat-mixed") is not None
    fleet.apply(**VLLM, mixed={"replicas": 1})
    fleet.await_condition("Accepted", "True")


def test_the_kind_may_come_and_go_while_the_operator_runs(
    operator: OperatorProcess, fleet: Fleet, plane: ControlPlane
) -> None:
    fleet.apply(**GROUPS)
    fleet.await_condition("Accepted", "False", "KindNotServed")
    with served(plane):
        fleet.await_condition("Accepted", "True", timeout_s=NOTICE_S)
        (owner,) = group_set(fleet)["metadata"]["ownerReferences"]
        assert owner["kind"] == "PrefillPolicy"
    fleet.await_condition("Accepted", "False", "KindNotServed", timeout_s=NOTICE_S)
    assert operator.leads()


def test_leaders_alone_count_as_pods_of_the_fleet(operator: OperatorProcess, fleet: Fleet, plane: ControlPlane) -> None:
    with served(plane):
        fleet.apply(**GROUPS)
        fleet.await_condition("Ready", "False", "PodsNotReady", timeout_s=NOTICE_S)
        templates = group_set(fleet)["spec"]["leaderWorkerTemplate"]
        make_pod(fleet, "chat-mixed-group-0-1", templates["workerTemplate"])
        operator.await_turns()
        assert fleet.condition("Ready")["status"] == "False"
        make_pod(fleet, "chat-mixed-group-0", templates["leaderTemplate"])
        fleet.await_condition("Ready", "True")
        assert fleet.status()["pods"]["prefill"] == "1/1"
        worker = fleet.get("pod", "chat-mixed-group-0-1") or {}
        assert "prefleet.dev/policy-generation" not in worker["metadata"].get("annotations", {})


def test_from_one_node_to_several_and_back_each_kind_takes_the_others_place(
    operator: OperatorProcess, fleet: Fleet, plane: ControlPlane
) -> None:
    with served(plane):
        fleet.apply(**VLLM, mixed={"replicas": 2})
        eventually(lambda: fleet.get("deployment", "chat-mixed"), 20)
        fleet.apply(**GROUPS)
        eventually(lambda: group_set(fleet) and not fleet.get("deployment", "chat-mixed"), NOTICE_S)
        service = fleet.get("service", "chat-mixed") or {}
        assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
        fleet.apply(**VLLM, mixed={"replicas": 2})
        eventually(lambda: not group_set(fleet) and fleet.get("deployment", "chat-mixed"), 20)
        service = fleet.get("service", "chat-mixed") or {}
        assert "leaderworkerset.sigs.k8s.io/worker-index" not in service["spec"]["selector"]


def test_a_change_by_someone_else_is_corrected(operator: OperatorProcess, fleet: Fleet, plane: ControlPlane) -> None:
    with served(plane):
        fleet.apply(**GROUPS)
        eventually(lambda: group_set(fleet), NOTICE_S)
        patch = json.dumps({"spec": {"leaderWorkerTemplate": {"size": 9}}})
        plane.kubectl(
            "-n", fleet.namespace, "patch", "leaderworkerset", "chat-mixed-group", "--type=merge", "-p", patch
        )
        eventually(lambda: group_set(fleet)["spec"]["leaderWorkerTemplate"]["size"] == 2, 20)
