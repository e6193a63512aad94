"""Reconciling over an API in memory: what is written, in which order, and what a fault leaves behind."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from prefleet_operator.adapters.events import event_name
from prefleet_operator.adapters.kube import (
    Object,
    Resource,
    UnavailableError,
)
from prefleet_operator.adapters.metrics_source import FleetReading
from prefleet_operator.app.apply import merge_patch
from prefleet_operator.app.gather import Cluster
from prefleet_operator.app.leader import LeadershipLostError
from prefleet_operator.app.policies import PolicyIndex
from prefleet_operator.app.reconcile import TOLD_AFTER_S, Outcome
from prefleet_operator.app.records import PodRecord
from prefleet_operator.app.workqueue import WorkFailedError
from prefleet_operator.core.events import Event
from prefleet_operator.core.observed import FleetMetrics, HistogramSnapshot, Missing, Sample
from prefleet_operator.core.reasons import Reason

from tests.support.reconciling import NOW, PINNED, POD, Killed, World, patched

FIRST_MOVE: Object = {"generation": 1, "policy": "FCFS", "reason": "FleetCreated", "message": ""}


@pytest.fixture
def world() -> World:
    built = World()
    built.api.add_policy()
    built.watch()
    return built


SPLIT: Object = {"policy": "ShortRequestFirst", "threshold": {"value": 900, "reason": "", "message": ""}}
LENGTHS = HistogramSnapshot(bounds=(100.0,), counts=(5.0, 0.0))
NONSENSE: tuple[tuple[str, Object], ...] = (
    ("no time", {"tuning": {"threshold": {"value": 900, "reason": "", "message": "", "movedAt": "yesterday"}}}),
    ("a time of no zone", {"history": [FIRST_MOVE | {"at": "2023-11-14T22:13:20"}]}),
    ("a huge threshold", {"tuning": SPLIT | {"threshold": {"value": 1e300, "reason": "", "message": ""}}}),
    ("a limit below 0", {"tuning": SPLIT | {"longMaxWait": {"value": -5, "reason": "", "message": ""}}}),
)


@pytest.mark.parametrize("written", [status for _, status in NONSENSE], ids=[name for name, _ in NONSENSE])
async def test_nonsense_that_somebody_writes_into_a_status_is_forgotten(world: World, written: Object) -> None:
    """The fleet runs on as it did, under the same generation."""
    await world.turn()
    world.rewatch()
    world.api.objects[("prefillpolicies", "chat")]["status"] |= written
    world.watch()
    await world.turn()
    assert world.status()["Accepted"] == ("True", "Accepted")
    assert world.api.objects[("prefillpolicies", "chat")]["status"]["effective"] == {"policy": "FCFS", "generation": 1}
    assert world.outcomes == [Outcome.WRITTEN, Outcome.WRITTEN]


CREATED = [
    "apply ConfigMap chat-policy",
    "apply Deployment chat-prefill",
    "apply Service chat-prefill",
    "apply Deployment chat-decode",
    "apply Service chat-decode",
    "patch prefillpolicies chat status",
    "event FleetCreated",
]


async def test_the_config_map_comes_first_and_the_status_after_everything_applied(world: World) -> None:
    assert await world.turn() == CREATED


async def test_a_second_turn_writes_nothing(world: World) -> None:
    await world.turn()
    assert await world.turn() == []
    assert world.outcomes[-1] is Outcome.UNCHANGED


async def test_a_restart_applies_once_more_and_changes_nothing(world: World) -> None:
    await world.turn()
    before = world.api.objects[("prefillpolicies", "chat")]["status"]
    world.restart()
    await world.turn()
    assert world.api.objects[("prefillpolicies", "chat")]["status"] == before
    assert await world.turn() == []


async def test_a_policy_that_is_gone_is_not_brought_back(world: World) -> None:
    del world.api.objects[("prefillpolicies", "chat")]
    assert await world.turn() == []
    assert world.policies.get(("ns", "chat")) is None


async def test_a_policy_that_has_changed_meanwhile_is_decided_about_again(world: World) -> None:
    world.api.add_policy(scheduling={"threshold": 900, "longMaxWait": "4s"})
    await world.turn()
    assert '"threshold": 900' in world.api.objects[("configmaps", "chat-policy")]["data"]["policy.json"]


async def test_a_wrong_spec_writes_the_sentence_and_nothing_else(world: World) -> None:
    world.api.add_policy(tuning={"mode": "Sometimes"})
    world.watch()
    with pytest.raises(WorkFailedError):
        await world.turn()
    assert world.api.writes == ["patch prefillpolicies chat status", "event InvalidSpec"]
    assert world.status() == {"Accepted": ("False", "InvalidSpec")}


async def test_what_is_refused_half_way_is_said_and_the_status_knows_the_live_policy(world: World) -> None:
    world.api.refuses = "Deployment"
    with pytest.raises(WorkFailedError):
        await world.turn()
    assert world.status()["Accepted"] == ("False", "ApplyRefused")
    assert world.api.objects[("prefillpolicies", "chat")]["status"]["effective"]["generation"] == 1
    world.api.refuses = None
    await world.turn()
    assert world.status()["Accepted"] == ("True", "Accepted")


async def test_a_fault_of_the_operator_is_one_fleets_condition(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    with monkeypatch.context() as patch:
        patch.setattr("prefleet_operator.app.reconcile.decide", broken)
        with pytest.raises(WorkFailedError):
            await world.turn()
        with pytest.raises(WorkFailedError):
            await world.turn()
    assert world.status() == {"Accepted": ("Unknown", "ReconcileFailed")}
    assert world.outcomes == [Outcome.FAILED, Outcome.FAILED]
    assert [write for write in world.api.writes if write.startswith("event")] == ["event ReconcileFailed"]
    await world.turn()
    assert world.status()["Accepted"] == ("True", "Accepted")


async def test_an_api_server_that_keeps_failing_over_a_policy_is_said_after_a_minute(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where an admission webhook is down: a status that stays as it was would say nothing of it."""

    failing = {"Accepted": ("Unknown", "ReconcileFailed")}

    async def apply(resource: Resource, desired: Object) -> Object:
        raise UnavailableError('failed calling webhook "policies.example": connection refused')

    with monkeypatch.context() as patch:
        patch.setattr(world.api, "apply", apply)
        for told in ({}, {}, failing, failing):
            with pytest.raises(WorkFailedError):
                await world.turn()
            assert world.status() == told
            world.now += TOLD_AFTER_S / 2
    (accepted,) = world.api.objects[("prefillpolicies", "chat")]["status"]["conditions"]
    assert 'failed calling webhook "policies.example"' in accepted["message"]
    assert [write for write in world.api.writes if write.startswith("event")] == ["event ReconcileFailed"]
    await world.turn()
    assert world.status()["Accepted"] == ("True", "Accepted")


