"""The operator on the real API server, as a process under the rights that the chart gives it; pods stay pending."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefleet_operator.app.main import EXIT_LEADERSHIP_LOST

from tests.support import leader_worker_set, scaled_object
from tests.support.installation import (
    OPERATOR_NAMESPACE,
    RELEASE,
    Fleet,
    Helm,
    OperatorProcess,
    only_child,
)
from tests.support.plane.plane import ControlPlane
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]

PREFILL_DECODE: Json = {"prefill": {"replicas": 1}, "decode": {"replicas": 1}}
CHILDREN = {
    "configmap/chat-policy",
    "deployment/chat-prefill",
    "deployment/chat-decode",
    "service/chat-prefill",
    "service/chat-decode",
}


def await_generation(fleet: Fleet, generation: int, timeout_s: float = 20) -> None:
    eventually(lambda: fleet.runtime_policy().get("generation") == generation, timeout_s)


def await_effective(fleet: Fleet, generation: int) -> Json:
    """The status once it says what the ConfigMap of that generation says."""
    eventually(lambda: (fleet.status().get("effective") or {}).get("generation") == generation, 20)
    return fleet.status()


def test_a_policy_becomes_objects_that_it_owns(operator: OperatorProcess, fleet: Fleet) -> None:
    fleet.apply(**PREFILL_DECODE)
    eventually(lambda: fleet.children() == CHILDREN, 20)
    policy, config_map = fleet.get("pp", "chat"), fleet.get("configmap", "chat-policy")
    assert policy is not None
    assert config_map is not None
    (owner,) = config_map["metadata"]["ownerReferences"]
    assert owner["uid"] == policy["metadata"]["uid"]
    assert owner["controller"]
    assert not owner["blockOwnerDeletion"]
    assert not policy["metadata"].get("finalizers")
    assert not policy["metadata"].get("annotations", {}).keys() - {"kubectl.kubernetes.io/last-applied-configuration"}
    fleet.await_condition("Accepted", "True")
    assert await_effective(fleet, 1)["effective"] == {"policy": "FCFS", "generation": 1}


def test_nothing_is_written_while_nothing_changes(operator: OperatorProcess, fleet: Fleet) -> None:
    fleet.apply(**PREFILL_DECODE)
    await_effective(fleet, 1)
    operator.await_turns()
    before = [fleet.get("pp", "chat"), fleet.get("configmap", "chat-policy"), fleet.get("service", "chat-prefill")]
    operator.await_turns()
    after = [fleet.get("pp", "chat"), fleet.get("configmap", "chat-policy"), fleet.get("service", "chat-prefill")]
    assert before == after


def test_a_change_of_scheduling_touches_the_config_map_alone(operator: OperatorProcess, fleet: Fleet) -> None:
    fleet.apply(**PREFILL_DECODE)
    await_generation(fleet, 1)
    eventually(lambda: fleet.children() == CHILDREN, 20)
    before = fleet.get("deployment", "chat-prefill")
    fleet.apply(**PREFILL_DECODE, scheduling={"threshold": 900, "longMaxWait": "4s"})
    await_generation(fleet, 2)
    document = fleet.runtime_policy()
    assert (document["policy"], document["threshold"], document["long_max_wait_ms"]) == (
        "short_request_first",
        900,
        4000,
    )
    status = await_effective(fleet, 2)
    assert [move["reason"] for move in status["history"]] == ["FleetCreated", "SpecChanged"]
    after = fleet.get("deployment", "chat-prefill")
    assert before is not None
    assert after is not None
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_back_to_fcfs_leaves_no_pinned_value_in_the_status(operator: OperatorProcess, fleet: Fleet) -> None:
    fleet.apply(**PREFILL_DECODE, scheduling={"threshold": 900, "longMaxWait": "4s"})
    assert await_effective(fleet, 1)["effective"]["threshold"] == 900
    fleet.apply(**PREFILL_DECODE, scheduling={"policy": "FCFS"})
    assert await_effective(fleet, 2)["effective"] == {"policy": "FCFS", "generation": 2}


def test_pods_carry_the_generation_as_an_annotation(
    operator: OperatorProcess, fleet: Fleet, plane: ControlPlane
) -> None:
    def annotations() -> set[str]:
        template = "-o=jsonpath={.items[*].metadata.annotations.prefleet\\.dev/policy-generation}"
        return set(plane.kubectl("-n", fleet.namespace, "get", "pods", template).split())

    fleet.apply(**PREFILL_DECODE)
    eventually(lambda: annotations() == {"1"}, 20)
    fleet.apply(**PREFILL_DECODE, scheduling={"threshold": 900, "longMaxWait": "4s"})
    eventually(lambda: annotations() == {"2"}, 20)


def test_a_role_grows_and_a_role_taken_out_is_pruned(operator: OperatorProcess, fleet: Fleet) -> None:
    fleet.apply(**PREFILL_DECODE)
    eventually(lambda: fleet.children() == CHILDREN, 20)
    fleet.apply(prefill={"replicas": 3}, decode={"replicas": 1})
    eventually(lambda: fleet.replicas("chat-prefill") == 3, 20)
    fleet.apply(mixed={"replicas": 2})
    mixed = {"configmap/chat-policy", "deployment/chat-mixed", "service/chat-mixed"}
    eventually(lambda: fleet.children() == mixed, 20)
    eventually(lambda: fleet.status()["pods"] == {"prefill": "0/2", "decode": "mixed"}, 20)


def test_what_others_change_or_delete_is_put_right(
    operator: OperatorProcess, fleet: Fleet, plane: ControlPlane
) -> None:
    fleet.apply(**PREFILL_DECODE, scheduling={"threshold": 900, "longMaxWait": "4s"})
    eventually(lambda: fleet.children() == CHILDREN, 20)
    await_effective(fleet, 1)
    plane.kubectl("-n", fleet.namespace, "scale", "deployment/chat-prefill", "--replicas=7")
    plane.kubectl("-n", fleet.namespace, "delete", "service/chat-decode")
    eventually(lambda: fleet.replicas("chat-prefill") == 1 and fleet.children() == CHILDREN, 20)
    document = fleet.runtime_policy() | {"threshold": 7}
    patch = json.dumps({"data": {"policy.json": json.dumps(document)}})
    plane.kubectl("-n", fleet.namespace, "patch", "configmap", "chat-policy", "--type=merge", "-p", patch)
    await_generation(fleet, 2)
    assert fleet.runtime_policy()["threshold"] == 900
    assert await_effective(fleet, 2)["history"][-1]["reason"] == "DriftCorrected"


def test_a_lost_status_is_adopted_from_the_config_map(
    operator: OperatorProcess, fleet: Fleet, plane: ControlPlane
) -> None:
    fleet.apply(**PREFILL_DECODE)
    await_effective(fleet, 1)
    fleet.apply(**PREFILL_DECODE, scheduling={"threshold": 900, "longMaxWait": "4s"})
    await_effective(fleet, 2)
    plane.kubectl(
        "-n", fleet.namespace, "patch", "pp", "chat", "--subresource=status", "--type=merge", "-p", '{"status": null}'
    )
    status = await_effective(fleet, 2)
    assert status["history"][-1]["reason"] == "Adopted"
    assert fleet.runtime_policy()["generation"] == 2


def test_an_object_of_somebody_else_is_left_alone(operator: OperatorProcess, fleet: Fleet, plane: ControlPlane) -> None:
    plane.kubectl("-n", fleet.namespace, "create", "configmap", "chat-policy", "--from-literal=mine=yes")
    fleet.apply(**PREFILL_DECODE)
    refused = fleet.await_condition("Accepted", "False", "ApplyRefused")
    assert "ConfigMap chat-policy exists and is not of this policy" in refused["message"]
    stranger = fleet.get("configmap", "chat-policy")
    assert stranger is not None
    assert stranger["data"] == {"mine": "yes"}
    plane.kubectl("-n", fleet.namespace, "delete", "configmap", "chat-policy")
    fleet.apply(prefill={"replicas": 2}, decode={"replicas": 1})
    fleet.await_condition("Accepted", "True")


def test_an_unknown_metrics_source_is_said_and_the_fleet_still_runs(operator: OperatorProcess, fleet: Fleet) -> None:
    fleet.apply(**PREFILL_DECODE, metricsSource="nowhere")
    condition = fleet.await_condition("MetricsAvailable", "False", "UnknownMetricsSource")
    assert "name one of PodScrape" in condition["message"]
    assert fleet.children() == CHILDREN


DENY_DEPLOYMENTS = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: {name}}}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{{apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [deployments]}}]
    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {name}}}}}
  validations: [{{expression: "false", message: no Deployments here}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: {name}}}
spec: {{policyName: {name}, validationActions: [Deny]}}
"""


