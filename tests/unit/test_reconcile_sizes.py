"""Reconciling a fleet that is autoscaled: from a reading to the replicas, the status, the conditions and the metric."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from prefleet_operator.adapters.kube import Object, UnavailableError
from prefleet_operator.adapters.metrics_source import FleetReading
from prefleet_operator.api import Role, parse_spec
from prefleet_operator.app.gather import Cluster, query
from prefleet_operator.app.policies import PolicyIndex
from prefleet_operator.app.records import PodRecord
from prefleet_operator.app.telemetry import Telemetry
from prefleet_operator.app.workqueue import WorkFailedError
from prefleet_operator.core.deletion_cost import FOLLOWED_S
from prefleet_operator.core.observed import Missing, Reading, Sample
from prefleet_operator.core.sizing.state import STEADY_S
from prefleet_operator.core.sizing.turn import PACE_S
from prefleet_operator.core.sizing.values import RoleLoad
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.loads import load_of
from tests.support.reconciling import NOW, Killed
from tests.unit.test_hand_over import ScaledWorld, running

SIZED: dict[str, Any] = {"prefill": {"minReplicas": 1, "maxReplicas": 6}}
MIXED_HPA: dict[str, Any] = {"actuator": "HPA", "mixed": {"maxReplicas": 4}}
DOWN_WINDOW_S = 300.0
POLICY = ("prefillpolicies", "chat")
GENERATION = "prefleet.dev/policy-generation"


class Loaded:
    """A fleet of four prefill pods, autoscaled, under a load; the world's time begins with a decision due."""

    def __init__(self, world: ScaledWorld) -> None:
        self.world = world

    async def feel(self, work: float | None, after_s: float = PACE_S) -> list[str]:
        """So much work a second, or no metrics at all; what the turns write in which all settles."""
        world = self.world
        world.now += after_s
        gone = RoleLoad(arrivals=Missing("Prometheus did not answer."))
        loads = {Role.PREFILL: gone if work is None else load_of(work, world.now)}
        source = world.api.objects[POLICY]["spec"].get("metricsSource", "PodScrape")
        world.readings.put("uid-chat", FleetReading(loads=loads), world.now, source)
        written: list[str] = []
        while more := await world.turn():
            written += more
            world.rewatch()
        return written

    async def feel_long(self, work: float | None) -> list[str]:
        """The same until what lasts has been said."""
        return [each for _ in range(int(STEADY_S / PACE_S) + 1) for each in await self.feel(work)]

    @property
    def pods(self) -> int:
        return self.world.count("prefill")

    @property
    def status(self) -> Object:
        found: Object = self.world.api.objects[POLICY]["status"]
        return found

    @property
    def size(self) -> Object:
        (size,) = self.status["autoscaling"]["roles"]
        assert isinstance(size, dict)
        return size

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = next(each for each in self.status["conditions"] if each["type"] == kind)
        return found["status"], found["reason"], found["message"]

    def published(self) -> dict[str, float]:
        """What the operator's exporter shows, by policy and role."""
        telemetry = Telemetry(CollectorRegistry())
        telemetry.show_sizes(lambda: self.world.sizings.published(self.world.policies))
        lines = generate_latest(telemetry.registry).decode().splitlines()
        shown = [line.split() for line in lines if line.startswith("prefleet_desired_replicas{")]
        return {series.removeprefix("prefleet_desired_replicas"): float(value) for series, value in shown}


async def loaded(**autoscaling: Any) -> Loaded:
    return Loaded(await running(autoscaling=SIZED | autoscaling))


async def test_a_rise_is_followed_and_said_once_with_its_numbers() -> None:
    fleet = await loaded()
    written = [each for each in await fleet.feel(5.3) if not each.startswith("event")]
    assert written == ["scale chat-prefill to 6", "patch prefillpolicies chat status"]
    assert fleet.pods == 6
    assert (fleet.size["desired"], fleet.size["reason"]) == (6, "Demand")
    assert fleet.size["numbers"]["workPerSecond"] == pytest.approx(5.3, rel=0.1)
    assert fleet.condition("ScalingActive")[:2] == ("True", "Demand")
    assert fleet.world.api.writes.count("event Scaled") == 1


async def test_numbers_that_decide_nothing_are_not_written() -> None:
    fleet = await loaded()
    await fleet.feel(5.3)
    assert [await fleet.feel(work) for work in (5.32, 5.28, 5.31)] == [[], [], []]


