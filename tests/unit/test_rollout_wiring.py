"""A rollout as a decision carries it out: pods told apart by their template, gates on the workloads, the sentence in
Ready; and what an upgrade leaves alone."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from prefleet_operator.adapters.metrics_source import FleetReading
from prefleet_operator.api import ConditionType, parse_spec
from prefleet_operator.app.decision import Decision, Installation, decide
from prefleet_operator.app.gather import Cluster
from prefleet_operator.app.policies import PolicyRecord
from prefleet_operator.app.records import ChildRecord, PodRecord
from prefleet_operator.core.events import Event
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.rollout import Gate, RolePods
from prefleet_operator.render import FIELD_MANAGER, InstallationDefaults, PolicyObject, render_fleet, with_gates
from prefleet_operator.render.changes import by_key, compare_objects
from prefleet_operator.render.gates import without_gate
from prefleet_runtime.contract import RuntimePolicy

Json = dict[str, Any]

NOW = 1_700_000_000.0
DIGEST = "prefleet.dev/template"
REVISION = "prefleet.dev/revision"
ONE_BY_ONE = {"maxSurge": 0, "maxUnavailable": 1}
CRASHES: Json = {
    "containerStatuses": [{"name": "engine", "ready": False, "lastState": {"terminated": {"exitCode": 2}}}]
}
NOWHERE: Json = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes."}]
}
LATER: Json = {"resourceVersion": "1000"}
SERVES: Json = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2023-11-14T22:00:00Z"}]}


def spec(revision: str = "1", **fields: Any) -> Json:
    role = {"replicas": 3, "rollout": ONE_BY_ONE, "env": [{"name": "REVISION", "value": revision}]} | fields
    return {"model": {"servedName": "chat"}, "engine": {"type": "Simulator"}, "prefill": role, "decode": role}


class World:
    """A fleet `chat` as the watchers know it; `apply` decides and carries out."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.live: dict[tuple[str, str], Json] = {}
        self.made = 0

    def decide(self, wanted: Json, status: Json | None = None) -> Decision:
        metadata = {"name": "chat", "namespace": "ns", "uid": "u", "generation": 1, "resourceVersion": "1"}
        policy = PolicyRecord.of({"metadata": metadata, "spec": wanted, "status": status or {}})
        installation = Installation(InstallationDefaults("runtime:1"), ("PodScrape",), "1.0")
        return decide(policy, parse_spec(wanted), self.cluster, FleetReading(), installation, NOW)

    def apply(self, wanted: Json) -> Decision:
        decision = self.decide(wanted)
        for each in decision.objects:
            self.know(copy.deepcopy(each))
        return decision

    def know(self, found: Json, forget_revision: bool = False) -> None:
        """What a server that has taken the object tells of it. Items of a list of Deployments do not say their kind."""
        kind, metadata = found["kind"], found["metadata"]
        self.made += 1
        annotations = {f"f:{name}": {} for name in metadata.get("annotations", {})}
        fields = {} if forget_revision else {"f:metadata": {"f:annotations": annotations}}
        managed = [{"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}]
        metadata |= {"uid": f"{kind}-{metadata['name']}", "resourceVersion": str(self.made), "managedFields": managed}
        self.live[kind, metadata["name"]] = found
        told = {name: value for name, value in found.items() if name != "kind"} if kind == "Deployment" else found
        self.cluster.children[kind].put(ChildRecord.of(told))

    def pods(self, role: str, digest: str, count: int = 1, status: Json = SERVES, goes_by: str = "") -> None:
        for _ in range(count):
            self.made += 1
            metadata: Json = {
                "namespace": "ns",
                "name": f"chat-{role}-{self.made}",
                "uid": f"pod-{self.made}",
                "resourceVersion": str(self.made),
                "labels": {"prefleet.dev/fleet": "chat", "prefleet.dev/role": role},
                "annotations": {DIGEST: digest} if digest else {},
            }
            if goes_by:
                metadata["deletionTimestamp"] = goes_by
            self.cluster.pods.put(PodRecord.of({"metadata": metadata, "status": status}))

    def no_pods(self) -> None:
        for pod in self.cluster.pods.everything("ns"):
            self.cluster.pods.remove(pod.identity)

    def digest(self, role: str) -> str:
        return str(self.live["Deployment", f"chat-{role}"]["spec"]["template"]["metadata"]["annotations"][DIGEST])


def deployment(decision: Decision, role: str) -> Json:
    return dict(by_key(decision.objects)["Deployment", f"chat-{role}"]["spec"])


def steering(decision: Decision, role: str) -> tuple[bool, Json]:
    found = deployment(decision, role)
    return bool(found.get("paused")), found["strategy"]["rollingUpdate"]


def ready(decision: Decision) -> tuple[str, str, str]:
    (found,) = (each for each in decision.plan.status.conditions if each.type is ConditionType.READY)
    return found.status.value, found.reason, found.message


@pytest.fixture
def rolling() -> World:
    """A fleet of three and three old pods to which another template has been applied."""
    world = World()
    world.apply(spec("1"))
    for role in ("prefill", "decode"):
        world.pods(role, world.digest(role), 3)
    world.apply(spec("2"))
    return world


def test_a_fleet_that_does_not_roll_is_left_to_its_own_rollout() -> None:
    world = World()
    world.apply(spec("1", rollout={"maxSurge": "50%", "maxUnavailable": 0}))
    for role in ("prefill", "decode"):
        world.pods(role, world.digest(role), 3)
    decision = world.apply(spec("1", rollout={"maxSurge": "50%", "maxUnavailable": 0}))
    assert steering(decision, "prefill") == (False, {"maxSurge": "50%", "maxUnavailable": 0})
    assert "rollout" not in ready(decision)[2]


def test_shares_are_counted_in_pods_while_it_rolls(rolling: World) -> None:
    decision = rolling.apply(spec("2", rollout={"maxSurge": "50%", "maxUnavailable": 0}))
    assert steering(decision, "prefill") == (False, {"maxSurge": 1, "maxUnavailable": 0})


def test_the_role_that_is_ahead_is_paused_and_ready_says_for_what_it_waits(rolling: World) -> None:
    decision = rolling.apply(spec("2"))
    assert steering(decision, "prefill") == steering(decision, "decode") == (False, ONE_BY_ONE)
    rolling.no_pods()
    for role in ("prefill", "decode"):
        rolling.pods(role, "old", 2)
    rolling.pods("prefill", rolling.digest("prefill"))
    rolling.pods("decode", rolling.digest("decode"), status={})
    decision = rolling.apply(spec("2"))
    assert steering(decision, "prefill") == (True, ONE_BY_ONE)
    assert steering(decision, "decode") == (False, ONE_BY_ONE)
    assert ready(decision) == (
        "False",
        "PodsNotReady",
        "Ready pods: 2 of 3 decode; a pod is ready once its engine has loaded its model. The rollout goes on: "
        "1 of 3 new prefill pods are ready, 0 of 3 new decode pods are ready; prefill waits for decode, where "
        "0 of 3 new pods are ready.",
    )


def test_broken_new_pods_hold_the_other_role_and_ready_says_what_ails_them(rolling: World) -> None:
    rolling.no_pods()
    rolling.pods("prefill", "old", 2)
    rolling.pods("prefill", rolling.digest("prefill"), status=CRASHES)
    rolling.pods("decode", "old", 3)
    decision = rolling.apply(spec("2"))
    assert steering(decision, "prefill") == (False, ONE_BY_ONE)
    assert steering(decision, "decode") == (True, ONE_BY_ONE)
    status, reason, message = ready(decision)
    assert (status, reason) == ("False", "EngineCrashing")
    assert "container engine ends (exit code 2)" in message
    assert message.endswith(
        "1 of 1 new prefill pods will not become ready by themselves, and old ones stay: apply a spec that mends them, "
        "or the last one that worked."
    )
    (event,) = stops(decision)
    assert event.warning
    assert message.endswith(event.message)
    assert not stops(rolling.decide(spec("2"), decision.plan.status.to_resource())), "it is said once"


def stops(decision: Decision) -> list[Event]:
    return [event for event in decision.plan.events if event.reason is Reason.ROLLOUT_STOPPED]


@pytest.mark.parametrize(
    ("restarts", "since", "waits"),
    [
        pytest.param(1, "2023-11-14T22:10:00Z", True, id="it crashed, and serves again for 200 seconds"),
        pytest.param(1, "2023-11-14T22:05:00Z", False, id="it crashed, and serves again for 500 seconds"),
        pytest.param(0, "2023-11-14T22:10:00Z", False, id="it has never crashed"),
    ],
)
def test_a_new_pod_that_crashed_holds_old_ones_until_it_has_served(
    rolling: World, restarts: int, since: str, waits: bool
) -> None:
    served = {"type": "Ready", "status": "True", "lastTransitionTime": since}
    status = {
        "conditions": [served],
        "containerStatuses": [{"name": "engine", "ready": True, "restartCount": restarts}],
    }
    rolling.no_pods()
    for role in ("prefill", "decode"):
        rolling.pods(role, "old", 2)
        rolling.pods(role, rolling.digest(role), status=status if role == "prefill" else SERVES)
    decision = rolling.apply(spec("2"))
    assert [steering(decision, role)[0] for role in ("prefill", "decode")] == [waits, waits]
    told = "1 of 1 new prefill pods crashed, and have to serve for 5 minutes first."
    assert ready(decision)[2].endswith(told) is waits
    assert not stops(decision)


@pytest.mark.parametrize(
    ("goes_by", "status", "waits"),
    [
        pytest.param("2023-11-14T22:18:20Z", SERVES, True, id="another ends, within its grace"),
        pytest.param("2023-11-14T22:13:00Z", SERVES, True, id="its grace is just over"),
        pytest.param("2023-11-14T22:00:00Z", SERVES, False, id="it hangs: its node is lost"),
        pytest.param("", {"phase": "Failed"}, False, id="it was evicted, and only its record stays"),
        pytest.param("", SERVES, False, id="nobody makes room"),
    ],
)
def test_a_pod_that_waits_for_the_accelerators_of_one_that_ends_is_in_no_trouble(
    rolling: World, goes_by: str, status: Json, waits: bool
) -> None:
    rolling.no_pods()
    rolling.pods("prefill", "old", 2)
    rolling.pods("prefill", "old", 1, status, goes_by=goes_by)
    rolling.pods("prefill", rolling.digest("prefill"), status=NOWHERE)
    rolling.pods("decode", "old", 3)
    decision = rolling.apply(spec("2"))
    assert steering(decision, "decode")[0] is not waits
    assert ("no node takes it" in ready(decision)[2]) is not waits
    assert ("The rollout has stopped" in ready(decision)[2]) is not waits


def test_a_role_that_is_scaled_meanwhile_is_held_against_its_new_size(rolling: World) -> None:
    rolling.no_pods()
    rolling.pods("prefill", rolling.digest("prefill"))
    rolling.pods("prefill", "old", 2)
    rolling.pods("decode", "old", 3)
    decision = rolling.apply(spec("2", replicas=6))
    assert steering(decision, "prefill")[0] is False, "pods are to be made, so it is not at rest"
    assert "1 of 6 new prefill pods are ready" in ready(decision)[2]


def test_a_change_of_one_role_is_not_held_by_pods_of_the_other_that_were_broken_before() -> None:
    """The fix of what ails decode may be a change of prefill alone."""
    world = World()
    world.apply(spec("1"))
    world.pods("prefill", world.digest("prefill"), 3)
    world.pods("decode", world.digest("decode"), 1, status=CRASHES)
    wanted = spec("2") | {"decode": spec("1")["decode"]}
    decisions = [world.apply(wanted), world.apply(wanted)]
    for decision in decisions:
        assert steering(decision, "prefill") == (False, ONE_BY_ONE)
        assert ready(decision)[2].endswith("The rollout goes on: 0 of 3 new prefill pods are ready.")


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        pytest.param({"type": "Progressing", "status": "True"}, "goes on", id="its controller sees progress"),
        pytest.param(
            {"type": "Progressing", "status": "False", "message": "timed out."}, "makes no progress", id="it sees none"
        ),
        pytest.param(
            {"type": "ReplicaFailure", "status": "True", "message": "quota."},
            "makes no progress",
            id="it makes none",
        ),
    ],
)
def test_a_rollout_of_which_a_controller_complains_is_not_said_to_go_on(
    rolling: World, condition: Json, told: str
) -> None:
    found = copy.deepcopy(rolling.live["Deployment", "chat-prefill"])
    found |= {"status": {"conditions": [condition]}, "metadata": found["metadata"] | LATER}
    rolling.cluster.children["Deployment"].put(ChildRecord.of(found))
    message = ready(rolling.decide(spec("2")))[2]
    assert message.endswith(f"The rollout {told}: 0 of 3 new prefill pods are ready, 0 of 3 new decode pods are ready.")