@pytest.fixture
def denied_deployments(plane: ControlPlane, namespace: str) -> Iterator[str]:
    """A cluster that refuses Deployments in the test's namespace: yields the manifest that makes it so."""
    manifest = DENY_DEPLOYMENTS.format(name=namespace)
    plane.kubectl("apply", "-f", "-", stdin=manifest)
    dry = ("-n", namespace, "create", "deployment", "probe", "--image=x", "--dry-run=server")

    def refuses() -> bool:
        try:
            plane.kubectl(*dry)
        except RuntimeError as refusal:
            return "no Deployments here" in str(refusal)
        return False

    eventually(refuses, 30)
    yield manifest
    plane.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=manifest)


def test_what_the_api_server_refuses_is_said_and_other_fleets_go_on(
    operator: OperatorProcess,
    fleet: Fleet,
    denied_deployments: str,
    plane: ControlPlane,
) -> None:
    """Killed half-way: the ConfigMap is applied, the Deployments are not, and the next start converges."""
    fleet.apply(**PREFILL_DECODE, scheduling={"threshold": 900, "longMaxWait": "4s"})
    refused = fleet.await_condition("Accepted", "False", "ApplyRefused")
    assert "Deployment chat-prefill" in refused["message"]
    assert "no Deployments here" in refused["message"]
    assert fleet.runtime_policy()["generation"] == 1
    other = Fleet(plane, fleet.namespace.replace("test-", "other-"))
    plane.create_namespace(other.namespace)
    other.apply(**PREFILL_DECODE)
    eventually(lambda: other.children() == CHILDREN, 20)
    other.delete()
    operator.kill()
    plane.kubectl("delete", "-f", "-", stdin=denied_deployments)
    operator.start()
    eventually(lambda: fleet.children() == CHILDREN, 40)
    fleet.await_condition("Accepted", "True")
    assert await_effective(fleet, 1)["history"][0]["reason"] == "FleetCreated"


