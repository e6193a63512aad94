"""Replicas on the real API server, handed over between the spec, the operator, an HPA and KEDA: four stay four.

The HPA is driven by the real controller. Nobody serves external metrics here, so it holds what is within its bounds and
moves what is not; nobody acts on a ScaledObject. Pods stay pending.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prefleet_operator.adapters.kube import HORIZONTAL_POD_AUTOSCALERS, RefusedError, connect
from prefleet_operator.render import FIELD_MANAGER, SCALE_MANAGER

from tests.support import leader_worker_set, scaled_object
from tests.support.installation import Fleet, OperatorProcess
from tests.support.plane.plane import ControlPlane
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]

WORKLOAD, GROUPS = "chat-prefill", "chat-mixed-group"

FOUR: Json = {"prefill": {"replicas": 4}, "decode": {"replicas": 1}}
BOUNDS: Json = {"prefill": {"minReplicas": 2, "maxReplicas": 6}}
SOURCE: Json = {"name": "cluster", "type": "Prometheus", "url": "http://127.0.0.1:1"}
DIRECT: Json = {"autoscaling": BOUNDS}
HPA: Json = {"autoscaling": {**BOUNDS, "actuator": "HPA"}}
HPA_ACTS_S = 45
"""The most that the controller may take; its turn is a second."""


def await_let_go(fleet: Fleet, workload: str = WORKLOAD, kind: str = "deployment") -> None:
    """Until the operator's apply says nothing of the replicas any more."""
    eventually(lambda: FIELD_MANAGER not in fleet.scaled_by(workload, kind), 30)


def scale(fleet: Fleet, count: int, target: str = f"deployment/{WORKLOAD}") -> None:
    fleet.plane.kubectl("-n", fleet.namespace, "scale", target, f"--replicas={count}")


@contextmanager
def counted(fleet: Fleet, folder: Path) -> Iterator[Path]:
    """A file with every count that the prefill Deployment ever has, as a watch tells of it."""
    seen = folder / "counts"
    command = [
        str(fleet.plane.binaries["kubectl"]), "-n", fleet.namespace, "get", "deployment", WORKLOAD,
        "--watch", "-o", 'jsonpath={.spec.replicas}{"\\n"}',
    ]  # fmt: skip
    environment = {**os.environ, "KUBECONFIG": str(fleet.plane.kubeconfig)}
    with seen.open("w") as output, subprocess.Popen(command, stdout=output, env=environment) as watch:
        try:
            eventually(seen.read_text, 20)
            yield seen
        finally:
            watch.terminate()


def counts(seen: Path) -> set[str]:
    return set(seen.read_text().split())


@pytest.fixture(scope="module")
def operator_config() -> Json:
    """It knows a Prometheus that nobody runs."""
    return {"metricsSources": [SOURCE]}


@pytest.fixture
def four(module_operator: OperatorProcess, fleet: Fleet) -> Fleet:
    """A fleet of four prefill pods by its spec."""
    fleet.apply(**FOUR)
    eventually(lambda: fleet.replicas(WORKLOAD) == 4, 20)
    return fleet


def test_four_stay_four_through_every_actuator(four: Fleet, tmp_path: Path) -> None:
    with counted(four, tmp_path) as seen:
        four.apply(**FOUR | DIRECT)
        await_let_go(four)
        assert SCALE_MANAGER in four.scaled_by(WORKLOAD)
        four.apply(**FOUR | HPA)
        eventually(lambda: four.get("hpa", WORKLOAD), 20)
        await_hpa(four)
        assert four.get("hpa", "chat-decode") is None
        four.apply(**FOUR | DIRECT)
        eventually(lambda: four.get("hpa", WORKLOAD) is None, 20)
        four.apply(**FOUR)
        eventually(lambda: FIELD_MANAGER in four.scaled_by(WORKLOAD), 20)
        assert four.replicas(WORKLOAD) == 4
        assert counts(seen) == {"4"}


def await_hpa(fleet: Fleet) -> Json:
    """The HPA once its controller has looked at it: without a metric it holds the count."""

    def looked() -> Json:
        found = fleet.get("hpa", WORKLOAD) or {}
        conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", ())}
        return found if conditions.get("ScalingActive", {}).get("reason") == "FailedGetExternalMetric" else {}

    return eventually(looked, HPA_ACTS_S)


