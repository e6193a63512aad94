"""An operator that is replaced by one that would render pods differently: nothing restarts until it is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import Fleet, Helm, OperatorProcess
from tests.support.leader_worker_set import served
from tests.support.plane.plane import ControlPlane
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]

SPEC: Json = {
    "engine": {"type": "VLLM", "version": "0.33.0"},
    "prefill": {"replicas": 2},
    "decode": {"replicas": 1},
    "router": {"type": "VLLMRouter", "image": "example/router:1"},
}
CHANGED = SPEC | {"prefill": {"replicas": 2, "args": ["--max-model-len", "4096"]}}
OLD, NEW = "example/runtime:old", "example/runtime:new"


def operator(plane: ControlPlane, folder: Path, image: str) -> OperatorProcess:
    return OperatorProcess(plane, folder / image.rpartition(":")[2], {"runtimeImage": image})


def listed(fleet: Fleet, kind: str) -> list[Json]:
    text = fleet.plane.kubectl("-n", fleet.namespace, "get", kind, "-l", "prefleet.dev/fleet=chat", "-o", "json")
    return json.loads(text)["items"]


def uids(fleet: Fleet, kind: str) -> set[str]:
    return {each["metadata"]["uid"] for each in listed(fleet, kind)}


def generations(fleet: Fleet) -> dict[str, int]:
    return {each["metadata"]["name"]: each["metadata"]["generation"] for each in listed(fleet, "deployments")}


def runtime_images(fleet: Fleet, kind: str = "deployments") -> set[str]:
    pods = [each["spec"]["template"]["spec"] for each in listed(fleet, kind)]
    return {pod["initContainers"][0]["image"] for pod in pods if "initContainers" in pod}


def notes(fleet: Fleet, reason: str) -> list[str]:
    text = fleet.plane.kubectl(
        "-n", fleet.namespace, "get", "events.events.k8s.io", "-o", "json", f"--field-selector=reason={reason}"
    )
    return [event["note"] for event in json.loads(text)["items"]]


def grow(fleet: Fleet, pods: int) -> None:
    eventually(lambda: len(listed(fleet, "pods")) == pods, 30)


def waits(fleet: Fleet) -> bool:
    """Whether Accepted speaks of pods that wait for the upgrade; then everything has been applied."""
    return "stay as release" in fleet.condition("Accepted").get("message", "")


def test_an_upgrade_restarts_no_pod_and_a_changed_spec_brings_it_in_one_rollout(
    plane: ControlPlane, helm: Helm, fleet: Fleet, tmp_path: Path
) -> None:
    with operator(plane, tmp_path, OLD).start():
        fleet.apply(**SPEC)
        grow(fleet, 4)
        before, sets, generation = uids(fleet, "pods"), uids(fleet, "replicasets"), generations(fleet)
        assert not waits(fleet)
    with operator(plane, tmp_path, NEW).start() as process:
        eventually(lambda: waits(fleet), 20)
        assert (uids(fleet, "pods"), uids(fleet, "replicasets")) == (before, sets)
        assert generations(fleet) == generation
        assert runtime_images(fleet) == {OLD}
        (note,) = eventually(lambda: notes(fleet, "UpgradeWaits"), 10)
        assert "prefill and decode" in note
        assert "initContainers[prefleet-runtime].image" in note

        fleet.apply(**CHANGED)
        eventually(lambda: runtime_images(fleet) == {NEW}, 20)
        (note,) = eventually(lambda: notes(fleet, "RestartNeeded"), 10)
        assert "2 pods of prefill for spec.containers[engine].args" in note
        assert "1 pod of decode for spec.initContainers[prefleet-runtime].image" in note
        assert "router" not in note
        eventually(lambda: not waits(fleet), 10)
        process.await_turns()
        made = [each for each in listed(fleet, "replicasets") if NEW in json.dumps(each["spec"]["template"])]
        assert len(made) == 2, "one rollout for each role"


def test_the_annotation_asks_for_the_upgrade_and_a_kill_in_the_middle_converges(
    plane: ControlPlane, helm: Helm, fleet: Fleet, tmp_path: Path
) -> None:
    with operator(plane, tmp_path, OLD).start():
        fleet.apply(**SPEC)
        grow(fleet, 4)
    with operator(plane, tmp_path, NEW).start() as process:
        eventually(lambda: waits(fleet), 20)
        fleet.plane.kubectl("-n", fleet.namespace, "annotate", "pp", "chat", "prefleet.dev/upgrade=1")
        eventually(lambda: NEW in runtime_images(fleet), 20)
        process.kill()
    with operator(plane, tmp_path, NEW).start() as process:
        eventually(lambda: runtime_images(fleet) == {NEW}, 20)
        eventually(lambda: not waits(fleet), 20)
        generation = generations(fleet)
        process.await_turns()
        assert generations(fleet) == generation


def test_what_others_change_in_an_older_template_is_put_back_as_it_was(
    plane: ControlPlane, helm: Helm, fleet: Fleet, tmp_path: Path
) -> None:
    with operator(plane, tmp_path, OLD).start():
        fleet.apply(**SPEC)
        grow(fleet, 4)
    with operator(plane, tmp_path, NEW).start():
        eventually(lambda: waits(fleet), 20)
        before = generations(fleet)["chat-prefill"]
        for image in ("example/other:1", NEW):
            container = f"prefleet-runtime={image}"
            fleet.plane.kubectl("-n", fleet.namespace, "set", "image", "deployment/chat-prefill", container)
            eventually(lambda: runtime_images(fleet) == {OLD}, 20)
        assert waits(fleet)
        assert generations(fleet)["chat-prefill"] == before + 4, "each change, and each time put back"


def test_groups_of_several_nodes_stay_as_they_are_too(
    plane: ControlPlane, helm: Helm, fleet: Fleet, tmp_path: Path
) -> None:
    spec = {"engine": SPEC["engine"], "mixed": {"replicas": 1, "nodesPerReplica": 2}}

    def groups() -> Json:
        return fleet.get("leaderworkerset", "chat-mixed-group") or {}

    with served(plane):
        with operator(plane, tmp_path, OLD).start():
            fleet.apply(**spec)
            eventually(groups, 40)
            before = groups()
        with operator(plane, tmp_path, NEW).start():
            eventually(lambda: waits(fleet), 40)
            assert groups()["spec"] == before["spec"]
            assert groups()["metadata"]["generation"] == before["metadata"]["generation"]
            fleet.apply(**spec | {"mixed": {"replicas": 2, "nodesPerReplica": 2}})
            eventually(lambda: groups()["spec"]["replicas"] == 2, 20)
            assert groups()["spec"]["leaderWorkerTemplate"] == before["spec"]["leaderWorkerTemplate"]
