"""Which pods of a role that becomes smaller go first: what they say of themselves, and when it is written."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from prefleet_operator.adapters.kube import PODS, Object, RefusedError, Resource
from prefleet_operator.adapters.metrics_source import FleetReading
from prefleet_operator.api import Role
from prefleet_operator.app.records import PodRecord
from prefleet_operator.core.deletion_cost import HIGHEST, CostedPod, deletion_costs, falling_roles
from prefleet_operator.core.observed import Missing, Reading, Sample, Stale

from tests.support.reconciling import NOW, World

PREFILL, DECODE = Role.PREFILL, Role.DECODE
COST = "controller.kubernetes.io/pod-deletion-cost"


@pytest.mark.parametrize(
    ("asked", "live", "falling"),
    [
        pytest.param({PREFILL: 1, DECODE: 2}, {PREFILL: 2, DECODE: 2}, {PREFILL}, id="fewer than before"),
        pytest.param({PREFILL: 3}, {PREFILL: 2}, set(), id="more than before"),
        pytest.param({PREFILL: 1}, {}, set(), id="a role that has no workload yet"),
        pytest.param({}, {PREFILL: 2}, set(), id="a role that nobody asks for goes as a whole"),
    ],
)
def test_a_role_falls_where_fewer_are_asked_for(
    asked: dict[Role, int], live: dict[Role, int], falling: set[Role]
) -> None:
    assert falling_roles(asked, live) == falling


@pytest.mark.parametrize(
    ("said", "load", "written"),
    [
        pytest.param(None, Sample(3.0, 0.0), 3, id="its load"),
        pytest.param(None, Sample(0.0, 0.0), 0, id="an idle pod, of which nothing was said"),
        pytest.param(3, Sample(3.0, 0.0), None, id="what it says already"),
        pytest.param(3, Sample(4.0, 0.0), 4, id="what it said before has changed"),
        pytest.param(3, Stale(4.0, 0.0), None, id="a load of some time ago"),
        pytest.param(3, Missing("it does not answer"), None, id="no load"),
        pytest.param(3, None, None, id="a pod that nobody asked"),
        pytest.param(None, Sample(1e12, 0.0), HIGHEST, id="more than fits"),
    ],
)
def test_a_pod_says_its_load_where_that_is_known_and_new(
    said: int | None, load: Reading[float] | None, written: int | None
) -> None:
    loads = {} if load is None else {"a": load}
    pods = [CostedPod("a", PREFILL, said), CostedPod("other", DECODE)]
    wanted = {} if written is None else {"a": written}
    assert deletion_costs(pods, loads | {"other": Sample(9.0, 0.0)}, frozenset({PREFILL})) == wanted


@pytest.fixture
async def world() -> World:
    """A fleet of two prefill pods under load, and one decode pod."""
    world = World()
    world.api.add_policy(prefill={"replicas": 2})
    world.watch()
    await world.turn()
    for number, (name, role) in enumerate((("a", "prefill"), ("b", "prefill"), ("c", "decode"))):
        labels = {"prefleet.dev/fleet": "chat", "prefleet.dev/role": role}
        metadata = {"namespace": "ns", "name": name, "uid": f"p{number}", "resourceVersion": "9", "labels": labels}
        annotations = {"prefleet.dev/policy-generation": "1"}
        pod = {"metadata": metadata | {"annotations": annotations}, "status": {}}
        world.api.objects[("pods", name)] = pod
        world.cluster.pods.put(PodRecord.of(copy.deepcopy(pod)))
    loads: dict[str, Reading[float]] = {"a": Sample(7.0, NOW), "b": Sample(2.0, NOW), "c": Sample(5.0, NOW)}
    world.readings.put("uid-chat", FleetReading(pod_loads=loads), NOW)
    return world


def ask(world: World, replicas: int) -> None:
    policy = world.api.objects[("prefillpolicies", "chat")]
    policy["spec"]["prefill"] = {"replicas": replicas}
    policy["metadata"]["generation"] += 1
    world.api._put("prefillpolicies", policy)
    world.watch()


def costs(world: World) -> dict[str, Any]:
    pods = {name: pod for (kind, name), pod in world.api.objects.items() if kind == "pods"}
    return {name: pod["metadata"]["annotations"].get(COST) for name, pod in pods.items()}


async def test_the_pods_say_what_they_cost_before_their_role_becomes_smaller(world: World) -> None:
    ask(world, 1)
    written = await world.turn()
    assert costs(world) == {"a": "7", "b": "2", "c": None}
    smaller = written.index("apply Deployment chat-prefill")
    assert all(written.index(f"patch pods {name} None") < smaller for name in ("a", "b"))
    world.rewatch()
    assert await world.turn() == []


@pytest.mark.parametrize("replicas", [2, 3])
async def test_nothing_is_written_to_pods_of_a_role_that_does_not_become_smaller(world: World, replicas: int) -> None:
    ask(world, replicas)
    await world.turn()
    assert costs(world) == {"a": None, "b": None, "c": None}


async def test_a_pod_that_is_gone_by_then_stops_nothing(world: World) -> None:
    del world.api.objects[("pods", "a")]
    ask(world, 1)
    assert "apply Deployment chat-prefill" in await world.turn()
    assert costs(world) == {"b": "2", "c": None}


async def test_pods_that_may_not_be_written_to_keep_no_role_from_becoming_smaller(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = world.api.merge_patch

    async def refuse_pods(resource: Resource, *others: Any) -> Object:
        if resource == PODS:
            raise RefusedError("admission webhook denied the request")
        return await patch(resource, *others)

    monkeypatch.setattr(world.api, "merge_patch", refuse_pods)
    ask(world, 1)
    assert "apply Deployment chat-prefill" in await world.turn()