def test_an_hpa_is_owned_and_moves_what_the_operator_then_leaves_alone(four: Fleet) -> None:
    four.apply(**FOUR | HPA)
    await_let_go(four)
    hpa = await_hpa(four)
    assert hpa["metadata"]["ownerReferences"][0]["kind"] == "PrefillPolicy"
    assert hpa["spec"]["behavior"]["scaleDown"]["tolerance"] == "0"
    assert hpa["status"]["currentReplicas"] == 4
    scale(four, 9)
    eventually(lambda: four.replicas(WORKLOAD) == 6, HPA_ACTS_S)
    assert FIELD_MANAGER not in four.scaled_by(WORKLOAD)
    four.apply(**FOUR | DIRECT)
    eventually(lambda: four.get("hpa", WORKLOAD) is None, 20)
    assert four.replicas(WORKLOAD) == 6
    four.apply(prefill={"replicas": 3}, decode={"replicas": 1})
    eventually(lambda: four.replicas(WORKLOAD) == 3, 20)


def test_a_fleet_starts_within_its_bounds_and_keeps_what_is_set_later(
    module_operator: OperatorProcess, fleet: Fleet
) -> None:
    fleet.apply(prefill={"replicas": 1}, decode={"replicas": 1}, **HPA)
    eventually(lambda: fleet.replicas(WORKLOAD) == 2, 20)
    await_let_go(fleet)
    assert fleet.replicas(WORKLOAD) == 2
    scale(fleet, 5)
    fleet.apply(prefill={"replicas": 1, "args": ["--seed=7"]}, decode={"replicas": 1}, **HPA)
    eventually(lambda: "--seed=7" in json.dumps(fleet.get("deployment", WORKLOAD)), 20)
    assert fleet.replicas(WORKLOAD) == 5


DENY: Json = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "no-letting-go"},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["deployments"]}
            ]
        },
        "validations": [{"expression": f"request.options.fieldManager != '{FIELD_MANAGER}'", "message": "not now"}],
    },
}
BINDING: Json = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "no-letting-go"},
    "spec": {"policyName": "no-letting-go", "validationActions": ["Deny"]},
}


@contextmanager
def letting_go_is_refused(fleet: Fleet) -> Iterator[None]:
    """The API server refuses the second of the two writes, in this namespace."""
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": fleet.namespace}}}
    binding = BINDING | {"spec": BINDING["spec"] | {"matchResources": selector}}
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": [DENY, binding]})
    fleet.plane.kubectl("apply", "-f", "-", stdin=objects)
    try:
        yield
    finally:
        fleet.plane.kubectl("delete", "-f", "-", stdin=objects)


def test_an_operator_that_is_killed_between_the_writes_leaves_four(
    four: Fleet, module_operator: OperatorProcess, tmp_path: Path
) -> None:
    probe = ("-n", four.namespace, "label", "deployment", WORKLOAD, "--dry-run=server", "a=b")
    with counted(four, tmp_path) as seen:
        with letting_go_is_refused(four):
            eventually(lambda: _refused(four, *probe, f"--field-manager={FIELD_MANAGER}"), 30)
            four.apply(**FOUR | DIRECT)
            eventually(lambda: SCALE_MANAGER in four.scaled_by(WORKLOAD), 20)
            four.await_condition("Accepted", "False", "ApplyRefused")
            module_operator.kill()
        assert {FIELD_MANAGER, SCALE_MANAGER} <= four.scaled_by(WORKLOAD)
        module_operator.start()
        await_let_go(four)
        four.await_condition("Accepted", "True")
        assert counts(seen) == {"4"}


def _refused(fleet: Fleet, *arguments: str) -> bool:
    try:
        fleet.plane.kubectl(*arguments)
    except RuntimeError as error:
        return "not now" in str(error)
    return False


def test_a_number_that_somebody_elses_hpa_sets_is_not_fought_over(four: Fleet, tmp_path: Path) -> None:
    """Its minReplicas move the count, whatever is measured; without the operator's yielding 4 and 5 take turns."""
    mine = ("autoscale", "deployment", "chat-prefill", "--name=mine", "--min=5", "--max=6", "--cpu=50%")
    four.plane.kubectl("-n", four.namespace, *mine)
    eventually(lambda: "HorizontalPodAutoscaler mine sets" in four.condition("Accepted")["message"], 20)
    eventually(lambda: four.replicas(WORKLOAD) == 5, HPA_ACTS_S)
    assert FIELD_MANAGER not in four.scaled_by(WORKLOAD)
    with counted(four, tmp_path) as seen:
        four.apply(**FOUR | DIRECT)
        said = four.await_condition("ScalingActive", "False", "ScaledByAnother")
        assert "HorizontalPodAutoscaler mine sets their number; delete it" in said["message"]
        four.apply(**FOUR | HPA)
        eventually(lambda: four.status()["autoscaling"]["actuator"] == "HPA", 20)
        assert four.get("hpa", "chat-prefill") is None
        four.plane.kubectl("-n", four.namespace, "delete", "hpa", "mine")
        four.await_condition("ScalingActive", "Unknown", "MetricsMissing")
        eventually(lambda: four.get("hpa", "chat-prefill"), 20)
        assert counts(seen) == {"5"}
    four.apply(**FOUR)
    eventually(lambda: four.replicas(WORKLOAD) == 4, 20)


