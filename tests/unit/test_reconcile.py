"""Reconciling over an API in memory: what is written, in which order, and what a fault leaves behind."""

from __future__ import annotations

import copy
import json
from typing import Any, cast

import pytest
from prefleet_operator.adapters.events import Recorder, event_name
from prefleet_operator.adapters.kube import (
    RESOURCES_BY_KIND,
    ConflictError,
    Kube,
    NotFoundError,
    Object,
    RefusedError,
    Resource,
    UnavailableError,
)
from prefleet_operator.app.apply import Applier, merge_patch
from prefleet_operator.app.decision import Installation
from prefleet_operator.app.gather import Cluster, gather_pods, read_live
from prefleet_operator.app.leader import LeadershipLostError
from prefleet_operator.app.policies import PolicyIndex, PolicyRecord
from prefleet_operator.app.readings import HOLD_S, Readings, hold_generations
from prefleet_operator.app.reconcile import Outcome, Reconciler
from prefleet_operator.app.records import ChildRecord, PodRecord
from prefleet_operator.app.workqueue import WorkFailedError
from prefleet_operator.core.observed import Missing, Reading, Sample, Stale
from prefleet_operator.core.plan import Event
from prefleet_operator.core.reasons import Reason
from prefleet_operator.render import FIELD_MANAGER, InstallationDefaults
from prefleet_runtime.contract import RuntimePolicy

NOW = 1_700_000_000.0
PINNED: dict[str, Any] = {"threshold": 900, "longMaxWait": "4s"}


class Killed(BaseException):
    """The process has ended: nothing catches it."""


class MemoryApi:
    """The few calls that reconciling makes, over one dict; versions rise, conflicts and ownership are as real.

    `fault`: raised in place of the answer to the write of that number, which has been carried out.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.version = 100
        self.writes: list[str] = []
        self.refuses: str | None = None
        self.fault: tuple[int, BaseException] | None = None
        self.contents: dict[int, set[str]] = {}

    def add_policy(self, name: str = "chat", **spec: Any) -> Object:
        base = {
            "model": {"source": {"hub": {"repo": "example/model"}}, "servedName": "chat"},
            "engine": {"type": "Simulator"},
            "prefill": {"replicas": 1},
            "decode": {"replicas": 1},
        }
        metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "generation": 1}
        asked = {key: value for key, value in (base | spec).items() if value is not None}
        return self._put("prefillpolicies", {"metadata": metadata, "spec": asked})

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        found = self.objects.get((resource.plural, name))
        if found is None:
            raise NotFoundError(f"{resource.plural} {name} not found")
        return copy.deepcopy(found)

    async def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return copy.deepcopy(self.objects.get((resource.plural, name)))

    async def apply(self, resource: Resource, desired: Object) -> Object:
        if self.refuses == desired["kind"]:
            raise RefusedError("no")
        live = self.objects.get((resource.plural, desired["metadata"]["name"]))
        self._check(live, desired)
        found = copy.deepcopy(desired)
        annotations = {f"f:{key}": {} for key in desired["metadata"].get("annotations", {})}
        fields: Object = {
            "f:data": {f"f:{key}": {} for key in desired.get("data", {})},
            "f:metadata": {"f:annotations": annotations},
        }
        managed = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
        found["metadata"] |= {"uid": f"uid-{resource.plural}-{desired['metadata']['name']}", "managedFields": [managed]}
        answer = copy.deepcopy(self._put(resource.plural, found))
        if desired["kind"] == "ConfigMap":
            document = next(desired["data"][key] for key in ("policy.json", "engine.json") if key in desired["data"])
            self.contents.setdefault(json.loads(document)["generation"], set()).add(document)
        self._wrote(f"apply {desired['kind']} {desired['metadata']['name']}")
        return answer

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, patch: Object, subresource: str | None = None
    ) -> Object:
        live = await self.get(resource, namespace, name)
        self._check(live, patch)
        status = _patched(live.get("status") or {}, patch.get("status") or {})
        answer = copy.deepcopy(self._put(resource.plural, live | {"status": status}))
        self._wrote(f"patch {resource.plural} {name} {subresource}")
        return answer

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        del self.objects[(resource.plural, name)]
        self._wrote(f"delete {resource.plural} {name}")

    async def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        self._wrote(f"event {body['reason']}")
        return body

    def _wrote(self, what: str) -> None:
        self.writes.append(what)
        if self.fault is not None and len(self.writes) == self.fault[0]:
            raise self.fault[1]

    def _check(self, live: Object | None, body: Object) -> None:
        version = body["metadata"].get("resourceVersion")
        if version is not None and (live is None or live["metadata"]["resourceVersion"] != version):
            raise ConflictError("the object has been modified")

    def _put(self, plural: str, found: Object) -> Object:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self.objects[(plural, found["metadata"]["name"])] = found
        return found


def _patched(old: Object, patch: Object) -> Object:
    result = dict(old)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _patched(result[key], value)
        else:
            result[key] = value
    return result


class World:
    """A reconciler and the API under it."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.cluster = Cluster()
        self.policies = PolicyIndex()
        self.outcomes: list[Outcome] = []
        self.applier: Applier
        self.runtime_image = "runtime:1"
        self.prometheus: dict[str, str] = {}
        self.restart()

    def restart(self) -> None:
        """Another process: what was watched is known again, what was remembered is not."""
        kube = cast(Kube, self.api)
        self.applier = Applier(kube, self.cluster)
        self.reconciler = Reconciler(
            kube=kube,
            policies=self.policies,
            cluster=self.cluster,
            readings=Readings(),
            applier=self.applier,
            recorder=Recorder(kube, "test", lambda: NOW),
            installation=Installation(InstallationDefaults(self.runtime_image, self.prometheus), ("PodScrape",), "1.0"),
            now=lambda: NOW,
            count=self.outcomes.append,
        )

    def rewatch(self) -> None:
        """The watchers and kopf have caught up with everything."""
        for kind, store in self.cluster.children.items():
            plural = RESOURCES_BY_KIND[kind].plural
            live = {name: found for (where, name), found in self.api.objects.items() if where == plural}
            for record in store.everything("ns"):
                if record.identity.name not in live:
                    store.remove(record.identity)
            for found in live.values():
                store.put(ChildRecord.of(copy.deepcopy(found)))
        self.watch()

    def watch(self, name: str = "chat") -> None:
        """kopf tells of the policy as it is."""
        self.policies.put(PolicyRecord.of(copy.deepcopy(self.api.objects[("prefillpolicies", name)])))

    async def turn(self, name: str = "chat") -> list[str]:
        """One turn; what it wrote."""
        before = len(self.api.writes)
        await self.reconciler.reconcile(("ns", name))
        return self.api.writes[before:]

    def status(self, name: str = "chat") -> dict[str, tuple[str, str]]:
        found = self.api.objects[("prefillpolicies", name)].get("status") or {}
        return {c["type"]: (c["status"], c["reason"]) for c in found.get("conditions", ())}