@pytest.mark.parametrize("mean", [3.0, 5.5, 7.0], ids=["between two numbers", "near its bound", "above its bound"])
async def test_a_load_that_is_steady_but_for_noise_has_next_to_nothing_written(mean: float) -> None:
    """Which step keeps a number, and whether one more pod is missed, changes with the noise; so does no condition."""
    fleet, chance = await loaded(), random.Random(1)
    await fleet.feel_long(mean)
    written = [each for _ in range(240) for each in await fleet.feel(mean * chance.gauss(1, 0.05))]
    assert len([each for each in written if each == "patch prefillpolicies chat status"]) <= 3, "in an hour"
    assert not [each for each in written if each == "event AtMaxReplicas"][1:]


async def test_a_fall_is_followed_after_the_window_and_not_below_the_need() -> None:
    fleet = await loaded()
    seen = set()
    for _ in range(60):
        await fleet.feel(1.5)
        seen.add(fleet.pods)
    assert fleet.pods in (2, 3)
    assert seen == {4, 3, fleet.pods}
    assert fleet.world.now - NOW == 60 * PACE_S


async def test_it_does_not_matter_how_often_a_turn_comes() -> None:
    """Damping allows twice as many each time: turns in between must not add to that."""
    calm, hasty = await loaded(prefill={"maxReplicas": 60}), await loaded(prefill={"maxReplicas": 60})
    for _ in range(3):
        await calm.feel(50)
        for _ in range(15):
            await hasty.feel(50, after_s=PACE_S / 15)
        assert hasty.pods == calm.pods
        assert hasty.size["numbers"] == calm.size["numbers"]


async def test_a_number_that_somebody_sets_is_where_the_next_decision_starts() -> None:
    fleet = await loaded()
    await fleet.feel(3)
    fleet.world.api.scale("deployments", "chat-prefill", 6)
    fleet.world.rewatch()
    await fleet.feel(3, after_s=1)
    assert fleet.pods == 6
    await fleet.feel(3)
    assert (fleet.pods, fleet.size["desired"], fleet.size["reason"]) == (6, 6, "Stabilising")


async def test_without_metrics_the_number_holds_and_goes_on_being_published() -> None:
    fleet = await loaded()
    await fleet.feel(5.3)
    published = fleet.published()
    assert await fleet.feel(None) == [], "one scrape that fails is no news"
    await fleet.feel_long(None)
    assert fleet.pods == 6
    assert fleet.published() == published == {'{namespace="ns",policy="chat",role="prefill"}': 6.0}
    status, reason, message = fleet.condition("ScalingActive")
    assert (status, reason) == ("Unknown", "MetricsMissing")
    assert message == "6 prefill pods stay: lengths of arriving requests: Prometheus did not answer."


async def test_what_is_needed_beyond_a_bound_is_said_with_what_to_raise() -> None:
    fleet = await loaded()
    await fleet.feel(9)
    assert fleet.pods == 6
    status, reason, message = fleet.condition("CapacityLimited")
    assert (status, reason) == ("True", "AtMaxReplicas")
    assert "may have 6: raise spec.autoscaling.prefill.maxReplicas, or lower the load." in message
    await fleet.feel_long(2)
    assert fleet.condition("CapacityLimited")[0] != "True"


async def test_accelerators_that_are_spent_are_said_with_what_to_raise() -> None:
    world = await running(
        prefill={"replicas": 4, "accelerator": {"resource": "nvidia.com/gpu", "count": 2}},
        decode={"replicas": 1, "accelerator": {"resource": "nvidia.com/gpu", "count": 2}},
        autoscaling=SIZED | {"maxAccelerators": 12},
    )
    fleet = Loaded(world)
    await fleet.feel(5.3)
    assert fleet.pods == 5
    status, reason, message = fleet.condition("CapacityLimited")
    assert (status, reason) == ("True", "QuotaExhausted")
    assert "pods of 2 accelerators each and has 5, since spec.autoscaling.maxAccelerators is 12: raise it" in message


