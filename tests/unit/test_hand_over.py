"""Replicas handed over between the spec, Direct, an HPA and KEDA: over an API in memory that keeps field owners."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
from prefleet_operator.adapters.kube import RESOURCES_BY_KIND, Kube, Object, RefusedError, Resource
from prefleet_operator.api import PolicyDocument, Role, parse_spec
from prefleet_operator.app.preview import Installed, preview
from prefleet_operator.app.reconcile import Outcome
from prefleet_operator.app.workqueue import WorkFailedError
from prefleet_operator.render import FIELD_MANAGER, SCALE_MANAGER, release_replicas

from tests.support.reconciling import Killed, MemoryApi, World
from tests.support.rendering import SIMULATOR, VLLM, render

WORKLOADS = {RESOURCES_BY_KIND[kind].plural for kind in ("Deployment", "LeaderWorkerSet")}
BOUNDS = {"minReplicas": 2, "maxReplicas": 6}
BOTH: dict[str, Any] = {"prefill": BOUNDS, "decode": {"maxReplicas": 6}}


class OwningApi(MemoryApi):
    """Keeps, as the API server does, who applied `spec.replicas` of a workload: it falls to 1 once nobody does.

    `counts`: what each workload had after each write of it. `meanwhile`: happens before the next hand-over is written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.owners: dict[str, set[str]] = {}
        self.counts: dict[str, list[int]] = {}
        self.meanwhile: Callable[[], None] | None = None

    async def apply(self, resource: Resource, desired: Object, manager: str = FIELD_MANAGER) -> Object:
        name = desired["metadata"]["name"]
        if resource.plural not in WORKLOADS:
            return await super().apply(resource, desired)
        if manager == SCALE_MANAGER and self.meanwhile is not None:
            self.meanwhile()
            self.meanwhile = None
        live = self.objects.get((resource.plural, name))
        self._check(live, desired)
        before = None if live is None else live["spec"]["replicas"]
        owners = self.owners.setdefault(name, set())
        given = desired["spec"].get("replicas")
        if given is None:
            owners.discard(manager)
        elif given == before:
            owners.add(manager)
        else:
            self.owners[name] = owners = {manager}
        count = given if given is not None else (before if owners else 1)
        whole = copy.deepcopy(desired if manager == FIELD_MANAGER else live)
        assert whole is not None
        whole["spec"]["replicas"] = count
        return self._keep(resource.plural, name, whole, f"apply {desired['kind']} {name} by {manager}")

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, patch: Object, subresource: str | None = None
    ) -> Object:
        if subresource != "scale":
            return await super().merge_patch(resource, namespace, name, patch, subresource)
        return self.scale(resource.plural, name, patch["spec"]["replicas"])

    def scale(self, plural: str, name: str, count: int, by: str = "someone") -> Object:
        """What anybody does by the scale subresource: a new count takes the field from all that applied it."""
        whole = copy.deepcopy(self.objects[(plural, name)])
        if whole["spec"]["replicas"] != count:
            self.owners[name] = {by}
        whole["spec"]["replicas"] = count
        return self._keep(plural, name, whole, f"scale {name} to {count}")

    def _keep(self, plural: str, name: str, whole: Object, told: str) -> Object:
        owned = {"f:replicas": {}} if FIELD_MANAGER in self.owners[name] else {}
        managed = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {"f:template": {}, **owned}}}
        whole["metadata"] |= {"uid": f"uid-{name}", "managedFields": [managed]}
        answer = copy.deepcopy(self._put(plural, whole))
        self.counts.setdefault(name, []).append(whole["spec"]["replicas"])
        self._wrote(told)
        return answer


class ScaledWorld(World):
    """A reconciler over an API that keeps owners."""

    api: OwningApi

    def __init__(self, **spec: Any) -> None:
        super().__init__()
        self.api = OwningApi()
        self.prometheus = {"cluster": "http://prometheus:9090"}
        self.restart()
        self.api.add_policy(**spec)
        self.watch()

    def change(self, **spec: Any) -> None:
        """The user applies another spec."""
        policy = self.api.objects[("prefillpolicies", "chat")]
        policy["spec"] = {key: value for key, value in (policy["spec"] | spec).items() if value is not None}
        policy["metadata"]["generation"] += 1
        self.api._put("prefillpolicies", policy)
        self.watch()

    async def settle(self) -> None:
        """Turns until nothing is written any more, everything that was written being heard of."""
        while await self.turn():
            self.rewatch()

    def count(self, role: str) -> int:
        return int(self.api.objects[("deployments", f"chat-{role}")]["spec"]["replicas"])

    def actuators(self) -> set[tuple[str, str]]:
        plurals = {RESOURCES_BY_KIND[kind].plural for kind in ("HorizontalPodAutoscaler", "ScaledObject")}
        return {key for key in self.api.objects if key[0] in plurals}


