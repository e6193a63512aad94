"""Reconciling after an upgrade of the operator: templates stay, and a restart is said before it happens."""

from __future__ import annotations

import copy

import pytest
from prefleet_operator.adapters.kube import (
    Object,
)
from prefleet_operator.app.records import ChildRecord, PodRecord

from tests.support.reconciling import World


def add_pods(world: World) -> None:
    """What the Deployments' controller would make: one pod for each role."""
    for number, role in enumerate(("prefill", "decode")):
        labels = {"prefleet.dev/fleet": "chat", "prefleet.dev/role": role}
        metadata = {"namespace": "ns", "name": f"chat-{role}-1", "uid": f"p{number}", "resourceVersion": "9"}
        world.cluster.pods.put(PodRecord.of({"metadata": metadata | {"labels": labels}, "status": {}}))


def templates(world: World) -> list[Object]:
    return [found["spec"]["template"] for (kind, _), found in world.api.objects.items() if kind == "deployments"]


def accepted(world: World) -> str:
    conditions = world.api.objects[("prefillpolicies", "chat")]["status"]["conditions"]
    return next(each["message"] for each in conditions if each["type"] == "Accepted")


@pytest.fixture
def upgraded() -> World:
    """A fleet of vLLM, and an operator that would bring it another runtime image."""
    world = World()
    world.api.add_policy(engine={"type": "VLLM", "version": "0.33.0"})
    world.watch()
    return world


async def test_an_upgrade_of_the_operator_changes_no_template_and_says_once_what_waits(upgraded: World) -> None:
    await upgraded.turn()
    add_pods(upgraded)
    before = copy.deepcopy(templates(upgraded))
    upgraded.runtime_image = "runtime:2"
    upgraded.restart()
    written = await upgraded.turn()
    assert templates(upgraded) == before
    assert written.count("event UpgradeWaits") == 1
    assert "event RestartNeeded" not in written
    assert "The pods of prefill and decode stay as release 1.0 rendered them" in accepted(upgraded)
    assert "spec.initContainers[prefleet-runtime].image" in accepted(upgraded)
    assert await upgraded.turn() == []


async def test_a_restart_is_said_before_the_template_is_applied(upgraded: World) -> None:
    await upgraded.turn()
    add_pods(upgraded)
    upgraded.runtime_image = "runtime:2"
    upgraded.restart()
    await upgraded.turn()
    upgraded.api.objects[("prefillpolicies", "chat")]["spec"]["prefill"]["args"] = ["--max-model-len", "4096"]
    upgraded.api.objects[("prefillpolicies", "chat")]["metadata"]["generation"] = 2
    upgraded.api._put("prefillpolicies", upgraded.api.objects[("prefillpolicies", "chat")])
    upgraded.watch()
    written = await upgraded.turn()
    assert written.index("event RestartNeeded") < written.index("apply Deployment chat-prefill")
    assert {each["spec"]["initContainers"][0]["image"] for each in templates(upgraded)} == {"runtime:2"}
    assert "stay as release" not in accepted(upgraded)
    assert await upgraded.turn() == []


async def test_the_annotation_asks_for_the_upgrade(upgraded: World) -> None:
    await upgraded.turn()
    add_pods(upgraded)
    upgraded.runtime_image = "runtime:2"
    upgraded.restart()
    await upgraded.turn()
    policy = upgraded.api.objects[("prefillpolicies", "chat")]
    policy["metadata"]["annotations"] = {"prefleet.dev/upgrade": "now"}
    upgraded.api._put("prefillpolicies", policy)
    upgraded.watch()
    assert "event RestartNeeded" in await upgraded.turn()
    assert {each["spec"]["initContainers"][0]["image"] for each in templates(upgraded)} == {"runtime:2"}
    assert await upgraded.turn() == []


async def test_a_fleet_without_pods_is_told_of_no_restart(upgraded: World) -> None:
    await upgraded.turn()
    policy = upgraded.api.objects[("prefillpolicies", "chat")]
    policy["metadata"]["annotations"] = {"prefleet.dev/upgrade": "now"}
    upgraded.runtime_image = "runtime:2"
    upgraded.api._put("prefillpolicies", policy)
    upgraded.watch()
    upgraded.restart()
    assert "event RestartNeeded" not in await upgraded.turn()


async def test_a_revision_that_somebody_else_wrote_is_none(upgraded: World) -> None:
    await upgraded.turn()
    deployment = copy.deepcopy(upgraded.api.objects[("deployments", "chat-prefill")])
    assert ChildRecord.of(deployment).revision is not None
    deployment["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:annotations"] = {}
    assert ChildRecord.of(deployment).revision is None
