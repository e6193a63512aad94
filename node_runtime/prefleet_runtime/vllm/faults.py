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
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


class Faults:
    """What failed so far, by what was being done; `count` is called once for each failure."""

    def __init__(self, count: Callable[[], None]) -> None:
        self._count = count
        self.seen: Counter[str] = Counter()

    @contextmanager
    def survived(self, doing: str) -> Iterator[None]:
        """Go on behind the block whatever fails in it."""
        try:
            yield
        except Exception:
            self._count()
            self.seen[doing] += 1
            if self.seen[doing] == 1:
                logger.exception("%s failed and the engine goes on without: report it with these lines", doing)
