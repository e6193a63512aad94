"""How much work a pod really does per second, and how far pods differ.

Pods that were busy while requests waited did what they could. Their work by the fitted cost, divided by the time that
they spent in steps, is near 1 if the fit is good, and less on slow or shared accelerators. It is looked at only while
all pods of a role are so: the few that are at other times are those that have got long prompts, whose tokens cost more
than the mean. What is learnt follows slowly (`FOLLOW` of the way each time, at most once in a period of damping);
until something is known, a pod is worth 1. It begins anew once other pods run than were measured (`work`), and pods of
two kinds, as in a rollout, teach nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from prefleet_operator.core.sizing.values import Capacity, PodServed

FOLLOW = 0.05
NOMINAL = Capacity(1.0)
BUSY = 0.9
"""A pod in steps less than this part of the time says little of what it could do."""
MOST_OFF = 2.0
"""A capacity outside 1 / MOST_OFF to MOST_OFF times the nominal one is a fault of the reading."""


def are_saturated(pods: Sequence[PodServed]) -> bool:
    """Whether all pods did what they could: busy, while requests waited."""
    return bool(pods) and all(pod.busy >= BUSY and pod.waiting >= 1 for pod in pods)


def capacity_of(pods: Sequence[PodServed], work: Callable[[PodServed], float]) -> Capacity | None:
    """Of pods that all did what they could; else None. Pods that do nothing while requests wait hang."""
    if not are_saturated(pods):
        return None
    done = [work(pod) / pod.busy for pod in pods]
    mean = sum(done) / len(done)
    if mean <= 0:
        return None
    return Capacity(mean, math.sqrt(sum((one - mean) ** 2 for one in done) / len(done)))


def learn(known: Capacity | None, seen: Capacity) -> Capacity:
    """What is known after this sight; the first is taken whole."""
    if known is None:
        return seen
    return Capacity(
        known.mean + FOLLOW * (seen.mean - known.mean), known.spread + FOLLOW * (seen.spread - known.spread)
    )


def plausible(capacity: Capacity | None) -> Capacity:
    """As pods' worth of work: what is known, within reason; the nominal 1 where nothing is."""
    if capacity is None:
        return NOMINAL
    return replace(capacity, mean=min(MOST_OFF, max(1 / MOST_OFF, capacity.mean)))