LOADS: Json = {}
NO_IMAGE: Json = {
    "containerStatuses": [{"name": "engine", "image": "e:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]
}


@pytest.mark.parametrize(
    ("mixed", "prefill", "decode", "kept"),
    [
        pytest.param(SERVES, SERVES, LOADS, True, id="those in its place load their model"),
        pytest.param(SERVES, SERVES, NO_IMAGE, True, id="they will never serve"),
        pytest.param(SERVES, SERVES, NOWHERE, False, id="they have no room, which it makes"),
        pytest.param(SERVES, SERVES, SERVES, False, id="they serve"),
        pytest.param(LOADS, LOADS, LOADS, False, id="it does not serve itself"),
    ],
)
def test_a_role_that_is_taken_out_serves_until_those_in_its_place_do(
    mixed: Json, prefill: Json, decode: Json, kept: bool
) -> None:
    world = World()
    role = {"replicas": 2}
    base = {"model": {"servedName": "chat"}, "engine": {"type": "Simulator"}}
    world.apply(base | {"mixed": role})
    world.pods("mixed", world.digest("mixed"), 2, mixed)
    apart = base | {"prefill": role, "decode": role}
    assert world.apply(apart).leaving.kept is (mixed is SERVES), "before any pod of the others is made"
    world.pods("prefill", world.digest("prefill"), 2, prefill)
    world.pods("decode", world.digest("decode"), 2, decode)
    decision = world.decide(apart)
    assert decision.leaving.kept_roles == ({"mixed"} if kept else frozenset())
    assert decision.leaving.going == ({} if kept else {"mixed": 2})
    told = "Pods that the spec has no more serve until these do: 2 of mixed."
    assert ready(decision)[2].endswith(told) is kept


@pytest.mark.parametrize(("ours", "told"), [(False, True), (True, False)], ids=["by somebody", "by the operator"])
def test_a_deployment_that_somebody_has_paused_is_told_while_it_rolls(rolling: World, ours: bool, told: bool) -> None:
    found = copy.deepcopy(rolling.live["Deployment", "chat-prefill"])
    found["spec"]["paused"] = True
    found["metadata"]["managedFields"][0]["fieldsV1"] |= {"f:spec": {"f:paused": {}} if ours else {}}
    rolling.cluster.children["Deployment"].put(ChildRecord.of(found | {"metadata": found["metadata"] | LATER}))
    message = ready(rolling.decide(spec("2")))[2]
    sentence = " Somebody has paused chat-prefill, where nothing is replaced until: kubectl rollout resume deployment/"
    assert (f"{sentence}chat-prefill." in message) is told


def test_groups_are_held_by_their_partition() -> None:
    world = World()
    model = {"servedName": "chat", "source": {"hub": {"repo": "owner/model"}}}
    grouped = {"engine": {"type": "VLLM", "version": "0.33.0"}, "model": model}
    role = {"replicas": 4, "nodesPerReplica": 2}

    def wanted(length: str) -> Json:
        part = role | {"args": ["--max-model-len", length]}
        return grouped | {"prefill": part, "decode": part}

    def configuration(decision: Decision) -> Json:
        (found,) = (each for each in decision.objects if each["metadata"]["name"] == "chat-prefill-group")
        return dict(found["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"])

    assert configuration(world.apply(wanted("1"))) == {"partition": 0, "maxSurge": 1, "maxUnavailable": 0}
    (found,) = (each for each in world.live.values() if each["metadata"]["name"] == "chat-prefill-group")
    digest = found["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["metadata"]["annotations"][DIGEST]
    for name in ("prefill", "decode"):
        world.pods(name, digest, 4)
    assert configuration(world.apply(wanted("2"))) == {"partition": 3, "maxSurge": 1, "maxUnavailable": 0}


def without_digest(found: Json) -> Json:
    """A workload as a release without digests made it."""
    bare = copy.deepcopy(found)
    del bare["spec"]["template"]["metadata"]["annotations"]
    revision = json.loads(bare["metadata"]["annotations"][REVISION])
    del revision["template"]["metadata"]["annotations"]
    bare["metadata"]["annotations"][REVISION] = json.dumps(revision, sort_keys=True, separators=(",", ":"))
    return bare


@pytest.mark.parametrize("forget", [False, True], ids=["its revision is known", "its revision is not known"])
def test_a_fleet_of_an_earlier_release_is_not_restarted_by_the_upgrade_and_rolls_with_the_next_change(
    forget: bool,
) -> None:
    world = World()
    world.apply(spec("1"))
    earlier = {key: without_digest(each) for key, each in world.live.items() if key[0] == "Deployment"}
    for each in copy.deepcopy(list(earlier.values())):
        world.know(each, forget_revision=forget)
    for role in ("prefill", "decode"):
        world.pods(role, "", 3)

    decision = world.apply(spec("1"))
    for role in ("prefill", "decode"):
        assert deployment(decision, role)["template"] == earlier["Deployment", f"chat-{role}"]["spec"]["template"]
        assert steering(decision, role) == (False, ONE_BY_ONE)
    assert not any(restart.what for restart in decision.restarts)
    assert not decision.waits, "the digest alone is nothing that waits"

    decision = world.apply(spec("2"))
    (paths, _) = ([str(each.path) for each in restart.what] for restart in decision.restarts)
    assert paths == ["spec.containers[engine].env[REVISION].value"], "of the digest nothing is said"
    assert "0 of 3 new prefill pods are ready" in ready(decision)[2]
    assert len(world.digest("prefill")) == 16


def test_a_change_of_the_source_that_changes_no_template_restarts_no_pod_of_an_earlier_release() -> None:
    world = World()
    world.apply(spec("1"))
    earlier = {key: without_digest(each) for key, each in world.live.items() if key[0] == "Deployment"}
    for each in copy.deepcopy(list(earlier.values())):
        world.know(each)
    decision = world.apply(spec("1") | {"runtime": {"image": "runtime:1"}})
    for role in ("prefill", "decode"):
        assert deployment(decision, role)["template"] == earlier["Deployment", f"chat-{role}"]["spec"]["template"]


def test_the_same_template_has_the_same_digest_so_a_rollback_finds_its_pods(rolling: World) -> None:
    second = rolling.digest("prefill")
    rolling.apply(spec("1"))
    assert rolling.digest("prefill") != second
    rolling.apply(spec("2"))
    assert rolling.digest("prefill") == second


def test_what_a_change_is_said_to_be_does_not_speak_of_the_digest(rolling: World) -> None:
    before = by_key(copy.deepcopy(list(rolling.live.values())))
    after = by_key(rolling.decide(spec("3")).objects)
    found = compare_objects(before, after, {("Deployment", "chat-prefill"): 3})
    (change,) = (each for each in found if each.name == "chat-prefill" and each.kind == "Deployment")
    assert change.replaced == 3
    assert not any("template" in str(field) and DIGEST in str(field) for field in change.fields)


@pytest.mark.parametrize(
    ("paused", "stuck"),
    [
        pytest.param(True, None, id="a paused Deployment says what it said before it was paused"),
        pytest.param(False, "ReplicaSet has timed out progressing.", id="one that goes on is stuck"),
    ],
)
def test_a_closed_gate_is_not_stuck(paused: bool, stuck: str | None) -> None:
    conditions = [{"type": "Progressing", "status": "False", "message": "ReplicaSet has timed out progressing."}]
    metadata = {"name": "d", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
    found = {"metadata": metadata, "spec": {"paused": paused}, "status": {"conditions": conditions}}
    assert ChildRecord.of(found).stuck == stuck


@pytest.mark.parametrize("nodes", [1, 2], ids=["pods", "groups"])
def test_a_comparison_leaves_out_how_far_a_rollout_may_go_at_this_moment(nodes: int) -> None:
    """So what stands there and what would be applied are compared as they are while nothing rolls."""
    given = {"replicas": 3, "nodesPerReplica": nodes, "rollout": {"maxSurge": "50%", "maxUnavailable": 2}}
    model = {"servedName": "chat", "source": {"hub": {"repo": "owner/model"}}}
    parsed = parse_spec({"model": model, "engine": {"type": "VLLM", "version": "0.33.0"}, "mixed": given})
    rendered = render_fleet(
        PolicyObject("chat", "ns"), parsed, RuntimePolicy(generation=1), InstallationDefaults("r:1")
    )
    pods = {"mixed": RolePods(wanted=3, old_ready=3)}
    gated = with_gates(rendered, {"mixed": Gate(False, 1, 0, 1, waits=True)}, pods)
    assert gated != rendered
    assert [without_gate(each, parsed) for each in gated] == rendered
