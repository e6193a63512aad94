"""What is kept of watched objects: the newest of each, whatever order the news come in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
from prefleet_operator.adapters import watch
from prefleet_operator.adapters.kube import (
    LEADER_WORKER_SETS,
    PODS,
    GoneError,
    Kube,
    NotFoundError,
    Object,
    RefusedError,
    Resource,
)
from prefleet_operator.adapters.watch import Identity, OptionalWatcher, Store, Watcher


@dataclass(frozen=True)
class Thing:
    identity: Identity
    colour: str = "red"


def thing(version: int, colour: str = "red", uid: str = "u1", fleet: str = "chat", name: str = "x") -> Thing:
    return Thing(Identity("ns", name, uid, version, fleet), colour)


def store(*things: Thing) -> Store[Thing]:
    kept: Store[Thing] = Store()
    for each in things:
        kept.put(each)
    return kept


@pytest.mark.parametrize(
    ("known", "news", "changed"),
    [
        pytest.param([], thing(1), True, id="a new object is a change"),
        pytest.param([thing(1)], thing(2), False, id="a version alone is no change"),
        pytest.param([thing(1)], thing(2, "blue"), True, id="other content is"),
        pytest.param([thing(1)], thing(2, uid="u2"), True, id="so is another object of that name"),
        pytest.param([thing(5)], thing(4, "blue"), False, id="older news are ignored"),
        pytest.param([thing(5)], thing(5, "blue"), False, id="so is the echo of a write of our own"),
    ],
)
def test_putting(known: list[Thing], news: Thing, changed: bool) -> None:
    assert store(*known).put(news) is changed


def test_an_older_version_does_not_replace_a_newer_one() -> None:
    kept = store(thing(5, "blue"), thing(4, "red"))
    assert kept.get("ns", "x") == thing(5, "blue")


def test_a_deletion_that_is_older_than_the_object_is_ignored() -> None:
    kept = store(thing(7, uid="u2"))
    assert not kept.remove(thing(6).identity)
    assert kept.remove(thing(8, uid="u2").identity)
    assert kept.get("ns", "x") is None


def test_an_object_that_changes_its_fleet_is_in_one_fleet_only() -> None:
    kept = store(thing(1), thing(2, fleet="other"))
    assert kept.of("ns", "chat") == ()
    assert kept.of("ns", "other") == (thing(2, fleet="other"),)


def test_a_fleets_objects_come_in_the_order_of_their_names() -> None:
    kept = store(thing(2, name="b"), thing(1, name="a"))
    assert [each.identity.name for each in kept.of("ns", "chat")] == ["a", "b"]


async def test_an_object_that_cannot_be_read_is_passed_over_and_the_others_are_kept() -> None:
    """Anybody may write an object with the fleet's label; it must not end the watch of all the others."""

    def read(found: Object) -> Thing:
        return thing(int(found["metadata"]["resourceVersion"]), name=found["metadata"]["name"])

    class Api:
        async def list_page(self, *_: Any) -> tuple[list[Object], str, str]:
            odd, fine = ({"metadata": {"name": n, "resourceVersion": v}} for n, v in (("odd", "x"), ("fine", "3")))
            return [odd, fine], "3", ""

    kept: Store[Thing] = Store()
    watcher = Watcher(cast(Kube, Api()), PODS, None, "", read, kept, lambda *_: None)
    assert await watcher._list() == "3"
    watcher._take("ADDED", {"metadata": {"name": "odd", "resourceVersion": None}})
    assert [each.identity.name for each in kept.everything(None)] == ["fine"]


class Installations:
    """An API server that serves a kind now and then: `serves` says whether, at each time that it is asked."""

    def __init__(self, *serves: bool) -> None:
        self.serves = list(serves)
        self.items: list[Object] = [{"metadata": {"name": "x", "resourceVersion": "3"}}]

    async def served(self, _: Resource) -> bool:
        return self.serves.pop(0)

    async def list_page(self, *_: Any) -> tuple[list[Object], str, str]:
        if self.items:
            return self.items, "3", ""
        raise NotFoundError("the server could not find the requested resource")


def optional(api: Installations, kept: Store[Thing], said: list[bool]) -> OptionalWatcher[Thing]:
    def read(found: Object) -> Thing:
        return thing(int(found["metadata"]["resourceVersion"]), name=found["metadata"]["name"])

    def ignore(namespace: str, fleet: str) -> None:
        return None

    return OptionalWatcher(cast(Kube, api), LEADER_WORKER_SETS, None, "", read, kept, ignore, on_served=said.append)


async def test_a_kind_that_is_not_served_is_asked_for_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "UNSERVED_PAUSE_S", 0)
    kept, said = store(), list[bool]()
    watcher = optional(Installations(False, False, True), kept, said)
    assert await watcher._list() == "3"
    assert said == [False, False, True]
    assert len(kept.everything(None)) == 1


async def test_a_kind_that_is_taken_away_again_takes_its_objects_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "UNSERVED_PAUSE_S", 0)
    kept, said = store(thing(1)), list[bool]()
    watcher = optional(Installations(False, True), kept, said)
    waiting = watcher._list()
    assert await waiting == "3"
    assert said == [False, True]
    assert [each.identity.version for each in kept.everything(None)] == [3]


async def test_a_fleet_without_the_kind_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the operator would not begin: it begins when all of its watchers know what there is."""
    monkeypatch.setattr(watch, "UNSERVED_PAUSE_S", 0)
    watcher = optional(Installations(False, True), store(), [])
    assert not watcher.synced.is_set()
    await watcher._list()
    assert watcher.synced.is_set()


async def test_a_refusal_is_known_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[str | None] = []

    class Api:
        async def list_page(self, *_: Any) -> tuple[list[Object], str, str]:
            known.append(watcher.refused)
            if len(known) == 1:
                raise RefusedError("pods is forbidden")
            return [], "3", ""

        async def watch(self, *_: Any) -> AsyncIterator[tuple[str, Object]]:
            await asyncio.Event().wait()
            yield "BOOKMARK", {}

    monkeypatch.setattr("prefleet_operator.adapters.watch.PAUSES_S", (0.0,))
    watcher = Watcher(cast(Kube, Api()), PODS, None, "", lambda _: thing(1), Store[Thing](), lambda *_: None)
    running = asyncio.create_task(watcher.run())
    await asyncio.wait_for(watcher.synced.wait(), 5)
    running.cancel()
    assert (known, watcher.refused) == ([None, "pods is forbidden"], None)


async def test_versions_that_are_too_old_as_soon_as_they_are_listed_make_no_flood_of_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each list is of all pods of the cluster, and of an API server that is in trouble already."""
    pauses: list[float] = []

    class Api:
        async def list_page(self, *_: Any) -> tuple[list[Object], str, str]:
            return [], "3", ""

        async def watch(self, *_: Any) -> AsyncIterator[tuple[str, Object]]:
            raise GoneError("too old resource version")
            yield "BOOKMARK", {}

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            raise asyncio.CancelledError

    monkeypatch.setattr("asyncio.sleep", sleep)
    watcher = Watcher(cast(Kube, Api()), PODS, None, "", lambda _: thing(1), Store[Thing](), lambda *_: None)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(watcher.run(), 5)
    assert pauses[0] < 1
    assert sum(pauses) > 60
