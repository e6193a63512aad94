"""Pods that somebody else makes, on the real API server: a Deployment of the test's, whose pods the node agent runs.

The first tests are steps of one story over one fleet, in their order in this file; the operator is a process under the
rights that the chart gives it. Nobody annotates these pods, so a change takes a kubelet's time, which the agent keeps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.test_operator import forbidden, requests
from tests.support.installation import RELEASE, Fleet, Helm, OperatorProcess
from tests.support.node_agent.launch import start_agent
from tests.support.plane.plane import ControlPlane
from tests.support.plane.processes import direct_opener
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
NAMESPACE = "attached"
PORT = 9555
MODEL: Json = {"servedName": "chat"}
MIXED: Json = {"podSelector": {"matchLabels": {"app": "theirs"}}, "metricsPort": PORT}
ATTACH: Json = {"mixed": MIXED, "policyConfigMap": "their-queue"}
PINNED: Json = {"threshold": 900, "longMaxWait": "4s"}

DEPLOYMENT = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: theirs}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: theirs}}}}
  template:
    metadata: {{labels: {{app: theirs}}}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
        - name: server
          image: theirs:1
          command: [python3, -m, prefleet_runtime.sim.server]
          args: [--host, 0.0.0.0, --port, "8000", --role, mixed, --served-model-name, chat,
                 --policy-file, /queue/policy.json, --exporter-port, "{PORT}"]
          readinessProbe: {{httpGet: {{path: /health, port: 8000}}, periodSeconds: 1}}
          volumeMounts: [{{name: queue, mountPath: /queue}}]
      volumes: [{{name: queue, configMap: {{name: their-queue}}}}]
"""


@pytest.fixture(scope="module", autouse=True)
def agent(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    handle = start_agent(plane, tmp_path_factory.mktemp("agent"), name="attach", default_image=Path(sys.prefix))
    yield
    handle.leave()


@pytest.fixture(scope="module", autouse=True)
def earlier(plane: ControlPlane) -> int:
    """How many requests other modules' operators have made, some of them after their rights were gone."""
    return len(requests(plane))


@pytest.fixture(scope="module")
def fleet(plane: ControlPlane, module_operator: OperatorProcess) -> Iterator[Fleet]:
    plane.create_namespace(NAMESPACE)
    plane.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=DEPLOYMENT)
    yield Fleet(plane, NAMESPACE)
    plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def theirs(fleet: Fleet) -> list[Json]:
    """The Deployment, and the pods that it runs."""
    found = fleet.plane.kubectl(
        "-n", fleet.namespace, "get", "deployments,pods", "-l", "app=theirs", "-o", "json", "--show-managed-fields"
    )
    deployment = fleet.plane.kubectl(
        "-n", fleet.namespace, "get", "deployment", "theirs", "-o", "json", "--show-managed-fields"
    )
    return [json.loads(deployment), *json.loads(found)["items"]]


def untouched(objects: list[Json]) -> list[Json]:
    """What only whoever makes the pods may change, and who has written to them at all."""
    return [
        {
            "uid": each["metadata"]["uid"],
            "generation": each["metadata"].get("generation"),
            "labels": each["metadata"].get("labels"),
            "annotations": each["metadata"].get("annotations"),
            "spec": each["spec"],
            "managers": sorted({entry["manager"] for entry in each["metadata"]["managedFields"]}),
        }
        for each in objects
    ]


def standing(fleet: Fleet) -> Json:
    """The status but for what traffic says: a source that was only just asked has seen none yet."""
    status = fleet.status()
    of_traffic = ("MetricsAvailable", "Tuned", "CapacityLimited", "Degraded")
    told = [each for each in status["conditions"] if each["type"] not in of_traffic]
    return {"conditions": told} | {key: status[key] for key in ("effective", "roles", "pods", "history")}


def reported(fleet: Fleet) -> set[str]:
    """The generations that the pods themselves serve."""
    addresses = [each["status"]["podIP"] for each in theirs(fleet) if each["kind"] == "Pod"]
    pages = [direct_opener().open(f"http://{at}:{PORT}/metrics", timeout=5).read().decode() for at in addresses]
    lines = [line for page in pages for line in page.splitlines() if line.startswith("prefleet_policy_generation ")]
    assert len(lines) == len(addresses)
    return {line.split()[1] for line in lines}


def kept_events(fleet: Fleet, name: str) -> list[str]:
    """What Events say of a ConfigMap."""
    selector = f"involvedObject.kind=ConfigMap,involvedObject.name={name},reason=ConfigMapKept"
    found = fleet.plane.kubectl("-n", fleet.namespace, "get", "events", "--field-selector", selector, "-o", "json")
    return [event["message"] for event in json.loads(found)["items"]]


