"""Pods that somebody else makes, over an API in memory: what is written for them, and what is never touched."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from prefleet_operator.adapters.kube import Kube, Object, Resource, UnavailableError
from prefleet_operator.adapters.watch import Store, Watcher
from prefleet_operator.api import Role, parse_spec
from prefleet_operator.app.attachments import Attachments
from prefleet_operator.app.gather import AttachedPods, Cluster, query
from prefleet_operator.app.policies import PolicyRecord
from prefleet_operator.app.records import PodRecord
from prefleet_operator.app.workqueue import Key, WorkFailedError
from prefleet_operator.core.attached import OVERLAP_HOLD_S
from prefleet_operator.render import KEPT_ANNOTATION

from tests.support.reconciling import NOW, PINNED, Killed, MemoryApi, World
from tests.unit.test_fleet_loop import World as LoopWorld

ATTACH: dict[str, Any] = {
    "model": {"servedName": "chat"},
    "prefill": None,
    "decode": None,
    "attach": {"mixed": {"podSelector": {"matchLabels": {"app": "chat"}}, "metricsPort": 9500}},
    "scheduling": PINNED,
}


MIXED: dict[str, Any] = {"prefill": None, "decode": None, "mixed": {"replicas": 1}, "scheduling": PINNED}


class RecordingApi(MemoryApi):
    """Keeps the Events and gives policies their age."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Object] = []

    async def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        self.events.append(body)
        return await super().create(resource, namespace, body)


class Unlisted:
    """A watcher that has heard nothing yet, or only a refusal."""

    def __init__(self, refused: str | None = None) -> None:
        self.synced = asyncio.Event()
        self.refused = refused


class AttachedWorld(World):
    """A reconciler with the pods of others."""

    def __init__(self) -> None:
        self.now = NOW
        super().__init__()
        self.api = RecordingApi()
        self.restart()

    def add(self, name: str = "chat", created: str = "2026-11-30T06:00:00Z", **spec: Any) -> None:
        """A policy as it is now; its status stays."""
        old = self.api.objects.get(("prefillpolicies", name), {})
        metadata = old.get("metadata", {})
        found = self.api.add_policy(name, **spec)
        found["metadata"]["creationTimestamp"] = created
        found["metadata"]["generation"] = metadata.get("generation", 0) + 1
        found["status"] = old.get("status", {})
        self.watch(name)

    def attach(self, name: str, *pods: PodRecord, watchers: tuple[Any, ...] = ()) -> None:
        """What the watchers have found for a policy's mixed role."""
        store: Store[PodRecord] = Store()
        for pod in pods:
            store.put(pod)
        self.cluster.attached[("ns", name)] = AttachedPods({Role.MIXED: store}, watchers)


def pod(name: str, fleet: str = "", ready: bool = False) -> PodRecord:
    labels = {"app": "chat"} | ({"prefleet.dev/fleet": fleet, "prefleet.dev/role": "mixed"} if fleet else {})
    metadata = {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "5", "labels": labels}
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": "2023-11-14T22:13:20Z"}
    return PodRecord.of({"metadata": metadata, "status": {"podIP": "10.0.0.1", "conditions": [condition]}})


@pytest.fixture
def world() -> AttachedWorld:
    return AttachedWorld()


WRITTEN = ["apply ConfigMap chat-policy", "patch prefillpolicies chat status", "event FleetCreated"]


async def test_a_config_map_is_all_that_is_written_and_nobody_owns_it(world: AttachedWorld) -> None:
    world.add(**ATTACH)
    world.attach("chat", pod("p1"))
    assert await world.turn() == WRITTEN
    metadata = world.api.objects[("configmaps", "chat-policy")]["metadata"]
    assert "ownerReferences" not in metadata
    assert KEPT_ANNOTATION in metadata["annotations"]
    status = world.api.objects[("prefillpolicies", "chat")]["status"]
    assert status["roles"] == [{"name": "mixed", "desired": 1, "ready": 0, "active": 0}]
    assert await world.turn() == []


@pytest.mark.parametrize(
    ("labels", "made_for"),
    [
        pytest.param({"prefleet.dev/fleet": "other", "prefleet.dev/role": "mixed"}, "other", id="an engine pod"),
        pytest.param({"prefleet.dev/fleet": "other", "prefleet.dev/role": "router"}, "other", id="a router's"),
        pytest.param(
            {"prefleet.dev/fleet": "other", "leaderworkerset.sigs.k8s.io/name": "other-mixed-group"}, "other",
            id="a worker of a group",
        ),
        pytest.param({"leaderworkerset.sigs.k8s.io/name": "theirs"}, "", id="a worker of somebody else's group"),
        pytest.param({"app": "chat"}, "", id="somebody else's"),
    ],
)  # fmt: skip
def test_which_pods_the_operator_made(labels: dict[str, str], made_for: str) -> None:
    metadata = {"namespace": "ns", "name": "p", "uid": "p", "resourceVersion": "5", "labels": labels}
    assert PodRecord.of({"metadata": metadata}).made_for == made_for


