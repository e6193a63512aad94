"""Which fleets to look at next.

A key is worked on by one worker at a time; marked while it is worked on, it is worked on once more. Two turns
of one key lie at least `gap_s` apart, so that a burst of changes is one turn. Work that fails is done again
after a pause that doubles; marking a key does not shorten the pause unless it is urgent (a user has changed
something). Failures of one key never touch another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name of a policy."""

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 30.0


class WorkFailedError(Exception):
    """The work has said why it failed, and should be done again after a pause."""


class Workqueue:
    """Keys to work on. `work` raises to be called again."""

    def __init__(self, work: Callable[[Key], Awaitable[None]], workers: int = 8, gap_s: float = 0.2) -> None:
        self._work = work
        self._workers = workers
        self._gap_s = gap_s
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._dirty: set[Key] = set()
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._pauses: dict[Key, asyncio.TimerHandle] = {}
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()

    def mark(self, key: Key, urgent: bool = False) -> None:
        """Have the key worked on soon."""
        if urgent:
            self._failures.pop(key, None)
            pause = self._pauses.pop(key, None)
            if pause is not None:
                pause.cancel()
        if key not in self._dirty:
            self._dirty.add(key)
            if key not in self._busy and key not in self._pauses:
                self._ready.put_nowait(key)
        elif urgent and key not in self._busy:
            self._ready.put_nowait(key)

    async def run(self) -> None:
        """Work until `drain`."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._serve())

    async def drain(self, timeout_s: float) -> None:
        """Begin nothing more, and wait for what is being worked on. Raises TimeoutError if that takes too long."""
        self._stopping = True
        async with asyncio.timeout(timeout_s):
            await self._idle.wait()

    async def _serve(self) -> None:
        while True:
            key = await self._ready.get()
            if key in self._busy or key not in self._dirty or self._stopping:
                continue
            self._dirty.discard(key)
            self._busy.add(key)
            self._idle.clear()
            try:
                pause_s = await self._turn(key)
            finally:
                self._busy.discard(key)
                if not self._busy:
                    self._idle.set()
            self._pause(key, pause_s)
            await asyncio.sleep(0)

    async def _turn(self, key: Key) -> float:
        """Work once; seconds until the key's next turn may begin."""
        if await self._succeeds(key):
            self._failures.pop(key, None)
            return self._gap_s
        self._dirty.add(key)
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        return float(min(FIRST_PAUSE_S * 2 ** min(failures - 1, 20), LONGEST_PAUSE_S))

    async def _succeeds(self, key: Key) -> bool:
        try:
            await self._work(key)
        except WorkFailedError:
            return False
        except Exception:
            logger.exception("%s/%s: this should not happen; trying again", *key)
            return False
        return True

    def _pause(self, key: Key, pause_s: float) -> None:
        self._pauses[key] = asyncio.get_running_loop().call_later(pause_s, self._resume, key)

    def _resume(self, key: Key) -> None:
        self._pauses.pop(key, None)
        if key in self._dirty:
            self._ready.put_nowait(key)
