"""The fleet loop: which policy a reading belongs to, and what a source that fails leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading
from prefleet_operator.app.fleet_loop import FleetLoop
from prefleet_operator.app.gather import Cluster
from prefleet_operator.app.policies import PolicyIndex, PolicyRecord
from prefleet_operator.app.readings import Readings
from prefleet_operator.app.workqueue import Key, Workqueue
from prefleet_operator.core.observed import FleetMetrics, Missing, Sample

NOW = 1_700_000_000.0


class Source:
    """Answers each fleet with the number of the turn; or fails."""

    def __init__(self) -> None:
        self.turns = 0
        self.broken = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def read(self, fleets: Sequence[FleetQuery], now: float) -> Mapping[str, FleetReading]:
        self.turns += 1
        await self.answers.wait()
        if self.broken:
            raise ZeroDivisionError
        return {fleet.key: FleetReading(FleetMetrics(promotions=Sample(float(self.turns), now))) for fleet in fleets}

    async def close(self) -> None:
        """Nothing is open."""


async def done(_: Key) -> None:
    """The work of the queue, which nobody serves here."""


class World:
    def __init__(self, interval_s: float = 1.0) -> None:
        self.source, self.slow, self.policies, self.readings = Source(), Source(), PolicyIndex(), Readings()
        self.cluster = Cluster()
        self.loop = FleetLoop(
            interval_s=interval_s,
            policies=self.policies,
            cluster=self.cluster,
            readings=self.readings,
            sources={"PodScrape": self.source, "slow": self.slow},
            queue=Workqueue(done),
            now=lambda: NOW,
            clock=lambda: 0.0,
            observe=lambda _: None,
        )

    def policy(self, uid: str, version: int, name: str = "chat", **spec: Any) -> PolicyRecord:
        base: dict[str, Any] = {"model": {"servedName": "m"}, "engine": {"type": "Simulator"}, "mixed": {}}
        metadata = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version)}
        record = PolicyRecord.of({"metadata": metadata, "spec": base | spec})
        self.policies.put(record)
        return record


async def test_a_policy_made_again_under_the_same_name_is_not_tuned_by_what_the_old_one_served() -> None:
    world = World()
    world.policy("old", 1)
    await world.loop.turn()
    world.policy("new", 2)
    assert not world.readings.known("new")
    await world.loop.turn()
    assert not world.readings.known("old")
    assert world.readings.of("new").metrics.promotions == Sample(2.0, NOW)


async def test_the_reading_of_a_deleted_policy_is_dropped_though_it_came_in_after_the_deletion() -> None:
    world = World()
    gone = world.policy("old", 1)
    await world.loop.turn()
    world.policies.drop(gone.key, gone.uid)
    await world.loop.turn()
    assert not world.readings.known("old")


async def test_a_source_that_fails_leaves_missing_and_not_what_it_said_before() -> None:
    world = World()
    world.policy("u", 1)
    await world.loop.turn()
    world.source.broken = True
    await world.loop.turn()
    assert isinstance(world.readings.of("u").metrics.promotions, Missing)


async def test_a_policy_with_a_wrong_spec_is_not_asked_about_and_the_others_are() -> None:
    world = World()
    world.policy("u", 1, tuning={"mode": "Sometimes"})
    await world.loop.turn()
    assert world.source.turns == 0
    world.policy("u", 2)
    await world.loop.turn()
    assert world.source.turns == 1


async def test_a_source_that_is_slow_holds_up_no_fleet_of_another() -> None:
    world = World(interval_s=0.01)
    world.policy("fast", 1)
    world.policy("waits", 1, name="other", metricsSource="slow")
    world.slow.answers.clear()
    for _ in range(3):
        await asyncio.wait_for(world.loop.turn(), 5)
    assert (world.source.turns, world.slow.turns) == (3, 1)
    assert world.readings.of("fast").metrics.promotions == Sample(3.0, NOW)
    assert not world.readings.known("waits", "slow")
    world.slow.answers.set()
    await world.loop.turn()
    assert world.readings.of("waits", "slow").metrics.promotions == Sample(1.0, NOW)


async def test_what_a_slow_source_says_late_of_a_policy_that_names_another_by_then_is_dropped() -> None:
    world = World(interval_s=0.01)
    world.policy("u", 1, metricsSource="slow")
    world.slow.answers.clear()
    await world.loop.turn()
    world.policy("u", 2)
    await world.loop.turn()
    world.slow.answers.set()
    await asyncio.wait(world.loop._asking.values(), timeout=5)
    assert world.readings.known("u")