async def running(**spec: Any) -> ScaledWorld:
    """A fleet of four prefill pods that has been there for a while."""
    world = ScaledWorld(**({"prefill": {"replicas": 4}} | spec))
    await world.settle()
    world.api.counts.clear()
    world.api.writes.clear()
    return world


SWITCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "autoscaling is switched on": ({}, {"autoscaling": BOTH}),
    "it is switched on with other replicas": ({}, {"autoscaling": BOTH, "prefill": {"replicas": 1}}),
    "it is switched on with an HPA": ({}, {"autoscaling": {**BOTH, "actuator": "HPA"}}),
    "an HPA takes over": ({"autoscaling": BOTH}, {"autoscaling": {**BOTH, "actuator": "HPA"}}),
    "the operator takes over": ({"autoscaling": {**BOTH, "actuator": "HPA"}}, {"autoscaling": BOTH}),
    "KEDA takes over": (
        {"autoscaling": {**BOTH, "actuator": "HPA"}, "metricsSource": "cluster"},
        {"autoscaling": {**BOTH, "actuator": "KEDA"}},
    ),
    "it is switched off at the spec's count": ({"autoscaling": BOTH}, {"autoscaling": None}),
}


@pytest.mark.parametrize("case", SWITCHES)
async def test_four_stay_four_whatever_write_the_operator_is_killed_at(case: str) -> None:
    before, change = SWITCHES[case]
    number = 1
    while True:
        world = await running(**before)
        world.change(**change)
        world.api.fault = (number, Killed())
        try:
            await world.settle()
            break
        except Killed:
            world.restart()
            world.rewatch()
            world.api.fault = None
            await world.settle()
        assert set(world.api.counts.get("chat-prefill", [4])) == {4}, number
        assert world.count("prefill") == 4
        number += 1
    assert set(world.api.counts.get("chat-prefill", [4])) == {4}
    assert number > 1


async def test_the_live_count_is_applied_by_another_before_it_is_let_go_of() -> None:
    world = await running()
    world.change(autoscaling=BOTH)
    await world.settle()
    assert [each for each in world.api.writes if "chat-prefill" in each and "Deployment" in each] == [
        f"apply Deployment chat-prefill by {SCALE_MANAGER}",
        f"apply Deployment chat-prefill by {FIELD_MANAGER}",
    ]
    assert world.api.owners["chat-prefill"] == {SCALE_MANAGER}


async def test_what_another_sets_is_left_alone_and_only_said() -> None:
    world = await running(autoscaling={**BOTH, "actuator": "HPA"})
    world.api.scale("deployments", "chat-prefill", 5)
    world.rewatch()
    assert await world.turn() == ["patch prefillpolicies chat status"]
    assert await world.turn() == []
    assert world.count("prefill") == 5


async def test_a_count_that_is_set_during_the_hand_over_is_not_undone() -> None:
    world = await running()
    world.change(autoscaling=BOTH)
    world.api.meanwhile = lambda: (world.api.scale("deployments", "chat-prefill", 5), None)[1]
    with pytest.raises(WorkFailedError):
        await world.turn()
    assert world.outcomes[-1] is Outcome.FAILED
    world.rewatch()
    await world.settle()
    assert world.count("prefill") == 5
    assert set(world.api.counts["chat-prefill"]) == {5}


async def test_without_autoscaling_the_replicas_of_the_spec_count_again() -> None:
    world = await running(autoscaling=BOTH)
    world.api.scale("deployments", "chat-prefill", 6)
    world.rewatch()
    world.change(autoscaling=None, prefill={"replicas": 3})
    await world.settle()
    assert world.api.counts["chat-prefill"] == [6, 3]
    assert world.api.owners["chat-prefill"] == {FIELD_MANAGER}


@pytest.mark.parametrize(
    ("replicas", "made"), [(1, 2), (4, 4), (9, 6)], ids=["at the least", "as the spec says", "at the most"]
)
async def test_a_new_workload_starts_within_its_bounds(replicas: int, made: int) -> None:
    world = ScaledWorld(prefill={"replicas": replicas}, autoscaling=BOTH)
    await world.settle()
    assert set(world.api.counts["chat-prefill"]) == {made}
    assert world.api.owners["chat-prefill"] == {SCALE_MANAGER}


async def test_a_role_that_is_not_named_keeps_its_replicas() -> None:
    world = await running(autoscaling={"prefill": BOUNDS})
    world.api.scale("deployments", "chat-decode", 3)
    world.rewatch()
    await world.settle()
    assert world.count("decode") == 1


async def test_the_operator_scales_what_is_not_as_wanted() -> None:
    world = await running(autoscaling=BOTH)
    objects = release_replicas([*_objects(world).values()], [Role.PREFILL, Role.DECODE])
    changes = world.applier.changes("ns", "chat", objects, (), 1, {Role.PREFILL: 5, Role.DECODE: 1})
    assert changes.scales == (("Deployment", "chat-prefill", 5),)
    await world.applier.carry_out(changes)
    world.rewatch()
    assert world.count("prefill") == 5
    assert not world.applier.changes("ns", "chat", objects, (), 1, {Role.PREFILL: 5, Role.DECODE: 1}).scales