async def test_nothing_is_decided_before_the_pods_are_known(world: AttachedWorld) -> None:
    world.add(**ATTACH)
    world.attach("chat", watchers=(Unlisted(),))
    assert await world.turn() == []
    world.add("other")
    assert await world.turn("other") == []


async def test_a_selector_that_is_refused_is_said_and_stops_no_other_policy(world: AttachedWorld) -> None:
    world.add(**ATTACH)
    world.attach("chat", watchers=(Unlisted("pods is forbidden"),))
    with pytest.raises(WorkFailedError):
        await world.turn()
    assert world.status()["Accepted"] == ("False", "ApplyRefused")
    world.add("other")
    assert "apply ConfigMap other-policy" in await world.turn("other")


async def test_from_pods_of_its_own_to_pods_of_others_and_back(world: AttachedWorld) -> None:
    """The ConfigMap loses its owner and gets none again, since pods of others may mount it by then."""

    def owned() -> set[str]:
        objects = world.api.objects.items()
        return {f"{plural}/{name}" for (plural, name), found in objects if found["metadata"].get("ownerReferences")}

    world.add()
    await world.turn()
    assert "configmaps/chat-policy" in owned()
    world.rewatch()
    world.add(**ATTACH)
    world.attach("chat", pod("p1"))
    await world.turn()
    world.rewatch()
    assert owned() == set()
    assert {plural for plural, _ in world.api.objects} == {"prefillpolicies", "configmaps"}
    world.add()
    del world.cluster.attached[("ns", "chat")]
    await world.turn()
    world.rewatch()
    assert owned() == {
        "deployments/chat-prefill", "services/chat-prefill", "deployments/chat-decode", "services/chat-decode"
    }  # fmt: skip
    assert not [write for write in world.api.writes if write.startswith("delete configmaps")]


async def test_a_config_map_that_is_written_no_more_stays_and_says_so(world: AttachedWorld) -> None:
    world.add(**ATTACH)
    world.attach("chat")
    await world.turn()
    world.rewatch()
    world.add(**ATTACH | {"attach": ATTACH["attach"] | {"policyConfigMap": "queue"}})
    await world.turn()
    assert {name for plural, name in world.api.objects if plural == "configmaps"} == {"chat-policy", "queue"}
    kept = world.api.events[-1]
    assert (kept["reason"], kept["regarding"]["kind"]) == ("ConfigMapKept", "ConfigMap")
    assert kept["regarding"]["name"] == "chat-policy"
    assert kept["note"].startswith("PrefillPolicy chat is written to queue now: this ConfigMap stays as it is")


async def test_a_deletion_leaves_the_config_map_and_says_so_once(world: AttachedWorld) -> None:
    world.add(**ATTACH)
    world.attach("chat")
    await world.turn()
    world.rewatch()
    world.policies.drop(("ns", "chat"), "uid-chat")
    assert await world.turn() == ["event ConfigMapKept"]
    assert world.api.events[-1]["note"] == (
        "PrefillPolicy chat was deleted: this ConfigMap stays as it is, with generation 1, and pods that mount it "
        "go on with that; delete it once none does."
    )
    assert await world.turn() == []
    assert ("configmaps", "chat-policy") in world.api.objects


async def test_a_deletion_of_a_fleet_of_the_operators_has_nothing_to_say(world: AttachedWorld) -> None:
    world.add()
    await world.turn()
    world.rewatch()
    world.policies.drop(("ns", "chat"), "uid-chat")
    assert await world.turn() == []


async def test_the_config_map_of_another_policy_is_not_taken(world: AttachedWorld) -> None:
    world.add("first", **ATTACH)
    world.attach("first", pod("p1"))
    await world.turn("first")
    before = copy.deepcopy(world.api.objects[("configmaps", "first-policy")])
    world.add("second", **ATTACH | {"attach": ATTACH["attach"] | {"policyConfigMap": "first-policy"}})
    world.attach("second", pod("p2"))
    with pytest.raises(WorkFailedError):
        await world.turn("second")
    assert world.status("second")["Accepted"] == ("False", "ApplyRefused")
    (condition,) = world.api.objects[("prefillpolicies", "second")]["status"]["conditions"]
    assert condition["message"] == (
        "The ConfigMap first-policy is of the policy first: name another in spec.attach.policyConfigMap, "
        "or delete it if that policy is gone and no pod mounts it."
    )
    assert world.api.objects[("configmaps", "first-policy")] == before