def test_killed_at_any_moment_the_next_start_converges(operator: OperatorProcess, fleet: Fleet) -> None:
    highest = 0
    for turn, delay_s in enumerate((0.0, 0.02, 0.05, 0.1, 0.15, 0.25, 0.4)):
        threshold = 500 + turn
        scheduling = {"threshold": threshold, "longMaxWait": "4s"}
        fleet.apply(prefill={"replicas": 1 + turn % 2}, decode={"replicas": 1}, scheduling=scheduling)
        time.sleep(delay_s)
        operator.kill()
        operator.start()
        eventually(lambda wanted=threshold: fleet.runtime_policy().get("threshold") == wanted, 20)  # type: ignore[misc]
        generation = fleet.runtime_policy()["generation"]
        assert generation > highest
        highest = generation
        status = await_effective(fleet, generation)
        assert status["effective"]["threshold"] == threshold
    assert fleet.children() == CHILDREN
    generations = [move["generation"] for move in fleet.status()["history"]]
    assert generations == sorted(set(generations))


def test_a_deletion_with_the_operator_down_leaves_nothing_behind(
    operator: OperatorProcess, fleet: Fleet, plane: ControlPlane
) -> None:
    fleet.apply(**PREFILL_DECODE)
    eventually(lambda: fleet.children() == CHILDREN, 20)
    operator.kill()
    fleet.delete()
    everything = ("-n", fleet.namespace, "get", "deploy,rs,pods,svc,cm", "-l", "prefleet.dev/fleet", "-o", "name")
    eventually(lambda: plane.kubectl(*everything).strip() == "", 60)
    operator.start()
    operator.await_turns()
    assert plane.kubectl(*everything).strip() == ""


