"""The queue of fleets: one turn at a time for each, pauses after failures, and no fleet in another's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from prefleet_operator.app.workqueue import Key, WorkFailedError, Workqueue

A, B = ("ns", "a"), ("ns", "b")


@asynccontextmanager
async def running(work: Callable[[Key], Awaitable[None]], workers: int = 2) -> AsyncIterator[Workqueue]:
    queue = Workqueue(work, workers=workers, gap_s=0.0)
    task = asyncio.create_task(queue.run())
    yield queue
    task.cancel()
    await asyncio.wait([task])


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_burst_of_marks_is_one_turn() -> None:
    done: list[Key] = []

    async def work(key: Key) -> None:
        done.append(key)

    async with running(work) as queue:
        for _ in range(5):
            queue.mark(A)
        await settle()
    assert done == [A]


async def test_between_turns_that_wait_for_nothing_others_get_their_chance() -> None:
    """Or the Lease would not be renewed before every fleet has been looked at."""
    done: list[Key] = []

    async def work(key: Key) -> None:
        done.append(key)

    async with running(work) as queue:
        for number in range(1000):
            queue.mark(("ns", str(number)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 0 < len(done) < 10
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(done) == 1000


async def test_a_key_marked_during_its_turn_gets_one_more_and_never_two_at_once() -> None:
    gate, twice, inside, turns = asyncio.Event(), asyncio.Event(), 0, 0

    async def work(_: Key) -> None:
        nonlocal inside, turns
        inside, turns = inside + 1, turns + 1
        assert inside == 1
        await gate.wait()
        inside -= 1
        if turns == 2:
            twice.set()

    async with running(work, workers=4) as queue:
        queue.mark(A)
        await settle()
        queue.mark(A)
        queue.mark(A)
        await settle()
        assert turns == 1
        gate.set()
        await asyncio.wait_for(twice.wait(), 10)
        await settle()
    assert turns == 2


@pytest.mark.parametrize("failure", [WorkFailedError(), RuntimeError("a bug")], ids=["said", "unforeseen"])
async def test_one_that_fails_is_tried_again_and_holds_up_no_other(failure: Exception) -> None:
    done: list[Key] = []
    again = asyncio.Event()

    async def work(key: Key) -> None:
        done.append(key)
        if key == A:
            if done.count(A) == 2:
                again.set()
            raise failure

    async with running(work, workers=1) as queue:
        queue.mark(A)
        queue.mark(B)
        await asyncio.wait_for(again.wait(), 10)
    assert done == [A, B, A]


async def test_only_an_urgent_mark_cuts_the_pause_short() -> None:
    done: list[Key] = []

    async def work(key: Key) -> None:
        done.append(key)
        raise WorkFailedError

    async with running(work) as queue:
        queue.mark(A)
        await settle()
        queue.mark(A)
        await settle()
        assert done == [A]
        queue.mark(A, urgent=True)
        await settle()
        assert done == [A, A]


async def test_draining_lets_the_present_turn_end_and_begins_no_other() -> None:
    gate, done = asyncio.Event(), []

    async def work(key: Key) -> None:
        await gate.wait()
        done.append(key)

    async with running(work, workers=1) as queue:
        queue.mark(A)
        queue.mark(B)
        await settle()
        with pytest.raises(TimeoutError):
            await queue.drain(0.01)
        gate.set()
        await queue.drain(5)
        await settle()
    assert done == [A]
