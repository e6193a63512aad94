"""From `helm install` to `helm uninstall` with the operator as a pod, and fleets whose pods serve.

The tests are steps of one story over one fleet, in their order in this file; the node agent runs the pods.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefleet_runtime.contract import DECODE_POLICY_FILE, POLICY_FILE

from tests.support.installation import CHART, OPERATOR_NAMESPACE, RELEASE, Fleet, Helm
from tests.support.node_agent.launch import start_agent
from tests.support.plane.plane import ControlPlane, KubectlFailed
from tests.support.plane.processes import direct_opener
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]

NOBODY = {"name": "nobody", "type": "Prometheus", "url": "http://127.0.0.1:9"}
VALUES: Json = {"loopInterval": "1s", "metricsSources": [NOBODY]}
NEW_FIELD = "someday"


@pytest.fixture(scope="module", autouse=True)
def agent(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("agent")
    handle = start_agent(plane, folder, name="lifecycle", default_image=Path(sys.prefix))
    yield
    handle.leave()


@pytest.fixture(scope="module")
def helm(plane: ControlPlane, binaries: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helm]:
    """Helm with the release installed; the last test uninstalls it."""
    program = Helm(binaries["helm"], tmp_path_factory.mktemp("helm"), plane.kubeconfig)
    program.install(VALUES)
    plane.restart_controller_manager()
    yield program
    if RELEASE in program("list", "--namespace", OPERATOR_NAMESPACE, "--short"):
        program.uninstall()


@pytest.fixture(scope="module")
def fleet(plane: ControlPlane, helm: Helm) -> Iterator[Fleet]:
    plane.create_namespace("lifecycle")
    yield Fleet(plane, "lifecycle")
    plane.kubectl("delete", "namespace", "lifecycle", "--wait=false")


def pods(fleet: Fleet, namespace: str | None = None, selector: str = "prefleet.dev/fleet") -> list[Json]:
    found = fleet.plane.kubectl("-n", namespace or fleet.namespace, "get", "pods", "-l", selector, "-o", "json")
    items = json.loads(found)["items"]
    return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]


def uids(fleet: Fleet) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods(fleet)}


def all_serve(fleet: Fleet) -> bool:
    """Whether every pod of the fleet answers for itself."""
    addresses = [pod["status"].get("podIP") for pod in pods(fleet)]
    opener = direct_opener()
    return bool(addresses) and all(
        opener.open(f"http://{address}:8000/health", timeout=5).status == 200 for address in addresses
    )


def await_active(fleet: Fleet, generation: int, timeout_s: float) -> float:
    """Wait until every pod reports the generation; seconds that it took."""
    begun = time.monotonic()

    def active() -> bool:
        status = fleet.status()
        effective = (status.get("effective") or {}).get("generation")
        return effective == generation and fleet.condition("PolicyActive").get("status") == "True"

    eventually(active, timeout_s)
    return time.monotonic() - begun


def test_an_applied_policy_becomes_a_fleet_that_serves(fleet: Fleet) -> None:
    fleet.apply(prefill={"replicas": 2}, decode={"replicas": 1})
    fleet.await_condition("Ready", "True", timeout_s=60)
    await_active(fleet, 1, timeout_s=30)
    assert all_serve(fleet)
    fleet.await_condition("MetricsAvailable", "True", timeout_s=20)
    assert fleet.condition("Tuned")["reason"] == "LearningLengths"
    columns = fleet.plane.kubectl("-n", fleet.namespace, "get", "pp", "chat", "--no-headers").split()
    assert columns[:5] == ["chat", "FCFS", "2/2", "1/1", "True"]


def test_a_changed_setting_is_reported_by_every_pod_within_five_seconds(fleet: Fleet) -> None:
    before = uids(fleet)
    scheduling = {"threshold": 900, "longMaxWait": "4s"}
    fleet.apply(prefill={"replicas": 2}, decode={"replicas": 1}, scheduling=scheduling)
    assert await_active(fleet, 2, timeout_s=20) < 5
    assert fleet.condition("Tuned")["reason"] == "Pinned"
    assert uids(fleet) == before


def test_a_metrics_source_that_is_down_is_said_and_moves_nothing(fleet: Fleet) -> None:
    spec: Json = {
        "prefill": {"replicas": 2},
        "decode": {"replicas": 1},
        "scheduling": {"threshold": 900, "longMaxWait": "4s"},
    }
    fleet.apply(**spec, metricsSource="nobody")
    condition = eventually(
        lambda: found if (found := fleet.condition("MetricsAvailable"))["reason"] == "MetricsMissing" else {}, 20
    )
    assert condition["status"] in ("Unknown", "False")
    assert "nobody" in condition["message"]
    assert fleet.condition("PolicyActive")["status"] != "False"
    assert fleet.condition("Ready")["status"] == "True"
    assert fleet.runtime_policy()["generation"] == 2
    fleet.apply(**spec, metricsSource="PodScrape")
    fleet.await_condition("MetricsAvailable", "True", timeout_s=20)


def test_a_role_grows_and_its_new_pods_run_the_policy_too(fleet: Fleet) -> None:
    before = uids(fleet)
    scheduling = {"threshold": 900, "longMaxWait": "4s"}
    fleet.apply(prefill={"replicas": 3}, decode={"replicas": 1}, scheduling=scheduling)
    eventually(lambda: (fleet.status().get("pods") or {}).get("prefill") == "3/3", 60)
    await_active(fleet, 2, timeout_s=30)
    assert before < uids(fleet)
    assert fleet.runtime_policy()["generation"] == 2


@pytest.mark.parametrize(("policy", "generation"), [("HRRN", 3), ("PromoteShortest", 4)])
def test_a_policy_without_a_threshold_reaches_every_pod_and_restarts_none(
    fleet: Fleet, policy: str, generation: int
) -> None:
    before = uids(fleet)
    scheduling = {"policy": policy, "threshold": 900, "longMaxWait": "4s", "trustClientPriority": True}
    fleet.apply(prefill={"replicas": 3}, decode={"replicas": 1}, scheduling=scheduling)
    await_active(fleet, generation, timeout_s=20)
    assert fleet.status()["effective"] == {"policy": policy, "generation": generation}
    assert fleet.condition("Tuned")["reason"] == "NothingToTune"
    columns = fleet.plane.kubectl("-n", fleet.namespace, "get", "pp", "chat", "--no-headers").split()
    assert columns[:5] == ["chat", policy, "3/3", "1/1", "True"]
    assert uids(fleet) == before


def accepts_new_field(fleet: Fleet) -> bool:
    document = fleet.document(prefill={"replicas": 3}, decode={"replicas": 1})
    document["spec"][NEW_FIELD] = "yes"
    try:
        fleet.plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(document))
    except KubectlFailed as refusal:
        if NEW_FIELD not in str(refusal):
            raise
        return False
    return True


def test_an_upgrade_brings_a_field_to_the_crd_and_restarts_no_fleet(helm: Helm, fleet: Fleet, tmp_path: Path) -> None:
    assert not accepts_new_field(fleet)
    before, operator = uids(fleet), f"app.kubernetes.io/instance={RELEASE}"
    (old,) = pods(fleet, OPERATOR_NAMESPACE, operator)
    chart = Path(shutil.copytree(CHART, tmp_path / "prefleet"))
    template = chart / "templates" / "crd.yaml"
    crd = yaml.safe_load(template.read_text())
    for version in crd["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][NEW_FIELD] = {"type": "string"}
    template.write_text(yaml.safe_dump(crd))
    helm.install(VALUES | {"loopInterval": "2s"}, chart=chart, upgrade=True)
    eventually(lambda: accepts_new_field(fleet), 20)
    eventually(lambda: [p["metadata"]["name"] for p in pods(fleet, OPERATOR_NAMESPACE, operator)], 20)
    eventually(lambda: old["metadata"]["uid"] not in {
        p["metadata"]["uid"] for p in pods(fleet, OPERATOR_NAMESPACE, operator)
    }, 30)  # fmt: skip
    fleet.apply(prefill={"replicas": 3}, decode={"replicas": 1}, scheduling={"threshold": 800, "longMaxWait": "4s"})
    await_active(fleet, 5, timeout_s=40)
    assert uids(fleet) == before


def test_uninstalling_leaves_the_fleet_serving(helm: Helm, fleet: Fleet) -> None:
    before = uids(fleet)
    helm.uninstall()
    eventually(lambda: not pods(fleet, OPERATOR_NAMESPACE, f"app.kubernetes.io/instance={RELEASE}"), 40)
    assert uids(fleet) == before
    assert all_serve(fleet)
    assert "chat" in fleet.plane.kubectl("-n", fleet.namespace, "get", "pp", "-o", "name")


def test_without_the_annotation_a_policy_reaches_every_pod_within_a_hundred_seconds(fleet: Fleet) -> None:
    """The operator is gone, so nobody annotates: the pods' own node agent refreshes the file, as a kubelet does."""
    policy = fleet.runtime_policy() | {"generation": 4}
    begun = time.monotonic()
    data = {"data": {name: json.dumps(policy) for name in (POLICY_FILE, DECODE_POLICY_FILE)}}
    fleet.plane.kubectl("-n", fleet.namespace, "patch", "configmap", "chat-policy", "--patch", json.dumps(data))
    opener = direct_opener()

    def all_report() -> bool:
        addresses = [pod["status"]["podIP"] for pod in pods(fleet)]
        pages = [opener.open(f"http://{address}:9400/metrics", timeout=5).read() for address in addresses]
        return all(b"prefleet_policy_generation 4.0" in page for page in pages)

    eventually(all_report, 120, poll_s=1)
    took_s = time.monotonic() - begun
    print(f"every pod reports the generation {took_s:.0f} s after the edit, without the annotation")
    assert took_s < 100


def test_a_deletion_without_an_operator_takes_everything_along(helm: Helm, fleet: Fleet) -> None:
    fleet.delete()
    everything = ("get", "deploy,rs,pods,svc,cm", "-l", "prefleet.dev/fleet", "-o", "name")
    eventually(lambda: fleet.plane.kubectl("-n", fleet.namespace, *everything).strip() == "", 60)
