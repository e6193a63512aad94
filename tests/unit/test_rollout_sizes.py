"""Rollouts of fleets that are autoscaled: what a gate allows holds before and after a number of replicas follows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from prefleet_operator.adapters.kube import Object
from prefleet_operator.adapters.metrics_source import FleetReading
from prefleet_operator.api import Role
from prefleet_operator.app.records import PodRecord

from tests.support.loads import load_of
from tests.unit.test_hand_over import ScaledWorld, running

DIGEST = "prefleet.dev/template"
SIZED: dict[str, Any] = {"prefill": {"minReplicas": 1, "maxReplicas": 6}}


def role(replicas: int, revision: str) -> Object:
    return {
        "replicas": replicas,
        "rollout": {"maxSurge": 0, "maxUnavailable": 1},
        "env": [{"name": "REVISION", "value": revision}],
    }


def deployment(world: ScaledWorld) -> Object:
    found: Object = world.api.objects[("deployments", "chat-prefill")]["spec"]
    return found


def add_pods(world: ScaledWorld, count: int, digest: str, ready: bool = True) -> None:
    for _ in range(count):
        name = f"p{len(world.cluster.pods.everything('ns'))}"
        metadata = {
            "namespace": "ns",
            "name": name,
            "uid": name,
            "resourceVersion": "9",
            "labels": {"prefleet.dev/fleet": "chat", "prefleet.dev/role": "prefill"},
            "annotations": {DIGEST: digest, "prefleet.dev/policy-generation": "1"},
        }
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": "2023-11-14T22:00:00Z"}
        pod = {"metadata": metadata, "status": {"conditions": [condition]}}
        world.api.objects[("pods", name)] = pod
        world.cluster.pods.put(PodRecord.of(copy.deepcopy(pod)))
    feel(world, 1)


def feel(world: ScaledWorld, work: float) -> None:
    world.now += 15
    world.readings.put("uid-chat", FleetReading(loads={Role.PREFILL: load_of(work, world.now)}), world.now)


async def rolling(replicas: int, serving: int, actuator: str) -> ScaledWorld:
    """A role whose template has just been changed: of its pods so many old ones serve, the others are new and start."""
    world = await running(prefill=role(replicas, "1"), autoscaling={**SIZED, "actuator": actuator})
    add_pods(world, serving, digest(world))
    world.change(prefill=role(replicas, "2"))
    await world.settle()
    add_pods(world, replicas - serving, digest(world), ready=False)
    await world.settle()
    return world


@pytest.mark.parametrize("actuator", ["Direct", "HPA"])
async def test_a_role_that_rolls_and_grows_is_steered_by_the_pods_that_it_has(actuator: str) -> None:
    """The gate is written before the number: the four that six lack must not be four absent ones of two."""
    world = await rolling(2, serving=2, actuator=actuator)
    gates = gates_written(world)
    feel(world, 5.3)
    await world.settle()
    assert world.sizings.published(world.policies)["ns", "chat", "prefill"] == 6
    assert all(absent <= 1 for replicas, absent in gates if replicas == 2)


@pytest.mark.parametrize("actuator", ["Direct", "HPA"])
async def test_a_role_that_rolls_and_shrinks_is_steered_by_the_pods_that_it_is_to_have(actuator: str) -> None:
    """Four of six are absent, which start. Once there are to be two, no controller may make do with none."""
    world = await rolling(6, serving=2, actuator=actuator)
    assert unavailable(world) == 4
    gates = gates_written(world)
    world.change(autoscaling={"prefill": {"maxReplicas": 2}, "actuator": actuator})
    await world.settle()
    if actuator == "HPA":
        world.api.scale("deployments", "chat-prefill", 2)
    assert world.count("prefill") == 2
    assert all(absent <= 1 for replicas, absent in gates if replicas == 2)


def digest(world: ScaledWorld) -> str:
    return str(deployment(world)["template"]["metadata"]["annotations"][DIGEST])


def unavailable(world: ScaledWorld) -> int:
    return int(deployment(world)["strategy"]["rollingUpdate"]["maxUnavailable"])


def gates_written(world: ScaledWorld) -> list[tuple[int, int]]:
    """To be filled with the replicas and the pods that may be absent after each write of the workload from now on."""
    written: list[tuple[int, int]] = []
    kept = world.api._keep

    def keep(plural: str, name: str, whole: Object, told: str) -> Object:
        answer = kept(plural, name, whole, told)
        if name == "chat-prefill":
            written.append((world.count("prefill"), unavailable(world)))
        return answer

    world.api._keep = keep  # type: ignore[method-assign]
    return written
