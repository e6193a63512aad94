"""From what was asked for to what is replayed: policies, threshold, fleet and load.

The load is a part of the capacity: what a fleet of this shape serves of this very trace when all of a sample waits from
the start, first come first served. Time between arrivals is stretched or shortened by one factor to reach it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from prefleet_runtime.contract import DEFAULT_AGED_SHARE, PolicyName, RuntimePolicy
from prefleet_runtime.sim.fleet import FleetShape
from prefleet_runtime.sim.replay import replay

from prefleet_operator.core.histogram import quantile
from prefleet_operator.replay.study import TraceStudy

SHORT_NAMES = {"srf": PolicyName.SHORT_REQUEST_FIRST}
DEFAULT_PERCENTILE = 0.8
"""Where a trace's lengths are split if nothing says otherwise: the middle of the band, P70 to P85."""


class SettingError(ValueError):
    """Something that was asked for is impossible; one sentence with the fix."""


@dataclass(frozen=True)
class Scheduling:
    """What all policies that have such settings are given. Tokens, seconds, a fraction."""

    threshold: int
    long_max_wait_s: float = 0.0
    aged_share: float = DEFAULT_AGED_SHARE
    long_chunk: str = "yield"


def parse_policies(text: str) -> list[PolicyName]:
    """Names separated by commas. Raises SettingError for one that does not exist."""
    names = [SHORT_NAMES.get(name.strip(), name.strip()) for name in text.split(",") if name.strip()]
    known = [*PolicyName]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        possible = ", ".join([*map(str, known), *SHORT_NAMES])
        raise SettingError(f'--policy: "{", ".join(unknown)}" is no policy: write some of {possible}, with commas')
    return list(dict.fromkeys(PolicyName(name) for name in names))


def make_policy(name: PolicyName, scheduling: Scheduling) -> RuntimePolicy:
    """The policy as the runtime would read it."""
    if not name.has_threshold:
        return RuntimePolicy(generation=1, policy=name)
    return RuntimePolicy(
        generation=1,
        policy=name,
        threshold=scheduling.threshold,
        long_max_wait_ms=round(1000 * scheduling.long_max_wait_s),
        aged_share=scheduling.aged_share,
        long_chunk=scheduling.long_chunk,
    )


def percentile_split(trace: TraceStudy) -> int:
    """The trace's own P80, in tokens."""
    return max(1, int(min(quantile(trace.lengths, DEFAULT_PERCENTILE), trace.lengths.bounds[-1])))


def capacity(trace: TraceStudy, shape: FleetShape) -> float:
    """Requests a second that the fleet serves of the sample when all of it waits from the start."""
    waiting = [replace(request, at_s=0.0) for request in trace.sample]
    everything = replay(waiting, shape, RuntimePolicy(generation=1), split_tokens=1)
    if not everything.requests:
        raise SettingError("no request of the trace fits into a pod's KV cache: give an --engine whose pods hold more")
    return everything.requests / everything.lasted_s