def test_pods_start_once_the_policy_has_written_what_they_mount(fleet: Fleet) -> None:
    fleet.apply(model=MODEL, attach=ATTACH)
    fleet.await_condition("Ready", "True", "PodsReady", timeout_s=90)
    assert fleet.condition("Ready")["message"] in (
        "Ready pods of those found: 1 of 2 mixed.",
        "Ready pods of those found: 2 of 2 mixed.",
    )
    eventually(lambda: (fleet.status().get("pods") or {}).get("prefill") == "2/2", 60)
    fleet.await_condition("PolicyActive", "True", "GenerationReported", timeout_s=30)
    fleet.await_condition("MetricsAvailable", "True", timeout_s=20)
    assert fleet.children() == {"configmap/their-queue"}
    config_map = fleet.get("configmap", "their-queue")
    assert config_map is not None
    assert "ownerReferences" not in config_map["metadata"]
    assert "kept when that is deleted" in config_map["metadata"]["annotations"]["prefleet.dev/kept"]


def test_a_change_arrives_within_a_kubelets_time_and_the_pods_stay_as_they_are(fleet: Fleet) -> None:
    before = untouched(theirs(fleet))
    assert len(before) == 3
    fleet.apply(model=MODEL, attach=ATTACH, scheduling=PINNED)
    begun = time.monotonic()
    propagating = fleet.await_condition("PolicyActive", "Unknown", "Propagating", timeout_s=20)
    assert "within 90 seconds" in propagating["message"]

    def active() -> bool:
        status = fleet.status()
        effective = (status.get("effective") or {}).get("generation")
        return effective == 2 and fleet.condition("PolicyActive")["status"] == "True"

    eventually(active, 120, poll_s=1)
    print(f"both pods report the new generation {time.monotonic() - begun:.0f} s after the change")
    assert reported(fleet) == {"2.0"}
    assert fleet.status()["effective"]["threshold"] == 900
    after = untouched(theirs(fleet))
    assert after == before
    assert not [each for each in after if "prefleet" in each["managers"]]


def test_a_restart_of_the_operator_changes_nothing(fleet: Fleet, module_operator: OperatorProcess) -> None:
    before = [standing(fleet), fleet.get("configmap", "their-queue")]
    module_operator.kill()
    module_operator.start()
    module_operator.await_turns()
    assert [standing(fleet), fleet.get("configmap", "their-queue")] == before


def test_of_two_policies_with_one_pod_the_newer_is_refused_and_nothing_flaps(
    fleet: Fleet, module_operator: OperatorProcess
) -> None:
    before = standing(fleet)
    second = Fleet(fleet.plane, fleet.namespace, "another")
    second.apply(model=MODEL, attach={"mixed": MIXED})
    refused = second.await_condition("Accepted", "False", "PodsOverlap")
    assert "is matched by spec.attach of the older policy chat too" in refused["message"]
    assert refused["message"].startswith("Pod theirs-")
    document = second.get("pp", "another")
    module_operator.kill()
    module_operator.start()
    module_operator.await_turns()
    assert second.get("pp", "another") == document
    assert standing(fleet) == before
    assert second.children() == set()
    second.apply(model=MODEL, attach={"mixed": MIXED | {"podSelector": {"matchLabels": {"app": "nobodys"}}}})
    second.await_condition("Accepted", "True")
    nothing = second.await_condition("Ready", "False", "NoPodsFound")
    assert "spec.attach.mixed.podSelector (app=nobodys)" in nothing["message"]
    second.delete()
    eventually(lambda: kept_events(second, "another-policy"), 20)


def test_pods_of_the_operators_making_are_not_attached(fleet: Fleet) -> None:
    made, wide = Fleet(fleet.plane, fleet.namespace, "made"), Fleet(fleet.plane, fleet.namespace, "wide")
    made.apply(mixed={"replicas": 1})
    eventually(lambda: fleet.plane.kubectl("-n", NAMESPACE, "get", "pods", "-l", "prefleet.dev/fleet=made").strip(), 20)
    wide.apply(model=MODEL, attach={"mixed": {"podSelector": {"matchLabels": {"prefleet.dev/role": "mixed"}}}})
    refused = wide.await_condition("Accepted", "False", "PodsOverlap")
    assert refused["message"].startswith("Pod made-mixed-")
    assert "the operator made it for policy made" in refused["message"]
    made.await_condition("Accepted", "True")
    wide.delete()
    made.delete()