async def test_a_config_map_that_is_newer_than_known_is_never_overwritten(world: World) -> None:
    await world.turn()
    live = world.api.objects[("configmaps", "chat-policy")]
    world.api._put("configmaps", copy.deepcopy(live))
    world.api.add_policy(scheduling={"threshold": 900, "longMaxWait": "4s"})
    world.watch()
    with pytest.raises(WorkFailedError):
        await world.turn()
    assert "900" not in world.api.objects[("configmaps", "chat-policy")]["data"]["policy.json"]


CHANGED_WRITES = 9
"""A change from prefill and decode to a mixed role under another setting: 3 applied, 4 deleted, status, event."""


@pytest.mark.parametrize("number", range(1, len(CREATED) + CHANGED_WRITES + 1))
@pytest.mark.parametrize("fault", [Killed(), UnavailableError("timed out")], ids=["killed", "answer lost"])
async def test_after_a_fault_at_any_write_the_next_turns_converge(number: int, fault: BaseException) -> None:
    """A generation never stands for two contents, none is skipped back to, and nothing is left over or missing."""
    world = World()
    world.api.fault = (number, fault)
    mixed: dict[str, Any] = {"prefill": None, "decode": None, "mixed": {"replicas": 1}, "scheduling": PINNED}
    for spec in ({}, mixed):
        old = world.api.objects.get(("prefillpolicies", "chat"), {}).get("status", {})
        world.api.add_policy(**spec)["status"] = old
        for _ in range(4):
            world.rewatch()
            try:
                await world.turn()
            except Killed:
                world.cluster, world.policies = Cluster(), PolicyIndex()
                world.restart()
            except WorkFailedError:
                continue
    assert len(world.api.writes) >= number
    world.rewatch()
    assert await world.turn() == []
    names = {f"{plural}/{name}" for plural, name in world.api.objects}
    assert names == {
        "prefillpolicies/chat", "configmaps/chat-policy", "deployments/chat-mixed", "services/chat-mixed"
    }  # fmt: skip
    assert {generation: len(contents) for generation, contents in world.api.contents.items()} == {1: 1, 2: 1}
    status = world.api.objects[("prefillpolicies", "chat")]["status"]
    assert status["effective"] == {
        "policy": "ShortRequestFirst", "threshold": 900, "longMaxWait": "4s", "generation": 2
    }  # fmt: skip
    assert [move["generation"] for move in status["history"]] == [1, 2]