@pytest.fixture
def world() -> World:
    built = World()
    built.api.add_policy()
    built.watch()
    return built


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
    assert world.status() == {"Accepted": ("Unknown", "ReconcileFailed")}
    assert world.outcomes == [Outcome.FAILED]
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
    assert _patched(old, patch) == new


FRESH = Sample(3, NOW - 5)


@pytest.mark.parametrize(
    ("before", "after", "held"),
    [
        pytest.param(FRESH, Missing("no answer"), FRESH, id="one failed scrape proves nothing"),
        pytest.param(Sample(3, NOW - HOLD_S), Missing("no"), Missing("no"), id="a long silence is missing"),
        pytest.param(None, Missing("no"), Missing("no"), id="what was never known is missing"),
        pytest.param(FRESH, Stale(3, NOW - 5), FRESH, id="a report just now stale stands"),
        pytest.param(FRESH, Stale(3, NOW - 99), Stale(3, NOW - 99), id="a long stale one does not"),
        pytest.param(FRESH, Sample(4, NOW), Sample(4, NOW), id="a new report replaces the old one"),
    ],
)
def test_reports_are_held_for_a_while(before: Reading[int] | None, after: Reading[int], held: Reading[int]) -> None:
    known = {} if before is None else {"pod": before}
    assert hold_generations(known, {"pod": after}, NOW) == {"pod": held}


@pytest.mark.parametrize(("warning", "same"), [(True, True), (False, False)], ids=["a warning", "good news"])
def test_only_a_warning_is_the_same_happening_whatever_its_numbers(warning: bool, same: bool) -> None:
    first, second = (Event(Reason.PODS_READY, f"All {count} pods", warning) for count in (3, 1200))
    assert (event_name("chat", "u", first) == event_name("chat", "u", second)) is same


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


POD: Object = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "uid-p",
        "resourceVersion": "5",
        "labels": {"prefleet.dev/fleet": "chat", "prefleet.dev/role": "prefill"},
    },
    "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": None}]},
}


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
    pods, _, _ = gather_pods(policy, world.cluster)
    assert [pod.trouble for pod in pods] == [None]


async def test_ready_pods_are_measured_before_anything_is_decided(world: World) -> None:
    world.cluster.pods.put(PodRecord.of(POD))
    assert await world.turn() == []


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
