"""Reconciling fleets of groups, and fleets that go from one kind of engine or of workload to another."""

from __future__ import annotations

from typing import Any

import pytest
from prefleet_operator.adapters.kube import (
    Object,
)
from prefleet_operator.app.gather import gather_pods
from prefleet_operator.app.records import PodRecord
from prefleet_operator.app.workqueue import WorkFailedError

from tests.support.reconciling import POD, World


@pytest.fixture
def world() -> World:
    built = World()
    built.api.add_policy()
    built.watch()
    return built


MULTI_NODE: dict[str, Any] = {
    "engine": {"type": "VLLM", "version": "0.33.0"},
    "prefill": {"replicas": 1, "nodesPerReplica": 2},
}
KIND_MISSING = ["patch prefillpolicies chat status", "event KindNotServed"]


async def test_a_kind_that_the_cluster_lacks_is_said_once_and_nothing_is_applied(world: World) -> None:
    world.cluster.set_served("LeaderWorkerSet", False)
    world.api.add_policy(**MULTI_NODE)
    world.watch()
    for expected in (KIND_MISSING, []):
        with pytest.raises(WorkFailedError):
            assert await world.turn() == expected
    assert world.api.writes == KIND_MISSING
    (accepted,) = world.api.objects[("prefillpolicies", "chat")]["status"]["conditions"]
    assert (accepted["status"], accepted["reason"]) == ("False", "KindNotServed")
    assert "install LeaderWorkerSet (lws.sigs.k8s.io) or write nodesPerReplica: 1" in accepted["message"]


async def test_once_the_kind_is_served_the_fleet_is_made(world: World) -> None:
    world.cluster.set_served("LeaderWorkerSet", False)
    world.api.add_policy(**MULTI_NODE)
    world.watch()
    with pytest.raises(WorkFailedError):
        await world.turn()
    world.cluster.set_served("LeaderWorkerSet", True)
    assert "apply LeaderWorkerSet chat-prefill-group" in await world.turn()
    assert world.status()["Accepted"] == ("True", "Accepted")


async def test_a_field_that_cannot_change_is_told_with_what_to_do(world: World) -> None:
    """Releases of LeaderWorkerSet differ in whether the size of a group may change."""
    world.api.add_policy(**MULTI_NODE)
    world.rewatch()
    await world.turn()
    world.api.refuses = "LeaderWorkerSet"
    world.api.refusal = "admission webhook denied the request: spec.leaderWorkerTemplate.size: field is immutable"
    status = world.api.objects[("prefillpolicies", "chat")]["status"]
    prefill = {"replicas": 1, "nodesPerReplica": 4}
    world.api.add_policy(**MULTI_NODE | {"prefill": prefill})["status"] = status
    world.rewatch()
    with pytest.raises(WorkFailedError):
        await world.turn()
    conditions = world.api.objects[("prefillpolicies", "chat")]["status"]["conditions"]
    (accepted,) = (each for each in conditions if each["type"] == "Accepted")
    assert accepted["reason"] == "ApplyRefused"
    assert accepted["message"].endswith(
        "size: field is immutable: take the change back, or delete the LeaderWorkerSet chat-prefill-group, "
        "and its pods with it, to have it made anew."
    )


async def test_a_role_that_goes_from_one_node_to_several_and_back_leaves_no_pods_of_the_other_kind(
    world: World,
) -> None:
    await world.turn()
    engine = MULTI_NODE["engine"]
    for spec, applied, deleted in (
        (MULTI_NODE, "LeaderWorkerSet chat-prefill-group", "deployments chat-prefill"),
        ({"engine": engine}, "Deployment chat-prefill", "leaderworkersets chat-prefill-group"),
    ):
        status = world.api.objects[("prefillpolicies", "chat")]["status"]
        world.api.add_policy(**spec)["status"] = status
        world.rewatch()
        writes = await world.turn()
        assert f"apply {applied}" in writes
        assert [write for write in writes if write.startswith("delete")] == [f"delete {deleted}"]


LIGHT_LLM: dict[str, Any] = {
    "model": {"source": {"pvc": {"claimName": "models", "path": "m"}}, "servedName": "chat"},
    "engine": {"type": "LightLLM", "image": "lightllm:1"},
    "scheduling": {"policy": "FCFS"},
}


async def test_a_fleet_goes_from_an_engine_that_reads_a_file_to_one_that_is_told_and_back(world: World) -> None:
    """Each time the ConfigMap holds the new engine's documents alone, under the next generation, also where nothing
    else differs; and a status that is lost is taken from it."""
    mixed: dict[str, Any] = {"prefill": None, "decode": None, "mixed": {"replicas": 1}}
    runtime: dict[str, Any] = {"scheduling": {"policy": "FCFS"}} | mixed
    seen = []
    for number, spec in enumerate((runtime, LIGHT_LLM | mixed, runtime), start=1):
        status = world.api.objects[("prefillpolicies", "chat")].get("status", {})
        found = world.api.add_policy(**spec)
        found["metadata"]["generation"] = number
        found["status"] = status
        world.watch()
        await world.turn()
        world.rewatch()
        assert await world.turn() == []
        data = world.api.objects[("configmaps", "chat-policy")]["data"]
        effective = world.api.objects[("prefillpolicies", "chat")]["status"]["effective"]
        seen.append((sorted(data), effective["generation"]))
        world.api.objects[("prefillpolicies", "chat")]["status"] = {}
        world.watch()
        world.restart()
        await world.turn()
        assert world.api.objects[("prefillpolicies", "chat")]["status"]["effective"] == effective
        world.rewatch()
    assert seen == [(["decode.json", "policy.json"], 1), (["engine.json"], 2), (["decode.json", "policy.json"], 3)]


NOWHERE = {
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available."}
    ]
}


def group_pod(index: int, status: Object, role: str | None = None) -> PodRecord:
    labels = {
        "prefleet.dev/fleet": "chat",
        "leaderworkerset.sigs.k8s.io/name": "chat-prefill-group",
        "leaderworkerset.sigs.k8s.io/group-index": "0",
    }
    metadata = POD["metadata"] | {
        "name": f"chat-prefill-group-0-{index}",
        "uid": str(index),
        "labels": labels | ({"prefleet.dev/role": role} if role else {}),
    }
    return PodRecord.of({"metadata": metadata, "status": status})


async def test_what_ails_a_worker_is_said_of_its_group(world: World) -> None:
    """Its leader only waits: without this a fleet that lacks its second node is loading its model for ever."""
    world.cluster.pods.put(group_pod(0, {}, role="prefill"))
    world.cluster.pods.put(group_pod(1, NOWHERE))
    await world.turn()
    assert world.status()["Ready"] == ("False", "Unschedulable")
    conditions = world.api.objects[("prefillpolicies", "chat")]["status"]["conditions"]
    assert "its worker chat-prefill-group-0-1: no node takes it" in str(conditions)


async def test_a_worker_says_nothing_against_a_leader_that_serves(world: World) -> None:
    world.cluster.pods.put(group_pod(0, POD["status"], role="prefill"))
    world.cluster.pods.put(group_pod(1, NOWHERE))
    (policy,) = world.policies
    pods, _, _ = gather_pods(policy, world.cluster, world.now)
    assert [pod.trouble for pod in pods] == [None]
