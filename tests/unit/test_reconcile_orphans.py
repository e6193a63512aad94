"""A policy that is deleted in the middle of a rollout and leaves its objects behind leaves none of them paused."""

from __future__ import annotations

import pytest
from prefleet_operator.adapters.kube import ConflictError, Object
from prefleet_operator.app.workqueue import WorkFailedError

from tests.support.reconciling import World

PREFILL = ("deployments", "chat-prefill")


async def paused(by_the_operator: bool, owned: bool) -> World:
    """A fleet with a paused Deployment, whose policy has just gone."""
    world = World()
    world.api.add_policy()
    world.watch()
    await world.turn()
    found = world.api.objects[PREFILL]
    found["spec"]["paused"] = True
    if by_the_operator:
        found["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"] = {"f:paused": {}}
    if not owned:
        del found["metadata"]["ownerReferences"]
    found["metadata"]["resourceVersion"] = "1000"
    world.api.version = 1000
    world.rewatch()
    del world.api.objects[("prefillpolicies", "chat")]
    world.policies.drop(("ns", "chat"), "uid-chat")
    return world


def spec(world: World) -> Object:
    found: Object = world.api.objects[PREFILL]["spec"]
    return found


@pytest.mark.parametrize(
    ("by_the_operator", "owned", "resumed"),
    [
        pytest.param(True, False, True, id="what a gate has paused and the policy has left goes on by itself"),
        pytest.param(True, True, False, id="what goes with the policy is left alone"),
        pytest.param(False, False, False, id="what somebody else has paused stays so"),
    ],
)
async def test_what_stays_is_not_left_paused(by_the_operator: bool, owned: bool, resumed: bool) -> None:
    world = await paused(by_the_operator, owned)
    written = await world.turn()
    assert written == (["patch deployments chat-prefill None"] if resumed else [])
    assert spec(world).get("paused") is (None if resumed else True)
    assert await world.turn() == []


async def test_one_that_cannot_be_resumed_is_tried_again() -> None:
    world = await paused(by_the_operator=True, owned=False)
    world.api.fault = (len(world.api.writes) + 1, ConflictError("modified"))
    with pytest.raises(WorkFailedError):
        await world.turn()
    assert await world.turn() == ["patch deployments chat-prefill None"]
    assert "paused" not in spec(world)
