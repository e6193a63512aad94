"""Waiting for what becomes true by itself, in bounded time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(ask: Callable[[], T], timeout_s: float = 30.0, poll_s: float = 0.1) -> T:
    """The first true answer; AssertionError with the last answer when none came in time."""
    deadline_s = time.monotonic() + timeout_s
    while not (answer := ask()):
        assert time.monotonic() < deadline_s, f"not in {timeout_s:.0f} s; the last answer was {answer!r}"
        time.sleep(poll_s)
    return answer
