"""Queue policies: one file each, one interface (`base`), one machinery (`store`).

Pure: no clock, no randomness, no I/O. Import from here.
"""

from __future__ import annotations

from typing import TypeVar

from ..contract import PolicyName, RuntimePolicy
from .base import MAX_BYPASSES, Counters, Dispatch, Lane, LaneGauge, PolicyQueue, RequestFacts
from .fcfs import FirstComeFirstServed
from .hrrn import HighestResponseRatioNext
from .promote_shortest import PromoteShortest
from .short_request_first import ShortRequestFirst
from .store import transfer

__all__ = [
    "MAX_BYPASSES",
    "Counters",
    "Dispatch",
    "Lane",
    "LaneGauge",
    "PolicyQueue",
    "RequestFacts",
    "make_queue",
    "transfer",
]

T = TypeVar("T")


def make_queue(policy: RuntimePolicy) -> PolicyQueue[T]:
    """An empty queue that orders by `policy`."""
    match policy.policy:
        case PolicyName.FCFS:
            return FirstComeFirstServed(policy)
        case PolicyName.PROMOTE_SHORTEST:
            return PromoteShortest(policy)
        case PolicyName.HRRN:
            return HighestResponseRatioNext(policy)
        case PolicyName.SHORT_REQUEST_FIRST:
            return ShortRequestFirst(policy)
