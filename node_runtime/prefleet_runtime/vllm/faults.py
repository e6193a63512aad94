"""Failures of the runtime's own that are no reason for an engine to end.

An exception in a scheduler ends its engine, with all that it computes. So whatever only advises or counts is guarded:
the looks at the prefix cache, the marks of what is held back, stepping aside, the step's budget, and what is noted of
steps and ends. Where one of these fails the engine goes on as it would without it: the queue keeps its order, and a
step has the engine's own budget, or what was set of ours by then. The first failure of each kind is logged with its
traceback, all are counted.

Left out on purpose: the queue itself. Requests lie in it, and an engine that went on without some of them would leave
their clients without an answer: better that it ends, and is started again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from types import TracebackType

logger = logging.getLogger(__name__)


class Faults:
    """What failed so far, by what was being done; `count` is called once for each failure."""

    def __init__(self, count: Callable[[], None]) -> None:
        self._count = count
        self.seen: Counter[str] = Counter()

    def survived(self, doing: str) -> Guard:
        """To be entered: whatever fails in the block, it goes on behind it."""
        return Guard(self, doing)

    def note(self, doing: str, error: Exception) -> None:
        """One more failure."""
        self._count()
        self.seen[doing] += 1
        if self.seen[doing] == 1:
            logger.error("%s failed and the engine goes on without: report it with these lines", doing, exc_info=error)


class Guard:
    """One block that may fail. A class, since a generator in its place costs a step several times as much."""

    __slots__ = ("_doing", "_faults")

    def __init__(self, faults: Faults, doing: str) -> None:
        self._faults = faults
        self._doing = doing

    def __enter__(self) -> None:
        """Nothing is needed."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self._faults.note(self._doing, error)
        return True