async def test_of_two_policies_with_one_pod_the_newer_is_refused_and_the_older_goes_on(world: AttachedWorld) -> None:
    world.add("old", "2026-11-30T06:00:00Z", **ATTACH)
    world.attach("old", pod("p1"))
    world.add("new", "2026-11-30T07:00:00Z", **ATTACH)
    world.attach("new", pod("p1"), pod("p2"))
    with pytest.raises(WorkFailedError):
        await world.turn("new")
    assert world.api.writes == ["patch prefillpolicies new status", "event PodsOverlap"]
    assert world.status("new") == {"Accepted": ("False", "PodsOverlap")}
    assert "apply ConfigMap old-policy" in await world.turn("old")
    assert world.status("old")["Accepted"] == ("True", "Accepted")
    with pytest.raises(WorkFailedError):
        await world.turn("new")
    assert "configmaps/new-policy" not in {f"{plural}/{name}" for plural, name in world.api.objects}


async def refuse(world: AttachedWorld, **spec: Any) -> dict[str, Any]:
    """A spec that is refused; the status after it."""
    world.add(**spec)
    with pytest.raises(WorkFailedError):
        await world.turn()
    status: dict[str, Any] = world.api.objects[("prefillpolicies", "chat")]["status"]
    return status


async def test_of_a_refused_policy_the_pods_found_are_the_pods_wanted(world: AttachedWorld) -> None:
    """Whoever makes them has scaled them down meanwhile: nothing is missing for that."""
    world.add(**ATTACH)
    world.attach("chat", pod("p1"), pod("p2"))
    await world.turn()
    (role,) = world.api.objects[("prefillpolicies", "chat")]["status"]["roles"]
    assert role["desired"] == 2
    world.attach("chat", pod("p1", ready=True))
    status = await refuse(world, **ATTACH, tuning={"mode": "Sometimes"})
    assert [(role["desired"], role["ready"]) for role in status["roles"]] == [(1, 1)]
    assert world.status()["Ready"] == ("True", "PodsReady")


async def test_of_a_fleet_that_may_not_be_attached_the_operators_own_pods_are_counted(world: AttachedWorld) -> None:
    world.add(**MIXED)
    own = pod("chat-mixed-1", fleet="chat", ready=True)
    await world.turn()
    world.cluster.pods.put(own)
    world.attach("chat", own)
    await refuse(world, **ATTACH)
    assert world.status()["Accepted"] == ("False", "PodsOverlap")
    assert world.status()["Ready"] == ("True", "PodsReady")


async def test_a_refused_spec_makes_no_router_ready(world: AttachedWorld) -> None:
    router = {"type": "VLLMRouter", "image": "router:1"}
    world.add(**MIXED, router=router)
    await world.turn()
    world.cluster.pods.put(pod("chat-mixed-1", fleet="chat", ready=True))
    status = await refuse(world, **MIXED, router=router, tuning={"mode": "Sometimes"})
    assert world.status()["Ready"] == ("False", "RouterNotReady")
    assert "The router has 0 of 1 pods ready" in str(status["conditions"])


