"""An autoscaler of somebody else's beside the operator: two hands on one number. The operator takes its own off."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from prefleet_operator.adapters.kube import Object
from prefleet_operator.adapters.watch import Identity
from prefleet_operator.api import Role
from prefleet_operator.app.records import AutoscalerRecord, ChildRecord

from tests.unit.test_hand_over import BOTH, BOUNDS, ScaledWorld, running
from tests.unit.test_reconcile_sizes import Loaded, loaded

HPA, KEDA = "HorizontalPodAutoscaler", "ScaledObject"


def autoscaler(name: str = "mine", **given: Any) -> Object:
    """As a user writes it, for the prefill pods."""
    target = given.pop("target", {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat-prefill"})
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": "7"} | given
    return {"metadata": metadata, "spec": {"scaleTargetRef": target}}


def add(world: ScaledWorld, kind: str = HPA, **given: Any) -> AutoscalerRecord:
    record = AutoscalerRecord.of(autoscaler(**given))
    world.cluster.autoscalers[kind].put(record)
    return record


def scale(world: ScaledWorld, count: int) -> None:
    """What its controller does."""
    world.api.scale("deployments", "chat-prefill", count, by="kube-controller-manager")
    world.rewatch()


async def test_the_operator_does_not_fight_it_and_says_whose_hand_it_is() -> None:
    fleet = await loaded()
    add(fleet.world)
    for count in (2, 5, 3):
        scale(fleet.world, count)
        written = await fleet.feel(5.3) + await fleet.feel(5.3, after_s=1)
        assert not [each for each in written if each.startswith(("scale", "apply"))]
        assert fleet.pods == count
    status, reason, message = fleet.condition("ScalingActive")
    assert (status, reason) == ("False", "ScaledByAnother")
    told = "pods stay: HorizontalPodAutoscaler mine sets their number; delete it, or remove spec.autoscaling.prefill."
    assert message.endswith(told)
    assert fleet.world.api.writes.count("event ScaledByAnother") == 1


async def test_its_number_holds_also_outside_the_bounds_and_the_move_that_was_under_way_is_dropped() -> None:
    fleet = await loaded()
    await fleet.feel(5.3)
    assert fleet.pods == 6
    add(fleet.world)
    scale(fleet.world, 4)
    await fleet.feel(5.3, after_s=1)
    assert fleet.pods == 4, "where the last decision began"
    scale(fleet.world, 9)
    await fleet.feel(5.3)
    assert (fleet.pods, fleet.size["desired"]) == (9, 9)


async def test_once_it_is_gone_the_operator_goes_on_from_the_live_number() -> None:
    fleet = await loaded()
    record = add(fleet.world)
    scale(fleet.world, 3)
    await fleet.feel(5.3)
    fleet.world.cluster.autoscalers[HPA].remove(record.identity)
    await fleet.feel(5.3)
    assert fleet.pods == 6
    assert fleet.condition("ScalingActive")[:2] == ("True", "Demand")
    assert fleet.world.api.writes.count("event Scaled") == 1


@pytest.mark.parametrize("actuator", ["HPA", "KEDA"])
async def test_our_own_actuator_is_withdrawn_meanwhile_and_the_number_that_is_published_holds(actuator: str) -> None:
    """Two HorizontalPodAutoscalers on one workload stop each other (AmbiguousSelector), but for bounds: over those they
    fight."""
    fleet = Loaded(await running(autoscaling=BOTH | {"actuator": actuator}, metricsSource="cluster"))
    ours = fleet.world.actuators()
    record = add(fleet.world)
    await fleet.feel(5.3)
    assert {name for _, name in ours - fleet.world.actuators()} == {"chat-prefill"}
    assert fleet.published()['{namespace="ns",policy="chat",role="prefill"}'] == 4.0
    assert fleet.condition("ScalingActive")[:2] == ("False", "ScaledByAnother")
    await fleet.feel(5.3, after_s=600)
    assert fleet.condition("ScalingActive")[:2] == ("False", "ScaledByAnother")
    fleet.world.cluster.autoscalers[HPA].remove(record.identity)
    await fleet.feel(5.3)
    assert fleet.world.actuators() == ours
    assert set(fleet.world.api.counts.get("chat-prefill", [4])) == {4}


async def test_a_role_that_is_not_sized_has_its_number_by_it_too_without_a_fall_to_one() -> None:
    world = await running()
    record = add(world)
    await world.settle()
    scale(world, 5)
    await world.settle()
    assert world.count("prefill") == 5
    assert min(world.api.counts["chat-prefill"]) == 4
    accepted = next(each for each in status_of(world)["conditions"] if each["type"] == "Accepted")
    told = "HorizontalPodAutoscaler mine sets the replicas of prefill: spec.prefill.replicas counts again once"
    assert told in accepted["message"]
    assert next(role for role in status_of(world)["roles"] if role["name"] == "prefill")["desired"] == 5
    assert world.api.writes.count("event ScaledByAnother") == 1
    world.cluster.autoscalers[HPA].remove(record.identity)
    await world.settle()
    assert world.count("prefill") == 4


async def test_accelerators_of_a_role_in_other_hands_count_as_many_as_there_are() -> None:
    accelerator = {"resource": "nvidia.com/gpu"}
    world = await running(
        prefill={"replicas": 4, "accelerator": accelerator},
        decode={"replicas": 1, "accelerator": accelerator},
        autoscaling={"prefill": {"maxReplicas": 8}, "maxAccelerators": 9},
    )
    add(world, target={"kind": "Deployment", "name": "chat-decode"})
    world.api.scale("deployments", "chat-decode", 4)
    world.rewatch()
    fleet = Loaded(world)
    await fleet.feel(7.0)
    assert (fleet.pods, fleet.size["reason"]) == (5, "QuotaExhausted")


def status_of(world: ScaledWorld) -> Object:
    found: Object = world.api.objects[("prefillpolicies", "chat")]["status"]
    return found


OURS = {"managedFields": [{"manager": "prefleet", "operation": "Apply", "fieldsV1": {"f:spec": {}}}]}
OF_KEDA = {"ownerReferences": [{"kind": "ScaledObject", "name": "chat-prefill", "controller": True}]}


@pytest.mark.parametrize(
    ("kind", "given", "noticed"),
    [
        pytest.param(HPA, {}, "HorizontalPodAutoscaler mine", id="an HPA on the Deployment"),
        pytest.param(KEDA, {}, "ScaledObject mine", id="a ScaledObject on it"),
        pytest.param(KEDA, {"target": {"name": "chat-prefill"}}, "ScaledObject mine", id="one that names no kind"),
        pytest.param(HPA, OURS, "", id="the operator's own"),
        pytest.param(HPA, OF_KEDA, "", id="the HPA that KEDA makes of a ScaledObject, which counts itself"),
        pytest.param(HPA, {"target": {"kind": "Deployment", "name": "other"}}, "", id="an HPA on something else"),
        pytest.param(HPA, {"target": {"kind": "StatefulSet", "name": "chat-prefill"}}, "", id="on another kind"),
        pytest.param(HPA, {"namespace": "elsewhere"}, "", id="in another namespace"),
    ],
)
async def test_whose_hand_counts(kind: str, given: dict[str, Any], noticed: str) -> None:
    fleet: Loaded = await loaded()
    add(fleet.world, kind, **copy.deepcopy(given))
    await fleet.feel(5.3)
    assert fleet.pods == (4 if noticed else 6)
    assert (f"{noticed} sets their number" in fleet.size["message"]) is bool(noticed)


async def test_of_two_kinds_of_workload_the_one_counts_that_the_spec_asks_for() -> None:
    """As while a role goes from several nodes to one, and its groups take their time to go."""
    fleet = await loaded()
    groups = Identity("ns", "chat-prefill-group", "uid-g", 9, "chat")
    fleet.world.cluster.children["LeaderWorkerSet"].put(ChildRecord(groups, Role.PREFILL, "", ours=True, deleting=True))
    add(fleet.world)
    await fleet.feel(5.3)
    assert fleet.pods == 4
    assert fleet.size["reason"] == "ScaledByAnother"


async def test_one_role_in_other_hands_leaves_the_other_to_the_operator() -> None:
    world = await running(autoscaling=BOTH | {"decode": BOUNDS})
    add(world)
    scale(world, 1)
    world.api.scale("deployments", "chat-decode", 1)
    world.rewatch()
    await Loaded(world).feel(None)
    assert (world.count("prefill"), world.count("decode")) == (1, 2)