def test_a_config_map_of_somebody_elses_is_left_alone(fleet: Fleet) -> None:
    stranger = Fleet(fleet.plane, fleet.namespace, "stranger")
    fleet.plane.kubectl("-n", fleet.namespace, "create", "configmap", "settings", "--from-literal=mine=yes")
    attach = {"mixed": {"podSelector": {"matchLabels": {"app": "nobodys"}}}, "policyConfigMap": "settings"}
    stranger.apply(model=MODEL, attach=attach)
    refused = stranger.await_condition("Accepted", "False", "ApplyRefused")
    assert refused["message"] == (
        "The ConfigMap settings exists and is not of this policy: "
        "delete it or name another in spec.attach.policyConfigMap."
    )
    stranger.apply(model=MODEL, attach=attach | {"policyConfigMap": "their-queue"})
    refused = eventually(
        lambda: found if "their-queue" in (found := stranger.condition("Accepted"))["message"] else {}, 40
    )
    assert "is of the policy chat" in refused["message"]
    settings, queue = fleet.get("configmap", "settings"), fleet.get("configmap", "their-queue")
    assert settings is not None
    assert queue is not None
    assert settings["data"] == {"mine": "yes"}
    assert queue["metadata"]["labels"]["prefleet.dev/fleet"] == "chat"
    stranger.delete()


def test_a_deletion_leaves_the_config_map_and_says_so_and_a_policy_of_that_name_takes_it_up(fleet: Fleet) -> None:
    before = untouched(theirs(fleet))
    fleet.delete()
    (message,) = eventually(lambda: kept_events(fleet, "their-queue"), 20)
    assert message.startswith("PrefillPolicy chat was deleted: this ConfigMap stays as it is, with generation 2")
    time.sleep(2)
    kept = fleet.get("configmap", "their-queue")
    assert kept is not None
    fleet.apply(model=MODEL, attach=ATTACH, scheduling=PINNED)
    fleet.await_condition("PolicyActive", "True", timeout_s=30)
    status = fleet.status()
    assert status["effective"]["generation"] == 2
    assert [move["reason"] for move in status["history"]] == ["Adopted"]
    again = fleet.get("configmap", "their-queue")
    assert again is not None
    assert again["data"] == kept["data"]
    assert untouched(theirs(fleet)) == before


def test_from_the_operators_pods_to_those_of_others_and_back(fleet: Fleet) -> None:
    """On the real server: the owner goes from the ConfigMap, which then outlives the policy whatever it becomes."""

    def owners() -> list[Json] | None:
        found = switched.get("configmap", "switched-policy")
        return None if found is None else found["metadata"].get("ownerReferences", [])

    switched = Fleet(fleet.plane, fleet.namespace, "switched")
    mine = {"configmap/switched-policy", "deployment/switched-mixed", "service/switched-mixed"}
    switched.apply(mixed={"replicas": 0})
    eventually(lambda: switched.children() == mine, 20)
    assert owners()
    attach = {"mixed": {"podSelector": {"matchLabels": {"app": "nobodys"}}}}
    switched.apply(model=MODEL, attach=attach)
    eventually(lambda: switched.children() == {"configmap/switched-policy"}, 20)
    eventually(lambda: owners() == [], 20)
    switched.apply(mixed={"replicas": 0})
    eventually(lambda: switched.children() == mine, 20)
    assert owners() == []
    switched.delete()
    eventually(lambda: switched.children() == {"configmap/switched-policy"}, 60)
    eventually(lambda: kept_events(switched, "switched-policy"), 20)


def test_no_right_was_missing(plane: ControlPlane, fleet: Fleet, earlier: int) -> None:
    own = requests(plane)[earlier:]
    assert own
    assert [line["requestURI"] for line in own if forbidden(line)] == []


def test_a_role_in_the_namespace_is_enough(
    helm: Helm, module_operator: OperatorProcess, plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    module_operator.stop()
    helm.install({"replicas": 0, "watchNamespaces": [namespace]}, upgrade=True)
    before = len(requests(plane))
    fleet = Fleet(plane, namespace)
    with OperatorProcess(plane, tmp_path / "operator", {"namespaces": [namespace]}) as process:
        process.start()
        fleet.apply(model=MODEL, attach={"mixed": MIXED})
        fleet.await_condition("Ready", "False", "NoPodsFound")
        assert fleet.children() == {"configmap/chat-policy"}
    assert plane.kubectl("get", "clusterrole", "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name") == ""
    assert [line["requestURI"] for line in requests(plane)[before:] if forbidden(line)] == []


THEIRS = sorted((ROOT / "docs" / "samples" / "pods").glob("*-deployment.yaml"))


@pytest.mark.parametrize("path", THEIRS, ids=lambda path: path.stem)
def test_the_api_server_takes_the_deployments_of_the_documentation(
    plane: ControlPlane, namespace: str, path: Path
) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    answer = plane.kubectl(
        "-n", namespace, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", str(path)
    )
    assert answer.count("serverside-applied") == len(documents)