def test_a_stopped_leader_hands_over_at_once_and_a_frozen_one_writes_no_more(
    operator: OperatorProcess, fleet: Fleet, plane: ControlPlane, tmp_path: Path
) -> None:
    def holder() -> str:
        lease = plane.kubectl("-n", OPERATOR_NAMESPACE, "get", "lease", RELEASE, "-o=jsonpath={.spec.holderIdentity}")
        return lease.strip()

    with OperatorProcess(plane, tmp_path / "second", name="second") as second:
        second.start(wait=False)
        eventually(lambda: second.get("/readyz") == "ok\n", 20)
        assert holder() == "operator"
        assert operator.stop() == 0
        eventually(second.leads, 10)
        assert holder() == "second"
        with OperatorProcess(plane, tmp_path / "third", name="third") as third:
            third.start(wait=False)
            second.pause()
            frozen_at = time.monotonic()
            eventually(third.leads, 25)
            assert time.monotonic() - frozen_at > 7
            assert holder() == "third"
            second.resume()
            assert second.process is not None
            eventually(lambda: second.process is not None and second.process.exit_status is not None, 15)
            assert second.process.exit_status == EXIT_LEADERSHIP_LOST
            fleet.apply(**PREFILL_DECODE)
            eventually(lambda: fleet.children() == CHILDREN, 20)


def test_an_api_server_that_is_away_for_a_while_is_waited_for(
    operator: OperatorProcess, fleet: Fleet, plane: ControlPlane
) -> None:
    """The server hangs for less than a renewal allows, so leadership stays, and the same process goes on."""
    fleet.apply(**PREFILL_DECODE)
    await_effective(fleet, 1)
    server = only_child(plane.processes["kube-apiserver"].pid)
    os.kill(server, signal.SIGSTOP)
    time.sleep(3)
    os.kill(server, signal.SIGCONT)
    fleet.apply(**PREFILL_DECODE, scheduling={"threshold": 900, "longMaxWait": "4s"})
    await_effective(fleet, 2)
    assert operator.leads()
    assert operator.process is not None
    assert operator.process.exit_status is None


