"""Which pod of a role gets the next request: what stands before a simulated fleet.

    round_robin    one after the other
    least_tokens   the pod with the fewest prompt tokens that wait or are being computed; the first of equals
    prefix_aware   the pod that has most of the prompt cached, unless it has more than `MOST_BEHIND` prompt tokens more
                   to do than the least loaded one; without a hit like least_tokens

Left out: sessions, retries, and routers that look at several requests at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import cycle
from typing import Protocol

from prefleet_runtime.sim.state import SimRequest

MOST_BEHIND = 8192


class RouterKind(StrEnum):
    """How requests are spread."""

    ROUND_ROBIN = "round_robin"
    LEAST_TOKENS = "least_tokens"
    PREFIX_AWARE = "prefix_aware"


class Target(Protocol):
    """What a router may ask of a pod."""

    @property
    def pending_tokens(self) -> int: ...
    def cached_tokens(self, request: SimRequest) -> int: ...


def make_router(kind: RouterKind, pods: Sequence[Target]) -> Callable[[SimRequest], int]:
    """A function from a request to the number of a pod."""
    if len(pods) == 1:
        return lambda request: 0
    match kind:
        case RouterKind.ROUND_ROBIN:
            turns = cycle(range(len(pods)))
            return lambda request: next(turns)
        case RouterKind.LEAST_TOKENS:
            return lambda request: _least_loaded(pods)
        case RouterKind.PREFIX_AWARE:
            return lambda request: _best_cached(pods, request)


def _least_loaded(pods: Sequence[Target]) -> int:
    return min(range(len(pods)), key=lambda number: pods[number].pending_tokens)


def _best_cached(pods: Sequence[Target], request: SimRequest) -> int:
    least = _least_loaded(pods)
    most = pods[least].pending_tokens + MOST_BEHIND
    found = {number: pod.cached_tokens(request) for number, pod in enumerate(pods) if pod.pending_tokens <= most}
    best = max(found, key=lambda number: (found[number], -pods[number].pending_tokens))
    return best if found[best] else least
