"""Events: that a failure that repeats for long makes few of them, over an API in memory."""

from __future__ import annotations

from typing import Any, cast

import pytest
from prefleet_operator.adapters.events import BURST, REFILL_S, Recorder, event_name
from prefleet_operator.adapters.kube import ConflictError, Kube, Resource
from prefleet_operator.core.events import Event
from prefleet_operator.core.reasons import Reason

Json = dict[str, Any]


class MemoryEvents:
    """The two calls that a recorder makes."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.writes = 0

    async def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        self.writes += 1
        name = body["metadata"]["name"]
        if name in self.notes:
            raise ConflictError("it exists")
        self.notes[name] = body["note"]
        return body

    async def merge_patch(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        self.writes += 1
        self.counts[name] = patch["series"]["count"]
        return patch


class World:
    """A recorder, its API and its clock."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.api = MemoryEvents()
        self.restart()

    def restart(self) -> None:
        self.recorder = Recorder(cast(Kube, self.api), "test", lambda: self.now)

    async def tell(self, message: str, warning: bool = True, policy: str = "chat") -> None:
        event = Event(Reason.ENGINE_CRASHING, message, warning)
        await self.recorder.record("ns", policy, f"uid-{policy}", event)


@pytest.fixture
def world() -> World:
    return World()


async def test_a_failure_that_repeats_all_day_is_one_event_that_counts(world: World) -> None:
    for turn in range(24 * 360):
        await world.tell(f"attempt {turn} of chat-mixed-7d4b9c6f5d-{'bcdfg' if turn % 2 else 'x2z4w'} failed")
        world.now += 10
    assert len(world.api.notes) == 1
    assert world.api.writes <= 1 + 24 * 60
    (count,) = world.api.counts.values()
    assert count > 24 * 350


async def test_news_that_never_ends_is_bounded(world: World) -> None:
    hours = 24
    for turn in range(hours * 360):
        await world.tell(f"generation {turn}", warning=False)
        world.now += 10
    assert BURST < len(world.api.notes) <= BURST + hours * 3600 / REFILL_S


async def test_one_noisy_fleet_takes_no_event_from_another(world: World) -> None:
    for turn in range(10 * BURST):
        await world.tell(f"generation {turn}", warning=False)
    assert len(world.api.notes) == BURST
    await world.tell("generation 1", warning=False, policy="other")
    assert len(world.api.notes) == BURST + 1


async def test_no_news_takes_the_event_of_a_warning(world: World) -> None:
    """A fleet that is scaled all day has much to tell; that its engine crashes must not be lost among it."""
    for turn in range(10 * BURST):
        await world.tell(f"All {turn} ready pods report generation 1.", warning=False)
    await world.tell("the engine ends")
    assert "the engine ends" in world.api.notes.values()


async def test_another_operator_counts_on_in_the_same_event(world: World) -> None:
    await world.tell("it fails")
    world.restart()
    await world.tell("it fails")
    assert len(world.api.notes) == 1
    assert list(world.api.counts.values()) == [2]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param("x" * 1024, id="as long as it may be"),
        pytest.param("x" * 5000, id="too long"),
        pytest.param("no model at /模型/" + "千問" * 300, id="characters of several bytes"),
        pytest.param("🙂" * 300, id="of four"),
    ],
)
async def test_a_note_holds_what_an_api_server_takes(world: World, message: str) -> None:
    """It counts bytes, and refuses the whole Event for one too many."""
    await world.tell(message)
    (note,) = world.api.notes.values()
    assert len(note.encode()) <= 1024
    assert note == message or (note.endswith("...") and message.startswith(note.removesuffix("...")))


def test_pods_that_are_made_anew_fail_alike() -> None:
    first, second = (
        Event(Reason.ENGINE_CRASHING, f"pod chat-prefill-{suffix}: it ends", warning=True)
        for suffix in ("7d4b9c6f5d-x2z4w", "6c8d5f7b9-bcdfg")
    )
    assert event_name("chat", "u", first) == event_name("chat", "u", second)