@pytest.mark.parametrize("actuator", ["HPA", "KEDA"])
async def test_where_another_controller_scales_the_operator_only_says_the_number(actuator: str) -> None:
    fleet = Loaded(await running(autoscaling=SIZED | {"actuator": actuator}, metricsSource="cluster"))
    assert not any(write.startswith("scale") for write in await fleet.feel(5.3))
    assert (fleet.pods, fleet.size["desired"]) == (4, 6)
    assert list(fleet.published().values()) == [6.0]
    (role,) = [each for each in fleet.status["roles"] if each["name"] == "prefill"]
    assert role["desired"] == 4, "the live number counts until the other controller has moved it"
    await fleet.feel(None)
    assert list(fleet.published().values()) == [6.0], "what is wanted does not fall back to what was reached"


async def test_a_fall_that_nobody_follows_does_not_have_pods_written_for_ever() -> None:
    """As without the adapter that a HorizontalPodAutoscaler asks. What pods have to do changes with every reading."""
    fleet = Loaded(await running(autoscaling=SIZED | {"actuator": "HPA"}))
    world = fleet.world
    metadata = {"namespace": "ns", "uid": "p", "resourceVersion": "9", "annotations": {GENERATION: "1"}}
    metadata |= {"name": "p", "labels": {"prefleet.dev/fleet": "chat", "prefleet.dev/role": "prefill"}}
    world.api.objects[("pods", "p")] = {"metadata": metadata, "status": {}}
    world.cluster.pods.put(PodRecord.of(copy.deepcopy(world.api.objects[("pods", "p")])))
    written = []
    for turn in range(100):
        world.now += PACE_S
        loads = {Role.PREFILL: load_of(1.5, world.now)}
        pods: dict[str, Reading[float]] = {"p": Sample(float(turn), world.now)}
        world.readings.put("uid-chat", FleetReading(loads=loads, pod_loads=pods), world.now)
        written += [turn for write in await world.turn() if write == "patch pods p None"]
    assert fleet.size["desired"] < fleet.pods == 4
    assert len(written) >= 3, "while it may be followed any moment, what a pod says is fresh"
    assert written[-1] < 80, "and then no more"
    assert fleet.condition("ScalingActive") == (
        "False",
        "NotFollowed",
        f"There are 4 of {fleet.size['desired']} prefill pods: the HorizontalPodAutoscaler has not followed in 180 "
        "seconds; kubectl describe hpa says why.",
    )
    assert fleet.status["reason"] == "PodsNotReady", "what is wrong with pods goes first"
    assert world.api.writes.count("event NotFollowed") == 1


async def test_a_count_that_somebody_sets_by_hand_is_not_one_that_was_not_followed() -> None:
    """A HorizontalPodAutoscaler puts it right in its next turn; only one that does not, for as long as a new number may
    take, is said to follow no more."""
    fleet = Loaded(await running(autoscaling=SIZED | {"actuator": "HPA"}))
    await fleet.feel(5.3)
    fleet.world.api.scale("deployments", "chat-prefill", 6)
    fleet.world.rewatch()
    await fleet.feel(5.3, after_s=600)
    fleet.world.api.scale("deployments", "chat-prefill", 5)
    fleet.world.rewatch()
    for _ in range(int(FOLLOWED_S / PACE_S)):
        await fleet.feel(5.3)
        assert fleet.condition("ScalingActive")[:2] == ("True", "Demand")
    await fleet.feel(5.3)
    assert fleet.condition("ScalingActive")[:2] == ("False", "NotFollowed")
    fleet.world.restart()
    await fleet.feel(5.3)
    assert fleet.condition("ScalingActive")[:2] == ("False", "NotFollowed"), "another process has no reason to doubt it"


async def test_a_role_that_somebody_has_scaled_to_nothing_is_not_ready() -> None:
    """A HorizontalPodAutoscaler does nothing about it. In a spec 0 replicas are a wish; here nobody asked for it."""
    fleet = Loaded(await running(mixed={"replicas": 2}, prefill=None, decode=None, autoscaling=MIXED_HPA))
    fleet.world.api.scale("deployments", "chat-mixed", 0)
    fleet.world.rewatch()
    await fleet.world.settle()
    status, reason, message = fleet.condition("Ready")
    assert (status, reason) == ("False", "PodsNotReady")
    assert message.startswith("Ready pods: 0 of 1 mixed")


async def test_before_the_first_decision_the_live_number_is_published() -> None:
    fleet = Loaded(await running(autoscaling=SIZED | {"actuator": "HPA"}))
    assert list(fleet.published().values()) == [4.0]
    assert fleet.condition("ScalingActive")[2] == (
        "4 prefill pods stay: lengths of arriving requests: no pod of the role is ready, so there is nothing to read."
    )


