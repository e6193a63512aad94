"""What is kept of the objects that are watched."""

from __future__ import annotations

import copy

import pytest
from prefleet_operator.adapters.kube import (
    Object,
)
from prefleet_operator.app.gather import Cluster, read_live
from prefleet_operator.app.records import ChildRecord, PodRecord
from prefleet_runtime.contract import RuntimePolicy

from tests.support.reconciling import POD


def test_the_workers_of_a_group_are_no_pods_of_a_role() -> None:
    worker = copy.deepcopy(POD)
    del worker["metadata"]["labels"]["prefleet.dev/role"]
    cluster = Cluster()
    cluster.pods.put(PodRecord.of(worker))
    assert cluster.fleet_pods("ns", "chat") == ()


GROUP: Object = {
    "kind": "LeaderWorkerSet",
    "metadata": {**POD["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z"},
}
ANSWERED = {"conditions": [{"type": "Progressing", "status": "True", "reason": "GroupsAreProgressing"}]}


@pytest.mark.parametrize(
    ("group", "since_s"),
    [
        pytest.param(GROUP, 1767225600.0, id="one without a status waits for its controller"),
        pytest.param(GROUP | {"status": {"replicas": 0}}, 1767225600.0, id="so does one without conditions"),
        pytest.param(GROUP | {"status": ANSWERED}, None, id="one with conditions has been taken up"),
        pytest.param(GROUP | {"kind": "Deployment"}, None, id="a Deployment's controller is always there"),
    ],
)
def test_a_group_set_is_untaken_until_its_controller_answers(group: Object, since_s: float | None) -> None:
    assert ChildRecord.of(group).untaken_since_s == since_s


AVAILABLE = {
    "conditions": [
        {"type": "Progressing", "status": "False", "reason": "GroupsAreProgressing", "message": "Creating resources"},
        {"type": "Available", "status": "True", "reason": "AllGroupsReady"},
    ]
}


@pytest.mark.parametrize(
    ("kind", "stuck"),
    [
        pytest.param("LeaderWorkerSet", None, id="groups that are all available progress no more"),
        pytest.param("Deployment", "Creating resources", id="a Deployment's deadline is over"),
    ],
)
def test_only_a_deployment_says_that_its_rollout_is_stuck(kind: str, stuck: str | None) -> None:
    """A LeaderWorkerSet's two conditions exclude each other: Available turns Progressing False."""
    assert ChildRecord.of(GROUP | {"kind": kind, "status": AVAILABLE}).stuck == stuck


@pytest.mark.parametrize(
    ("annotation", "generation"),
    [
        pytest.param("7", 7, id="a generation of ours"),
        pytest.param("x", None, id="no number"),
        pytest.param("9" * 5000, None, id="a number that no operator wrote"),
    ],
)
def test_what_anybody_writes_into_the_annotation_is_read(annotation: str, generation: int | None) -> None:
    annotated = copy.deepcopy(POD)
    annotated["metadata"]["annotations"] = {"prefleet.dev/policy-generation": annotation}
    assert PodRecord.of(annotated).generation == generation


@pytest.mark.parametrize(
    ("document", "generation"),
    [
        pytest.param(RuntimePolicy(generation=3).to_json(), 3, id="a document"),
        pytest.param(
            RuntimePolicy(generation=2**53).to_json(), None, id="a generation that leaves no room for the next"
        ),
        pytest.param(" " * 1_000_000 + RuntimePolicy(generation=3).to_json(), None, id="a document without end"),
        pytest.param("{", None, id="half a document"),
    ],
)
def test_what_anybody_writes_into_the_config_map_is_read(document: str, generation: int | None) -> None:
    metadata = {"name": "chat-policy", "namespace": "ns", "uid": "u", "resourceVersion": "5"}
    policy = read_live(ChildRecord.of({"metadata": metadata, "data": {"policy.json": document}})).policy
    assert (None if policy is None else policy.generation) == generation