async def test_nothing_of_a_role_that_is_taken_out_goes_while_it_serves_and_those_in_its_place_do_not() -> None:
    world = World()
    world.api.add_policy()
    world.watch()
    await world.turn()
    world.cluster.pods.put(PodRecord.of(POD))
    world.readings.put("uid-chat", FleetReading(), world.now)
    world.api.add_policy(prefill=None, decode=None, mixed={"replicas": 1})
    world.rewatch()
    written = await world.turn()
    assert [write for write in written if write.startswith("delete")] == []
    (prefill,) = world.cluster.pods.everything("ns")
    world.cluster.pods.remove(prefill.identity)
    written = await world.turn()
    assert sorted(write for write in written if write.startswith("delete")) == [
        "delete deployments chat-decode", "delete deployments chat-prefill",
        "delete services chat-decode", "delete services chat-prefill",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({}, ["FleetCreated"], id="somebody labels the policy: the move and its reason are told"),
        pytest.param({"observedGeneration": 9}, [], id="somebody writes the status: it is not overwritten"),
    ],
)
async def test_a_policy_that_is_touched_while_it_is_applied(
    world: World, monkeypatch: pytest.MonkeyPatch, status: Object, expected: list[str]
) -> None:
    apply = world.api.apply

    async def apply_and_touch(resource: Resource, desired: Object) -> Object:
        answer = await apply(resource, desired)
        if desired["metadata"]["name"] == "chat-decode":
            live = world.api.objects[("prefillpolicies", "chat")]
            world.api._put("prefillpolicies", copy.deepcopy(live) | ({"status": status} if status else {}))
        return answer

    monkeypatch.setattr(world.api, "apply", apply_and_touch)
    if expected:
        await world.turn()
    else:
        with pytest.raises(WorkFailedError):
            await world.turn()
    found = world.api.objects[("prefillpolicies", "chat")].get("status") or {}
    assert [move["reason"] for move in found.get("history", ())] == expected


async def test_ready_pods_are_measured_before_anything_is_decided(world: World) -> None:
    world.cluster.pods.put(PodRecord.of(POD))
    assert await world.turn() == []


async def test_a_fleet_of_another_source_waits_for_that_ones_reading(world: World) -> None:
    """Under the new spec the reading of the old source would be told as the new one's, fresh and well."""
    world.cluster.pods.put(PodRecord.of(POD))
    world.readings.put("uid-chat", FleetReading(FleetMetrics(lengths=Sample(LENGTHS, NOW))), NOW)
    await world.turn()
    assert world.status()["MetricsAvailable"] == ("True", "MetricsFresh")
    world.api.objects[("prefillpolicies", "chat")]["spec"]["metricsSource"] = "cluster"
    world.api.objects[("prefillpolicies", "chat")]["metadata"]["generation"] = 2
    world.watch()
    assert await world.turn() == []
    assert world.readings.asked.is_set()
    world.readings.put("uid-chat", FleetReading(FleetMetrics(lengths=Missing("it is down."))), NOW, "cluster")
    await world.turn()
    assert world.status()["MetricsAvailable"] == ("False", "UnknownMetricsSource")


async def test_a_wrong_spec_is_said_after_a_restart_too_though_nobody_measures_its_pods(world: World) -> None:
    """As when a new release refuses what an old one took: to wait for a reading would be to wait for ever."""
    world.cluster.pods.put(PodRecord.of(POD))
    world.api.add_policy(tuning={"mode": "Sometimes"})
    world.watch()
    with pytest.raises(WorkFailedError):
        await world.turn()
    assert world.status() == {"Accepted": ("False", "InvalidSpec")}


async def test_a_lost_lease_ends_the_turn_without_a_word_of_a_fault(world: World) -> None:
    world.api.fault = (1, LeadershipLostError("another leads"))
    with pytest.raises(WorkFailedError):
        await world.turn()
    assert world.status() == {}


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        pytest.param({"a": 1}, {"a": 1}, {}, id="equal values need no patch"),
        pytest.param({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, {"a": {"c": None}}, id="what is left out is removed"),
        pytest.param({"a": [1]}, {"a": [1, 2]}, {"a": [1, 2]}, id="lists are replaced"),
        pytest.param({}, {"a": {"b": 1}}, {"a": {"b": 1}}, id="what is new is added"),
        pytest.param({"a": 1}, {}, {"a": None}, id="a key can go"),
    ],
)
def test_merge_patches_turn_one_value_into_the_other(old: Object, new: Object, patch: Object) -> None:
    assert merge_patch(old, new) == patch
    assert patched(old, patch) == new


@pytest.mark.parametrize(("warning", "same"), [(True, True), (False, False)], ids=["a warning", "good news"])
def test_only_a_warning_is_the_same_happening_whatever_its_numbers(warning: bool, same: bool) -> None:
    first, second = (Event(Reason.PODS_READY, f"All {count} pods", warning) for count in (3, 1200))
    assert (event_name("chat", "u", first) == event_name("chat", "u", second)) is same