async def test_the_loads_of_fleets_that_are_sized_are_asked_for_and_of_no_others() -> None:
    fleet = await loaded()
    for autoscaling, sized in ((SIZED, True), (None, False)):
        fleet.world.change(autoscaling=autoscaling)
        (policy,) = fleet.world.policies
        assert query(policy, parse_spec(policy.spec), fleet.world.cluster).sized is sized


async def test_a_role_that_goes_from_one_node_to_several_keeps_its_number() -> None:
    """Its new workload begins with what the old one has now, not with what the spec once said."""
    fleet = Loaded(await running(engine={"type": "VLLM", "version": "0.33.0"}, autoscaling=SIZED))
    await fleet.feel(5.3)
    fleet.world.change(prefill={"replicas": 1, "nodesPerReplica": 2})
    await fleet.feel(5.3, after_s=1)
    groups = fleet.world.api.objects[("leaderworkersets", "chat-prefill-group")]
    assert groups["spec"]["replicas"] == 6
    assert ("deployments", "chat-prefill") not in fleet.world.api.objects


@pytest.mark.parametrize("restarted", [False, True], ids=["the same process", "another process"])
@pytest.mark.parametrize("actuator", ["Direct", "HPA"])
async def test_a_workload_that_somebody_deletes_comes_back_with_the_number_last_decided(
    actuator: str, restarted: bool
) -> None:
    fleet = Loaded(await running(prefill={"replicas": 1}, autoscaling=SIZED | {"actuator": actuator}))
    await fleet.feel(5.3)
    wanted = fleet.size["desired"]
    assert wanted > 1
    del fleet.world.api.objects[("deployments", "chat-prefill")]
    del fleet.world.api.owners["chat-prefill"]
    if restarted:
        fleet.world.restart()
    fleet.world.rewatch()
    fleet.world.api.counts.clear()
    await fleet.feel(None)
    assert set(fleet.world.api.counts["chat-prefill"]) == {wanted}


@pytest.mark.parametrize("actuator", ["Direct", "HPA"])
async def test_a_new_fleet_asks_for_no_more_accelerators_than_it_may_have(actuator: str) -> None:
    """What is there stays, so what is too much at the start would stay too."""
    gpu = {"resource": "nvidia.com/gpu"}
    world = ScaledWorld(
        prefill={"replicas": 6, "accelerator": gpu},
        decode={"replicas": 2, "accelerator": gpu},
        autoscaling=SIZED | {"maxAccelerators": 5, "actuator": actuator},
    )
    await world.settle()
    assert set(world.api.counts["chat-prefill"]) == {3}


async def test_a_workload_that_was_never_made_starts_as_the_changed_spec_says() -> None:
    world = ScaledWorld(prefill={"replicas": 6}, autoscaling=SIZED)
    world.api.refuses = "ConfigMap"
    with pytest.raises(WorkFailedError):
        await world.turn()
    world.api.refuses = None
    world.change(prefill={"replicas": 2})
    await world.settle()
    assert set(world.api.counts["chat-prefill"]) == {2}


async def test_of_policies_that_are_gone_nothing_is_kept() -> None:
    fleet = await loaded()
    fleet.world.sizings.keep({"uid-chat"})
    assert fleet.world.sizings.of("uid-chat") is not None
    fleet.world.sizings.keep(set())
    assert fleet.world.sizings.of("uid-chat") is None


@pytest.mark.parametrize("end", ["autoscaling is taken away", "the policy is deleted"])
async def test_the_metric_goes_with_its_reason(end: str) -> None:
    fleet = await loaded()
    await fleet.feel(5.3)
    assert fleet.published()
    if end == "the policy is deleted":
        fleet.world.policies.drop(("ns", "chat"), "uid-chat")
    else:
        fleet.world.change(autoscaling=None)
        await fleet.feel(5.3)
        assert "autoscaling" not in fleet.status
        assert "ScalingActive" not in {each["type"] for each in fleet.status["conditions"]}
    assert fleet.published() == {}


