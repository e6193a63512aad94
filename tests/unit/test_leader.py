"""The election under a clock of its own: who may write when, whatever happens to processes and to the API."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from prefleet_operator.adapters.kube import WRITE_TIMEOUT_S, ConflictError, UnavailableError
from prefleet_operator.app.leader import Election, LeadershipLostError, Lease, Timing


class World:
    """A clock, and a Lease with optimistic locking."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lease: Lease | None = None
        self.versions = 0

    def clock(self) -> float:
        return self.now


class Access:
    """One candidate's way to the Lease. `broken`: the API server does not answer. `lag_s`: an answer takes so long."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.broken = False
        self.lag_s = 0.0

    async def read(self) -> Lease | None:
        self._answer()
        return self.world.lease

    async def write(self, lease: Lease) -> Lease:
        self._answer()
        live = self.world.lease
        if lease.version != ("" if live is None else live.version):
            raise ConflictError("changed")
        self.world.versions += 1
        self.world.lease = replace(lease, version=str(self.world.versions))
        return self.world.lease

    def _answer(self) -> None:
        self.world.now += self.lag_s
        if self.broken:
            raise UnavailableError("no answer")


def candidate(world: World, name: str) -> tuple[Election, Access]:
    access = Access(world)

    async def sleep(seconds: float) -> None:
        world.now += seconds

    return Election(access, name, world.clock, sleep=sleep), access


async def advance(world: World, seconds: float, *elections: Election) -> None:
    """Let time pass in steps of the retry, each candidate trying once in each."""
    end = world.now + seconds
    while world.now < end:
        world.now += 2.0
        for election in elections:
            await election._attempt()


@pytest.fixture
def world() -> World:
    return World()


async def test_a_free_lease_is_taken_at_once(world: World) -> None:
    first, _ = candidate(world, "a")
    await first.acquire()
    first.check()
    assert world.lease is not None
    assert (world.lease.holder, world.lease.transitions) == ("a", 0)


async def test_nobody_else_leads_while_the_leader_renews(world: World) -> None:
    first, _ = candidate(world, "a")
    second, _ = candidate(world, "b")
    await first.acquire()
    await advance(world, 120, first, second)
    assert first.leads
    assert not second.leads


async def test_a_leader_that_cannot_renew_stops_writing_before_another_begins(world: World) -> None:
    first, access = candidate(world, "a")
    second, _ = candidate(world, "b")
    await first.acquire()
    access.broken = True
    stopped_at = world.now + Timing().renew_s
    while not second.leads:
        assert first.leads == (world.now < stopped_at)
        await advance(world, 2, first, second)
    assert world.now >= stopped_at + WRITE_TIMEOUT_S
    with pytest.raises(LeadershipLostError):
        first.check()


async def test_holding_ends_with_an_error_when_renewing_fails(world: World) -> None:
    first, access = candidate(world, "a")
    await first.acquire()
    access.broken = True
    with pytest.raises(LeadershipLostError):
        await asyncio.wait_for(first.hold(), 5)


async def test_holding_ends_at_once_when_another_holds_the_lease(world: World) -> None:
    first, _ = candidate(world, "a")
    await first.acquire()
    assert world.lease is not None
    world.versions += 1
    world.lease = replace(world.lease, holder="b", version=str(world.versions))
    began = world.now
    with pytest.raises(LeadershipLostError, match="another"):
        await asyncio.wait_for(first.hold(), 5)
    assert world.now - began <= Timing().retry_s


async def test_a_frozen_leader_may_not_write_when_it_wakes(world: World) -> None:
    first, _ = candidate(world, "a")
    second, _ = candidate(world, "b")
    await first.acquire()
    await advance(world, 30, second)
    assert second.leads
    assert not first.leads


async def test_a_released_lease_is_taken_at_once(world: World) -> None:
    first, _ = candidate(world, "a")
    second, _ = candidate(world, "b")
    await first.acquire()
    await first.release()
    assert not first.leads
    await second.acquire()
    assert world.lease is not None
    assert (world.lease.holder, world.lease.transitions) == ("b", 1)


async def test_a_lease_that_is_deleted_by_hand_is_not_taken_while_its_holder_may_write(world: World) -> None:
    first, access = candidate(world, "a")
    second, _ = candidate(world, "b")
    await first.acquire()
    await advance(world, 4, first, second)
    access.broken, world.lease = True, None
    stopped_at = world.now + Timing().renew_s
    while not second.leads:
        await advance(world, 2, second)
    assert world.now >= stopped_at + WRITE_TIMEOUT_S


async def test_a_holder_whose_lease_is_deleted_makes_it_anew(world: World) -> None:
    first, _ = candidate(world, "a")
    second, _ = candidate(world, "b")
    await first.acquire()
    await advance(world, 4, first, second)
    world.lease = None
    await advance(world, 30, second, first)
    assert first.leads
    assert not second.leads


async def test_a_candidate_without_an_api_server_says_so_once_a_minute(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first, access = candidate(world, "a")
    access.broken = True
    await advance(world, 121, first)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["the lease cannot be taken or renewed, trying again: no answer"] * 3


async def test_a_lost_lease_is_told_with_what_kept_it_from_being_renewed(world: World) -> None:
    first, access = candidate(world, "a")
    await first.acquire()
    access.broken = True
    with pytest.raises(LeadershipLostError, match="not renewed for 7 s: no answer"):
        await asyncio.wait_for(first.hold(), 5)


async def test_a_restarted_container_takes_its_own_lease_back_at_once(world: World) -> None:
    first, _ = candidate(world, "a")
    await first.acquire()
    again, _ = candidate(world, "a")
    began = world.now
    await again.acquire()
    assert world.now == began


async def test_the_time_of_a_renewal_counts_from_before_it_was_sent(world: World) -> None:
    first, access = candidate(world, "a")
    access.lag_s = 1.5
    await first.acquire()
    world.now += Timing().renew_s - 1.5
    assert not first.leads


def test_a_timing_that_lets_two_write_is_refused() -> None:
    with pytest.raises(ValueError, match="must stay under"):
        Timing(lease_s=10, renew_s=8)


FAULTS: dict[str, Callable[[random.Random, Access], None]] = {
    "black hole": lambda chance, access: setattr(access, "broken", chance.random() < 0.5),
    "slow answers": lambda chance, access: setattr(access, "lag_s", chance.choice((0.0, 0.0, 1.0, 3.0))),
}


@pytest.mark.parametrize("seed", range(30))
async def test_under_random_faults_writes_never_overlap(world: World, seed: int) -> None:
    """At every step: at most one may write, and between two writers lies more than one write's time."""
    chance = random.Random(seed)
    candidates = [candidate(world, name) for name in "abc"]
    last_writer, last_write_s = -1, float("-inf")
    for _ in range(400):
        world.now += chance.choice((0.1, 0.5, 2.0))
        for index, (election, access) in enumerate(candidates):
            if chance.random() < 0.1:
                FAULTS[chance.choice(sorted(FAULTS))](chance, access)
            if chance.random() < 0.7:
                await election._attempt()
            if election.leads:
                assert index == last_writer or world.now > last_write_s + WRITE_TIMEOUT_S
                last_writer, last_write_s = index, world.now
    assert last_writer >= 0
