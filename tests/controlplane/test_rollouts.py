"""Rollouts of prefill and decode together, on Kubernetes' own controllers, with pods of the simulated engine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pytest

from tests.support.installation import Fleet, OperatorProcess
from tests.support.node_agent.launch import start_agent
from tests.support.plane.plane import ControlPlane
from tests.support.pod_watch import PodWatch, SeenPod, is_ready
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]
State = Mapping[str, SeenPod]

REPLICAS = 3
ROLES = ("prefill", "decode")
ONE_BY_ONE = {"maxSurge": 0, "maxUnavailable": 1}
BY_SURGE = {"maxSurge": 1, "maxUnavailable": 0}
MOMENT = 3
"""Changes of any pod that are seen between two controllers' writes for one decision."""
ROLLED_S = 120


@pytest.fixture(scope="module", autouse=True)
def agent(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    handle = start_agent(plane, tmp_path_factory.mktemp("agent"), name="rollouts")
    yield
    handle.leave()


def spec(revision: str, rollout: Json = ONE_BY_ONE, **prefill: Any) -> Json:
    """A fleet that rolls as one with scarce accelerators does; another `revision` needs other pods."""
    role = {"replicas": REPLICAS, "rollout": rollout, "env": [{"name": "REVISION", "value": revision}]}
    return {"prefill": role | prefill, "decode": role}


def deployment(fleet: Fleet, role: str) -> Json:
    found = fleet.get("deployment", f"chat-{role}")
    assert found is not None
    return found


def digests(fleet: Fleet) -> dict[str, str]:
    """By role, what new pods are told by."""
    return {
        role: deployment(fleet, role)["spec"]["template"]["metadata"]["annotations"]["prefleet.dev/template"]
        for role in ROLES
    }


def revisions(fleet: Fleet, ready: bool = True) -> list[tuple[str, str]]:
    """Role and revision of each pod that is there to stay, and (`ready`) serves."""
    return sorted(
        (pod["metadata"]["labels"]["prefleet.dev/role"], _env(pod)["REVISION"])
        for pod in fleet.pods()
        if not ready or is_ready(pod)
    )


def _env(pod: Json) -> dict[str, str]:
    engine = pod["spec"]["containers"][0]
    return {each["name"]: each.get("value", "") for each in engine["env"]}


def await_revision(fleet: Fleet, revision: str, rollout: Json = ONE_BY_ONE) -> None:
    """Wait until exactly the pods of that revision are there, and serve, and nothing is steered any more."""
    wanted = sorted((role, revision) for role in ROLES for _ in range(REPLICAS))
    eventually(lambda: revisions(fleet, ready=False) == wanted == revisions(fleet), ROLLED_S, 0.5)
    eventually(lambda: _is_done(fleet.condition("Ready")), 20)
    for role in ROLES:
        found = deployment(fleet, role)["spec"]
        assert "paused" not in found
        assert found["strategy"]["rollingUpdate"] == rollout


def _is_done(ready: Json) -> bool:
    return ready["status"] == "True" and "rollout" not in ready["message"]


def counts(state: State, new: Mapping[str, str]) -> Mapping[str, tuple[int, int, int]]:
    """By role: pods that serve, new pods, and new pods that serve."""
    return {
        role: (
            sum(pod.ready for pod in state.values() if pod.role == role),
            sum(pod.template == digest for pod in state.values() if pod.role == role),
            sum(pod.template == digest and pod.ready for pod in state.values() if pod.role == role),
        )
        for role, digest in new.items()
    }


def check_serving(states: Sequence[State], new: Mapping[str, str], rollout: Json = ONE_BY_ONE) -> None:
    """At every step one pod of a role is missing at most, and none by surge; so the ratio of both stays within that.

    A Deployment bounds the sum of what its ReplicaSets ask for. They are followed each by itself, so that a pod may be
    made just before the one in whose place it comes is deleted: more than the bound are seen, for a moment alone.
    """
    for state in states:
        seen = counts(state, new)
        assert all(ready >= REPLICAS - rollout["maxUnavailable"] for ready, _, _ in seen.values()), seen
    too_many = groupby(states, key=lambda state: len(state) > 2 * (REPLICAS + rollout["maxSurge"]))
    assert all(len(list(run)) <= MOMENT for over, run in too_many if over), "more pods than the bound"


def check_in_step(states: Sequence[State], new: Mapping[str, str]) -> None:
    """At every step no role has made more than one new pod beyond those with which the other serves."""
    for state in states:
        (_, prefill, prefill_ready), (_, decode, decode_ready) = counts(state, new).values()
        assert prefill <= decode_ready + 1, counts(state, new)
        assert decode <= prefill_ready + 1, counts(state, new)


def says(fleet: Fleet, words: str) -> Callable[[], str]:
    def look() -> str:
        message = str(fleet.condition("Ready").get("message", ""))
        return message if words in message else ""

    return look


@pytest.mark.parametrize("rollout", [ONE_BY_ONE, BY_SURGE], ids=["one by one", "by surge"])
def test_both_roles_roll_together_and_are_in_step_at_every_moment(
    fleet: Fleet, module_operator: OperatorProcess, rollout: Json
) -> None:
    fleet.apply(**spec("1", rollout))
    await_revision(fleet, "1", rollout)
    with PodWatch(fleet.plane, fleet.namespace) as watch:
        eventually(lambda: len(watch.states) >= 2 * REPLICAS, 20)
        begun = len(watch.states) - 1
        fleet.apply(**spec("2", rollout))
        told = eventually(says(fleet, "The rollout goes on: "), 60, 0.1)
        await_revision(fleet, "2", rollout)
        new = digests(fleet)
    states = watch.states[begun:]
    assert f"of {REPLICAS} new prefill pods are ready" in told
    check_serving(states, new, rollout)
    check_in_step(states, new)
    made = {pod for state in states for pod in state.values() if pod.template in new.values()}
    assert len({pod.name for pod in made}) == 2 * REPLICAS, "no pod was made in vain"


def test_broken_new_pods_stop_both_roles_and_the_next_good_spec_goes_through(
    fleet: Fleet, module_operator: OperatorProcess
) -> None:
    fleet.apply(**spec("1"))
    await_revision(fleet, "1")
    with PodWatch(fleet.plane, fleet.namespace) as watch:
        eventually(lambda: len(watch.states) >= 2 * REPLICAS, 20)
        fleet.apply(**spec("2", args=["--no-such-argument"]))
        told = eventually(says(fleet, "The rollout has stopped"), 60)
        assert "1 of 1 new prefill pods will not become ready by themselves, and old ones stay" in told
        assert fleet.condition("Ready")["reason"] == "EngineCrashing"
        # Decode may end what it had begun, and no more.
        eventually(lambda: "decode" in _paused(fleet), 40)
        before = {pod["metadata"]["name"] for pod in fleet.pods()}
        module_operator.await_turns()
        assert {pod["metadata"]["name"] for pod in fleet.pods()} == before
        assert revisions(fleet).count(("prefill", "1")) == REPLICAS - 1
        assert "prefill" not in _paused(fleet), "what is stuck must go on saying so"
        fleet.apply(**spec("3"))
        await_revision(fleet, "3")
        new = digests(fleet)
    check_serving(watch.states[2 * REPLICAS :], new)


def test_a_role_that_is_taken_out_serves_until_those_in_its_place_do(
    fleet: Fleet, module_operator: OperatorProcess
) -> None:
    fleet.apply(mixed=spec("1")["decode"])
    mixed = [("mixed", "1")] * REPLICAS
    eventually(lambda: revisions(fleet) == mixed, ROLLED_S, 0.5)
    with PodWatch(fleet.plane, fleet.namespace) as watch:
        eventually(lambda: len(watch.states) >= REPLICAS, 20)
        begun = len(watch.states) - 1
        fleet.apply(**spec("2", args=["--no-such-argument"]))
        eventually(says(fleet, f"Pods that the spec has no more serve until these do: {REPLICAS} of mixed."), 60)
        eventually(lambda: fleet.condition("Ready")["reason"] == "EngineCrashing", 60)
        assert [pod for pod in revisions(fleet) if pod[0] == "mixed"] == mixed
        fleet.apply(**spec("3"))
        await_revision(fleet, "3")
        assert fleet.get("deployment", "chat-mixed") is None
    serving = [sum(pod.ready for pod in state.values()) for state in watch.states[begun:]]
    assert min(serving) >= REPLICAS


@pytest.mark.parametrize("killed", [False, True], ids=["while it runs", "while no operator runs"])
def test_a_policy_that_goes_in_the_middle_and_leaves_its_fleet_leaves_no_role_paused(
    fleet: Fleet, module_operator: OperatorProcess, killed: bool
) -> None:
    fleet.apply(**spec("1"))
    await_revision(fleet, "1")
    fleet.apply(**spec("2", args=["--no-such-argument"]))
    eventually(lambda: _paused(fleet) == ["decode"], 60)
    if killed:
        module_operator.kill()
    fleet.plane.kubectl("delete", "prefillpolicy", "chat", "-n", fleet.namespace, "--cascade=orphan")
    if killed:
        module_operator.start()
    eventually(lambda: not _paused(fleet), 30)
    assert revisions(fleet).count(("prefill", "1")) == REPLICAS - 1, "it goes on by itself, and as safely"


def _paused(fleet: Fleet) -> list[str]:
    return [role for role in ROLES if deployment(fleet, role)["spec"].get("paused")]


def test_a_broken_old_revision_blocks_nothing_and_a_rollback_is_the_old_spec(
    fleet: Fleet, module_operator: OperatorProcess
) -> None:
    fleet.apply(**spec("1", args=["--no-such-argument"]))
    eventually(lambda: fleet.condition("Ready").get("reason") == "EngineCrashing", 60)
    fleet.apply(**spec("2"))
    eventually(lambda: revisions(fleet, ready=False).count(("prefill", "1")) == 0, 30)
    await_revision(fleet, "2")
    pods = {pod["metadata"]["name"] for pod in fleet.pods()}
    fleet.apply(**spec("3"))
    eventually(lambda: any(revision == "3" for _, revision in revisions(fleet, ready=False)), 30)
    fleet.apply(**spec("2"))
    await_revision(fleet, "2")
    assert pods & {pod["metadata"]["name"] for pod in fleet.pods()}, "those that were left went on"


def test_an_operator_that_is_killed_again_and_again_converges_to_the_same_end(
    fleet: Fleet, module_operator: OperatorProcess
) -> None:
    source = random.Random(8)
    fleet.apply(**spec("1"))
    await_revision(fleet, "1")
    with PodWatch(fleet.plane, fleet.namespace) as watch:
        eventually(lambda: len(watch.states) >= 2 * REPLICAS, 20)
        begun = len(watch.states) - 1
        fleet.apply(**spec("2"))
        for _ in range(6):
            time.sleep(source.uniform(0, 4))
            module_operator.kill()
            module_operator.start()
        await_revision(fleet, "2")
        new = digests(fleet)
    check_serving(watch.states[begun:], new)