async def test_a_refusal_outlasts_a_pod_that_is_rolled(world: AttachedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add("old", "2026-11-30T06:00:00Z", **ATTACH)
    world.attach("old", pod("p1"))
    world.add("new", "2026-11-30T07:00:00Z", **ATTACH)
    world.attach("new", pod("p1"))
    with pytest.raises(WorkFailedError):
        await world.turn("new")
    world.attach("old")
    world.attach("new", pod("p2"))
    monkeypatch.setattr(world.reconciler, "_now", lambda: NOW + OVERLAP_HOLD_S - 1)
    with pytest.raises(WorkFailedError):
        await world.turn("new")
    monkeypatch.setattr(world.reconciler, "_now", lambda: NOW + OVERLAP_HOLD_S)
    assert "apply ConfigMap new-policy" in await world.turn("new")
    assert world.status("new")["Accepted"] == ("True", "Accepted")


@pytest.mark.parametrize("number", range(1, 11))
@pytest.mark.parametrize("fault", [Killed(), UnavailableError("timed out")], ids=["killed", "answer lost"])
async def test_after_a_fault_at_any_write_of_a_switch_the_next_turns_converge(
    number: int, fault: BaseException
) -> None:
    world = AttachedWorld()
    world.api.fault = (number, fault)
    for spec in ({}, ATTACH):
        world.add(**spec)
        for _ in range(4):
            if "attach" in spec:
                world.attach("chat", pod("p1"))
            world.rewatch()
            try:
                await world.turn()
            except Killed:
                world.cluster = Cluster()
                world.restart()
            except WorkFailedError:
                continue
    assert len(world.api.writes) >= number
    world.rewatch()
    assert await world.turn() == []
    assert {f"{plural}/{name}" for plural, name in world.api.objects} == {
        "prefillpolicies/chat", "configmaps/chat-policy"
    }  # fmt: skip
    assert {generation: len(contents) for generation, contents in world.api.contents.items()} == {1: 1, 2: 1}


async def test_sources_are_asked_at_the_port_of_the_pods(world: AttachedWorld) -> None:
    world.add(**ATTACH)
    world.attach("chat", pod("p1", ready=True), pod("p2"), pod("made", fleet="other", ready=True))
    policy = world.policies.get(("ns", "chat"))
    assert policy is not None
    asked = query(policy, parse_spec(policy.spec), world.cluster)
    assert [(target.name, target.role, target.exporter_port) for target in asked.pods] == [("p1", Role.MIXED, 9500)]


class Watchable:
    """An API whose lists and watches only count."""

    def __init__(self) -> None:
        self.watched: list[tuple[str, str]] = []
        self.ended = 0
        self.fault: BaseException | None = None

    def watcher(
        self, namespace: str, selector: str, store: Store[PodRecord], changed: Callable[[str, str], None]
    ) -> Watcher[PodRecord]:
        self.watched.append((namespace, selector))
        world = self

        class Counting(Watcher[PodRecord]):
            async def run(self) -> None:
                if world.fault is not None:
                    raise world.fault
                self.synced.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    world.ended += 1

        return Counting(cast(Kube, None), cast(Resource, None), namespace, selector, PodRecord.of, store, changed)


def policy_of(attach: Mapping[str, Any] | None, uid: str = "u1", name: str = "chat", **spec: Any) -> PolicyRecord:
    pods: dict[str, Any] = {"mixed": {}} if attach is None else {"attach": attach}
    base: dict[str, Any] = {"model": {"servedName": "m"}, "engine": {"type": "Simulator"}}
    metadata = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": "1"}
    return PolicyRecord.of({"metadata": metadata, "spec": base | pods | spec})


def by_label(**labels: str) -> dict[str, Any]:
    return {"mixed": {"podSelector": {"matchLabels": labels}}}


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_watches_start_and_end_with_the_policies_and_their_selectors() -> None:
    api, cluster, known = Watchable(), Cluster(), list[str]()
    attachments = Attachments(cluster, api.watcher, lambda _: None, known.append)
    attachments.follow(policy_of(None))
    assert (api.watched, cluster.attached) == ([], {})
    attachments.follow(policy_of(by_label(app="chat")))
    await settle()
    assert known == ["ns"]
    assert cluster.knows_attached("ns")
    attachments.follow(policy_of(by_label(app="chat"), scheduling=PINNED))
    attachments.follow(policy_of({"mixed": {}}))  # no spec that may run: the pods stay those of the last one
    assert api.watched == [("ns", "app=chat")]
    attachments.follow(policy_of(by_label(app="other")))
    await settle()
    assert (api.watched[1:], api.ended) == ([("ns", "app=other")], 1)
    attachments.follow(policy_of(by_label(app="other"), uid="u2"))
    await settle()
    assert (len(api.watched), api.ended) == (3, 2)
    attachments.keep({("ns", "chat")})
    assert list(cluster.attached) == [("ns", "chat")]
    attachments.keep(set[Key]())
    await settle()
    assert (cluster.attached, api.ended) == ({}, 3)


async def test_a_watch_that_fails_for_a_reason_of_its_own_ends_the_process() -> None:
    api = Watchable()
    api.fault = ZeroDivisionError("a watcher fails")
    attachments = Attachments(Cluster(), api.watcher, lambda _: None, lambda _: None)
    attachments.follow(policy_of(by_label(app="chat")))
    with pytest.raises(ZeroDivisionError, match="a watcher fails"):
        await asyncio.wait_for(attachments.run(), 5)


async def test_no_source_is_asked_for_pods_that_are_not_known_or_are_another_policys() -> None:
    """A refused policy that named another port would have the older one's pods scraped there."""
    world = LoopWorld()
    for name, uid, created in (("old", "u1", "2026-11-30T06:00:00Z"), ("new", "u2", "2026-11-30T07:00:00Z")):
        world.policies.put(replace(policy_of(by_label(app="chat"), uid=uid, name=name), created=created))
        store: Store[PodRecord] = Store()
        store.put(pod("p1", ready=True))
        world.cluster.attached[("ns", name)] = AttachedPods({Role.MIXED: store}, ())
    await world.loop.turn()
    assert (world.readings.known("u1"), world.readings.known("u2")) == (True, False)
    unlisted = cast(Watcher[PodRecord], Unlisted())
    world.cluster.attached[("ns", "old")] = AttachedPods({Role.MIXED: Store()}, (unlisted,))
    before = world.readings.of("u1")
    await world.loop.turn()
    assert world.readings.of("u1") is before
