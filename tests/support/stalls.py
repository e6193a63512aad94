"""Notices when the machine stands still: a virtual machine whose host is busy loses a core, or all, for many seconds.

A thread for each core, bound to it, sleeps `BEAT_S` at a time. What wakes more than `STALL_S` late was not kept waiting
by other work, however much there is, since a scheduler lets sleepers go first: the core itself was gone. Whatever has
a deadline breaks then, in every process, and that says nothing of the code.

Left out: a machine without Linux's affinity of threads is not watched.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Final, Self

BEAT_S: Final = 0.5
STALL_S: Final = 5.0
"""Later than any wake-up that was seen beside a full load of tests (0.4 s), shorter than any of their deadlines."""


@dataclass(frozen=True)
class Stall:
    """When it ended, and how long the core had been gone until then, in seconds of the monotonic clock."""

    ended_s: float
    lasted_s: float


class StallWatch:
    """Watches all cores while it is entered."""

    def __init__(self) -> None:
        self._stalls: list[Stall] = []
        self._over = threading.Event()

    def __enter__(self) -> Self:
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        for core in cores:
            threading.Thread(target=self._watch, args=(core,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _watch(self, core: int) -> None:
        os.sched_setaffinity(0, {core})  # of this thread alone
        slept_from_s = monotonic()
        while not self._over.wait(BEAT_S):
            woke_s = monotonic()
            self.beat(slept_from_s, woke_s)
            slept_from_s = woke_s

    def beat(self, slept_from_s: float, woke_s: float) -> None:
        """Note that a core slept from the one moment to the other."""
        late_s = woke_s - slept_from_s - BEAT_S
        if late_s > STALL_S:
            self._stalls.append(Stall(woke_s, late_s))

    def longest_s(self, since_s: float) -> float:
        """How long the longest stall lasted of those that ended since then; 0 without one."""
        return max((stall.lasted_s for stall in self._stalls if stall.ended_s >= since_s), default=0.0)