def rules(plane: ControlPlane, *roles: str) -> set[tuple[str, str, str]]:
    """What the roles grant, as (group, resource, verb)."""
    granted = set()
    for role in roles:
        for rule in json.loads(plane.kubectl("-n", OPERATOR_NAMESPACE, "get", role, "-o", "json"))["rules"]:
            granted |= {(g, r, v) for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    return granted


def requests(plane: ControlPlane) -> list[Json]:
    """Every request that the operator's service account has made."""
    assert plane.audit_log is not None
    user = f"system:serviceaccount:{OPERATOR_NAMESPACE}:{RELEASE}"
    lines = map(json.loads, plane.audit_log.read_text().splitlines())
    return [line for line in lines if line["user"]["username"] == user and "objectRef" in line]


def forbidden(line: Json) -> bool:
    """Whether the operator had not the right; admission, as in a namespace that is going, is another matter."""
    return bool(line["annotations"].get("authorization.k8s.io/decision") == "forbid")


def used(lines: list[Json]) -> set[tuple[str, str, str]]:
    """(group, resource, verb) of each request; an apply that creates needs the right to create, too."""
    found = set()
    for line in lines:
        reference = line["objectRef"]
        resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        group = reference.get("apiGroup", "")
        found.add((group, resource, line["verb"]))
        if line.get("responseStatus", {}).get("code") == 201:
            found.add((group, resource, "create"))
    return found


def autoscaled(actuator: str, least: int) -> Json:
    return {"autoscaling": {"actuator": actuator, "mixed": {"minReplicas": least, "maxReplicas": 4}}}


def actuators_come_and_go(plane: ControlPlane, fleet: Fleet, folder: Path) -> None:
    """Every actuator sets, or would set, the number of a fleet's pods."""
    mixed: Json = {"mixed": {"replicas": 1}}
    source = {"name": "cluster", "type": "Prometheus", "url": "http://127.0.0.1:1"}
    with scaled_object.served(plane), OperatorProcess(plane, folder, {"metricsSources": [source]}) as process:
        process.start()
        fleet.apply(**mixed, **autoscaled("HPA", 1))
        eventually(lambda: fleet.get("hpa", "chat-mixed"), 20)
        fleet.apply(**mixed, **autoscaled("KEDA", 1), metricsSource="cluster")
        eventually(lambda: fleet.get("scaledobject", "chat-mixed"), 20)
        fleet.apply(**mixed, **autoscaled("Direct", 2))
        eventually(lambda: fleet.replicas("chat-mixed") == 2, 20)


def test_the_rights_suffice_and_none_is_unused(
    operator: OperatorProcess, fleet: Fleet, plane: ControlPlane, tmp_path: Path
) -> None:
    """Everything that the operator ever does, then: what was asked for is what is granted, and nothing was refused."""
    fleet.apply(**PREFILL_DECODE, metricsSource="nowhere")
    fleet.await_condition("MetricsAvailable", "False")
    fleet.apply(**PREFILL_DECODE)
    fleet.await_condition("MetricsAvailable", "Unknown")
    operator.stop()
    operator.start()
    fleet.apply(**PREFILL_DECODE, metricsSource="nowhere")  # the event of before, counted on
    fleet.await_condition("MetricsAvailable", "False")
    fleet.apply(mixed={"replicas": 1})
    eventually(lambda: "deployment/chat-prefill" not in fleet.children(), 20)
    with leader_worker_set.served(plane):
        groups: Json = {"engine": {"type": "VLLM", "version": "0.33.0"}, "mixed": {"replicas": 2, "nodesPerReplica": 2}}
        fleet.apply(**groups)
        eventually(lambda: fleet.get("leaderworkerset", "chat-mixed-group"), 30)
        fleet.apply(**groups, **autoscaled("Direct", 3))
        eventually(lambda: (fleet.get("leaderworkerset", "chat-mixed-group") or {})["spec"]["replicas"] == 3, 20)
        fleet.apply(mixed={"replicas": 1})
        eventually(lambda: not fleet.get("leaderworkerset", "chat-mixed-group"), 20)
    operator.stop()
    actuators_come_and_go(plane, fleet, tmp_path / "other")
    operator.start()
    granted = rules(plane, f"clusterrole/{OPERATOR_NAMESPACE}-{RELEASE}-fleets", f"role/{RELEASE}-leader")

    def unused() -> set[tuple[str, str, str]]:
        return granted - used(requests(plane))

    with contextlib.suppress(AssertionError):
        eventually(lambda: not unused(), 20)
    assert unused() == set()
    lines = requests(plane)
    assert [line["requestURI"] for line in lines if forbidden(line)] == []
    assert used(lines) == granted


def test_with_watch_namespaces_a_role_in_each_is_enough(
    helm: Helm, fleet: Fleet, plane: ControlPlane, tmp_path: Path
) -> None:
    helm.install({"replicas": 0, "watchNamespaces": [fleet.namespace]}, upgrade=True)
    try:
        assert plane.kubectl("get", "clusterrole", "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name") == ""
        before = len(requests(plane))
        with OperatorProcess(plane, tmp_path / "operator", {"namespaces": [fleet.namespace]}) as process:
            process.start()
            fleet.apply(**PREFILL_DECODE)
            eventually(lambda: fleet.children() == CHILDREN, 20)
            fleet.await_condition("Accepted", "True")
        assert [line["requestURI"] for line in requests(plane)[before:] if forbidden(line)] == []
    finally:
        helm.install({"replicas": 0}, upgrade=True)