async def test_a_restart_goes_on_where_it_was_and_shrinks_only_after_a_whole_window() -> None:
    """Nobody has seen what was needed since the status was written."""
    fleet = await loaded()
    for _ in range(41):
        await fleet.feel(2.4)
    assert fleet.pods == 3
    before = fleet.size
    for _ in range(20):
        await fleet.feel(2.4)
    fleet.world.restart()
    await fleet.feel(2.4)
    assert fleet.size == before
    for _ in range(int(DOWN_WINDOW_S / PACE_S) - 1):
        await fleet.feel(0.5)
        assert fleet.pods == 3
    for _ in range(8):
        await fleet.feel(0.5)
    assert fleet.pods < 3


async def test_a_number_that_the_status_never_heard_of_counts_as_needed_until_now() -> None:
    """Someone, or an operator that ended before it wrote the status, has raised it a moment ago."""
    fleet = await loaded()
    for _ in range(int(DOWN_WINDOW_S / PACE_S) + 1):
        await fleet.feel(3.4)
    assert fleet.pods == 4
    fleet.world.api.scale("deployments", "chat-prefill", 6)
    fleet.world.restart()
    fleet.world.rewatch()
    await fleet.feel(2.4)
    assert fleet.pods == 6


async def test_a_clock_that_is_put_back_makes_no_memory_of_times_to_come() -> None:
    fleet = await loaded()
    for _ in range(int(DOWN_WINDOW_S / PACE_S) + 1):
        await fleet.feel(3.4)
    await fleet.feel(3.4, after_s=-86_400)
    for _ in range(3 * int(DOWN_WINDOW_S / PACE_S)):
        await fleet.feel(1.5)
    assert fleet.pods < 4


GARBAGE: dict[str, Any] = {
    "nothing is left": None,
    "a state of another version": {"stateVersion": 7, "actuator": "Direct", "memory": {"roles": {"prefill": {}}}},
    "a memory that is none": {"stateVersion": 1, "actuator": "Direct", "memory": {"roles": [1, 2]}},
    "a fall that is yet to come": {
        "stateVersion": 1,
        "actuator": "Direct",
        "memory": {
            "roles": {
                "prefill": {
                    "needs": [], "demands": [], "capacity": None, "tokenCapacity": None, "fellAt": int(NOW) + 10**6
                }
            }
        },
    },
    "marks that are words": {
        "stateVersion": 1,
        "actuator": "Direct",
        "memory": {
            "roles": {
                "prefill": {
                    "needs": [["a", None]], "demands": 3, "capacity": {}, "tokenCapacity": None, "fellAt": "now"
                }
            }
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("written", GARBAGE.values(), ids=GARBAGE.keys())
async def test_what_anybody_writes_into_the_status_holds_the_live_number(written: Object | None) -> None:
    fleet = await loaded()
    for _ in range(60):
        await fleet.feel(1.5)
    pods = fleet.pods
    policy = fleet.world.api.objects[POLICY]
    policy["status"] = {key: value for key, value in policy["status"].items() if key != "autoscaling"}
    if written is not None:
        policy["status"]["autoscaling"] = written
    fleet.world.api._put("prefillpolicies", policy)
    fleet.world.watch()
    fleet.world.restart()
    await fleet.feel(0.1)
    assert fleet.pods == pods, "nothing shrinks before a whole window is known again"
    assert fleet.condition("Accepted")[0] == "True"
    assert fleet.size["desired"] == pods


async def test_a_kill_at_any_write_of_a_move_ends_the_same() -> None:
    number, ended = 1, False
    while not ended:
        fleet = await loaded()
        world = fleet.world
        world.api.fault = (number, Killed())
        try:
            await fleet.feel(5.3)
            ended = True
        except Killed:
            world.api.fault = None
            world.cluster, world.policies = Cluster(), PolicyIndex()
            world.restart()
            world.rewatch()
            await fleet.feel(5.3, after_s=1)
        assert (fleet.pods, fleet.size["desired"]) == (6, 6), f"killed at write {number}"
        assert await fleet.feel(5.3) == []
        number += 1
    assert number > 3


async def test_a_scale_whose_answer_is_lost_is_not_promised_and_done_by_the_next_turn() -> None:
    fleet = await loaded()
    fleet.world.api.fault = (len(fleet.world.api.writes) + 1, UnavailableError("timed out"))
    with pytest.raises(WorkFailedError):
        await fleet.feel(5.3)
    assert fleet.size["desired"] == 4
    await fleet.feel(5.3, after_s=1)
    assert (fleet.pods, fleet.size["desired"]) == (6, 6)
    assert fleet.world.api.writes.count("event Scaled") == 1