def test_groups_are_handed_over_like_pods(module_operator: OperatorProcess, fleet: Fleet, plane: ControlPlane) -> None:
    groups: Json = {"engine": {"type": "VLLM", "version": "0.33.0"}, "mixed": {"replicas": 3, "nodesPerReplica": 2}}
    with leader_worker_set.served(plane):
        fleet.apply(**groups)
        eventually(lambda: fleet.replicas(GROUPS, "leaderworkerset") == 3, 30)
        fleet.apply(**groups, autoscaling={"mixed": {"maxReplicas": 4}})
        await_let_go(fleet, GROUPS, "leaderworkerset")
        assert fleet.replicas(GROUPS, "leaderworkerset") == 3
        scale(fleet, 4, f"leaderworkerset/{GROUPS}")
        fleet.apply(**groups)
        eventually(lambda: fleet.replicas(GROUPS, "leaderworkerset") == 3, 20)


def test_keda_needs_its_kind_and_a_prometheus(
    plane: ControlPlane, module_operator: OperatorProcess, fleet: Fleet, tmp_path: Path
) -> None:
    keda: Json = {"autoscaling": {**BOUNDS, "actuator": "KEDA"}, "metricsSource": "cluster"}
    assert "give its address with --metrics-url" in fleet.diff(json.dumps(fleet.document(**FOUR | keda)))[2]
    fleet.apply(**FOUR | keda)
    said = fleet.await_condition("Accepted", "False", "KindNotServed")
    assert "install KEDA (keda.sh) or write autoscaling.actuator: HPA or Direct" in said["message"]
    assert fleet.get("deployment", WORKLOAD) is None
    with scaled_object.served(plane):
        eventually(lambda: fleet.get("scaledobject", WORKLOAD), 30)
        fleet.await_condition("Accepted", "True")
        with counted(fleet, tmp_path) as seen:
            fleet.apply(**FOUR | HPA)
            eventually(lambda: fleet.get("hpa", WORKLOAD), 20)
            assert fleet.get("scaledobject", WORKLOAD) is None
            fleet.apply(**FOUR | keda)
            eventually(lambda: fleet.get("scaledobject", WORKLOAD), 20)
            assert fleet.get("hpa", WORKLOAD) is None
            assert counts(seen) == {"4"}
        fleet.await_condition("Accepted", "True")
        # The address is the one that KEDA is told now.
        assert fleet.diff(json.dumps(fleet.document(**FOUR | keda)))[:2] == (
            0,
            f"PrefillPolicy {fleet.namespace}/chat: nothing changes.\n",
        )
        fleet.apply(**FOUR | keda | {"metricsSource": "other"})
        said = fleet.await_condition("Accepted", "False", "InvalidSpec")
        assert "name one of cluster, or write autoscaling.actuator HPA or Direct" in said["message"]
        fleet.apply(**FOUR)
        eventually(lambda: fleet.get("scaledobject", WORKLOAD) is None, 20)


def test_a_diff_shows_the_actuator_and_no_fall_to_one(four: Fleet) -> None:
    code, output, errors = four.diff(json.dumps(four.document(**FOUR | HPA)))
    assert (code, errors) == (1, "")
    lines = [line.split() for line in output.splitlines()[2:]]
    assert lines == [[f"HorizontalPodAutoscaler/{WORKLOAD}", "create"]]


async def test_a_field_of_a_newer_release_is_refused_for_good(
    plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the tolerance of an HPA is by an API server that does not know it: nothing to be tried again."""
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    kube = await connect(FIELD_MANAGER)
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    rules: Json = {"scaleUp": {"stabilizationWindowSeconds": 0, "patience": "0"}}
    hpa: Json = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "chat", "namespace": namespace},
        "spec": {"scaleTargetRef": target, "maxReplicas": 2, "behavior": rules},
    }
    try:
        with pytest.raises(RefusedError, match="patience: field not declared in schema"):
            await kube.apply(HORIZONTAL_POD_AUTOSCALERS, hpa)
    finally:
        await kube.close()


def test_a_deletion_leaves_nothing(four: Fleet) -> None:
    four.apply(**FOUR | HPA)
    eventually(lambda: four.get("hpa", WORKLOAD), 20)
    four.delete()
    eventually(lambda: four.get("hpa", WORKLOAD) is None and not four.children(), 30)