async def test_nothing_is_scaled_that_is_applied_with_its_replicas() -> None:
    world = await running()
    changes = world.applier.changes("ns", "chat", [*_objects(world).values()], (), 1, {Role.PREFILL: 5})
    assert changes.scales == ()


def _objects(world: ScaledWorld) -> dict[tuple[str, str], Object]:
    return {key: found for key, found in world.api.objects.items() if key[0] == "deployments"}


async def test_the_old_actuator_goes_before_the_new_one_comes() -> None:
    world = await running(autoscaling={**BOTH, "actuator": "HPA"}, metricsSource="cluster")
    assert world.actuators() == {
        ("horizontalpodautoscalers", "chat-prefill"),
        ("horizontalpodautoscalers", "chat-decode"),
    }
    world.change(autoscaling={**BOTH, "actuator": "KEDA"})
    await world.settle()
    order = [each.split()[0] for each in world.api.writes if "horizontal" in each or "ScaledObject" in each]
    assert order == ["delete", "delete", "apply", "apply"]
    assert world.actuators() == {("scaledobjects", "chat-prefill"), ("scaledobjects", "chat-decode")}


async def test_what_a_finalizer_holds_up_is_deleted_once() -> None:
    world = await running(autoscaling={**BOTH, "actuator": "HPA"})
    held = copy.deepcopy(world.api.objects[("horizontalpodautoscalers", "chat-prefill")])
    world.change(autoscaling=BOTH)
    await world.turn()
    held["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.api._put("horizontalpodautoscalers", held)
    world.rewatch()
    await world.settle()
    assert world.api.writes.count("delete horizontalpodautoscalers chat-prefill") == 1


async def test_a_scale_that_is_refused_is_told_with_what_was_to_be_scaled() -> None:
    world = await running(autoscaling=BOTH)

    def refuse(plural: str, name: str, count: int, by: str = "someone") -> Object:
        raise RefusedError("no right to patch the subresource scale")

    world.api.scale = refuse  # type: ignore[method-assign]
    world.change(autoscaling={"prefill": {"minReplicas": 5, "maxReplicas": 6}, "decode": {"maxReplicas": 6}})
    with pytest.raises(WorkFailedError):
        await world.turn()
    (accepted,) = [
        each
        for each in world.api.objects[("prefillpolicies", "chat")]["status"]["conditions"]
        if each["type"] == "Accepted"
    ]
    assert accepted["message"].startswith("The API server refuses to scale the Deployment chat-prefill to 5: no right")


class DryApi(OwningApi):
    """What `prefleet diff` asks for, too."""

    async def served(self, resource: Resource) -> bool:
        return True

    async def list_page(
        self, resource: Resource, namespace: str | None, selector: str, token: str = ""
    ) -> tuple[list[Object], str, str]:
        return [copy.deepcopy(each) for (plural, _), each in self.objects.items() if plural == resource.plural], "1", ""

    async def apply(
        self, resource: Resource, desired: Object, manager: str = FIELD_MANAGER, dry_run: bool = False
    ) -> Object:
        return copy.deepcopy(desired) if dry_run else await super().apply(resource, desired, manager)


async def test_a_diff_shows_the_number_that_other_bounds_would_bring() -> None:
    world = await running(autoscaling=BOTH)
    api = DryApi()
    api.objects = world.api.objects
    spec = world.api.objects[("prefillpolicies", "chat")]["spec"]
    lower = parse_spec(spec | {"autoscaling": {"prefill": {"maxReplicas": 3}, "decode": {"maxReplicas": 6}}})
    document = PolicyDocument("chat", "ns", lower)
    shown = await preview(cast(Kube, api), document, {}, Installed("runtime:1"), world.now)
    (change,) = [each for each in shown.changes if each.kind == "Deployment"]
    assert [str(field) for field in change.fields] == ["spec.replicas 4 -> 3"]


def test_replicas_are_released_for_the_roles_named_alone() -> None:
    objects = render(VLLM)
    released = release_replicas([*objects.values()], [Role.PREFILL])
    have = {each["metadata"]["name"] for each in released if "replicas" in each.get("spec", {})}
    assert have == {"chat-decode"}
    assert objects["Deployment/chat-prefill"]["spec"]["replicas"] == 2


def test_sized_roles_are_those_with_bounds() -> None:
    assert parse_spec(SIMULATOR).sized_roles() == {}
    sized = parse_spec(SIMULATOR | {"autoscaling": {"mixed": {"maxReplicas": 3}}}).sized_roles()
    assert {role: (each.min_replicas, each.max_replicas) for role, each in sized.items()} == {Role.MIXED: (1, 3)}
