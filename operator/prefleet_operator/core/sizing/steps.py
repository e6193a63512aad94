"""The small steps between a need and a number of replicas: each a function of numbers, in the order in which they go.

    foresee     what will be asked when a pod that is ordered now is ready
    tolerate    fewer only if those would serve a margin more
    calm        after a fall only what is sure makes it grow again
    damp        at most so far at once
    stabilise   down only to the highest need of the window
    keep_ratio  prefill pods per decode pod within bounds
    bound       min and max replicas
    budget      accelerators that the fleet may have

Steps that ask for more pods never go after steps that took some away,
but for `keep_ratio`, which raises the smaller side; bounds and budget have the last word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from prefleet_operator.api import Role
from prefleet_operator.core.sizing.values import MARKS, Mark, RoleRules

PERIOD_S = 15
"""Damping allows one step in such a period, and a part of a window is a multiple of it; see `began`."""
UP_FACTOR, UP_PODS = 2.0, 4
DOWN_SHARE = 0.25
MOST_FORESEEN = 1.5
SURE = 2.0


def began(now: float, part_s: int = PERIOD_S) -> int:
    """When the part of time that holds `now` began: it is the same however often one asks."""
    return int(now // part_s) * part_s


def part_of(window_s: float) -> int:
    """How long each of the parts of a window is."""
    return whole_periods(window_s / MARKS)


def whole_periods(seconds: float) -> int:
    """So long, or a little longer, in whole periods."""
    return PERIOD_S * max(1, math.ceil(seconds / PERIOD_S))


def remember(marks: Sequence[Mark], value: float, window_s: float, now: float) -> tuple[Mark, ...]:
    """The window with one more value; the highest of each part of it is kept.

    And the newest from before the window, which stood until the next: by that one the whole window is known, however
    long the turns are of which values come.
    """
    at_s = began(now, part_of(window_s))
    before = [mark for mark in marks if mark.at_s <= now - window_s]
    kept = [*before[-1:], *(mark for mark in marks if mark.at_s > now - window_s and mark.at_s != at_s)]
    highest = max([value, *(mark.value for mark in marks if mark.at_s == at_s)])
    return (*kept, Mark(at_s, highest))


def latest(marks: Sequence[Mark], value: float, window_s: float, now: float) -> tuple[Mark, ...]:
    """The window with one more value; the first of each part of it is kept."""
    part = part_of(window_s)
    at_s = began(now, part)
    kept = tuple(mark for mark in marks if mark.at_s > now - window_s - part)
    return kept if any(mark.at_s == at_s for mark in kept) else (*kept, Mark(at_s, value))


def foresee(demand: float, deviation: float, marks: Sequence[Mark], ahead_s: float, now: float) -> float:
    """Demand in `ahead_s`, if it goes on to rise as since the window began; noise and falls foresee nothing.

    Only what lies beyond `SURE` deviations of the difference is taken as a rise.
    """
    if not marks or now <= marks[0].at_s:
        return demand
    first = marks[0]
    rise = demand - first.value - SURE * math.sqrt(2) * deviation
    if rise <= 0:
        return demand
    return min(MOST_FORESEEN * demand, demand + rise * ahead_s / (now - first.at_s))


def calm(need: int, sure: int, replicas: int, fell_at_s: int | None, window_s: float, now: float) -> int:
    """Soon after a fall only a need that is no noise makes a fleet grow again."""
    if fell_at_s is None or now - fell_at_s > window_s or need <= replicas:
        return need
    return max(replicas, min(need, sure))


def drain_time(drain_s: float, starting: int, start_s: float) -> float:
    """In what time a backlog is to be gone: while pods start, it is theirs to drain once they are there."""
    return drain_s + start_s if starting else drain_s


def tolerate(need: int, roomy: int, replicas: int) -> int:
    """The need where that is more than there is; fewer only as many as would do for the margin more (`roomy`)."""
    return need if need > replicas else min(replicas, roomy)


def base(known: Mark | None, replicas: int, now: float) -> Mark:
    """The replicas as this period of damping began: what was seen first in it."""
    at_s = began(now)
    return known if known is not None and known.at_s == at_s else Mark(at_s, replicas)


def floor(raised: Mark | None, held_s: float, now: float) -> int:
    """What long waits raised a role to, for so long; 0 where they did not."""
    return int(raised.value) if raised is not None and now - raised.at_s <= held_s else 0


def damp(wanted: int, base: int) -> int:
    """Of a long way only the first part: at most twice as many (or 4 more), or a quarter fewer (1 at least)."""
    most = max(math.ceil(base * UP_FACTOR), base + UP_PODS)
    least = min(base - 1, math.floor(base * (1 - DOWN_SHARE)))
    return max(least, min(most, wanted))


def stabilise(
    wanted: int, replicas: int, needs: Sequence[Mark], rose_at_s: int | None, window_s: float, now: float
) -> int:
    """Up at once; down to the highest need of the window, once a whole one is known and has gone since a rise."""
    if wanted >= replicas:
        return wanted
    if not needs or needs[0].at_s > now - window_s:
        return replicas
    if rose_at_s is not None and now - rose_at_s <= window_s:
        return replicas
    return min(replicas, max([wanted, *(int(mark.value) for mark in needs)]))


def keep_ratio(prefill: int, decode: int, bounds: tuple[float, float] | None) -> tuple[int, int]:
    """Prefill pods per decode pod within bounds: the side that has too few gets more."""
    if bounds is None:
        return prefill, decode
    low, high = bounds
    prefill = max(prefill, math.ceil(low * decode - 1e-9))
    if prefill > high * decode:
        decode = math.ceil(prefill / high - 1e-9)
    return prefill, decode


def bound(wanted: int, rules: RoleRules) -> int:
    """Within minReplicas and maxReplicas."""
    return max(rules.min_replicas, min(rules.max_replicas, wanted))


def budget(
    wanted: Mapping[Role, int], present: Mapping[Role, int], rules: Mapping[Role, RoleRules], quota: int | None
) -> dict[Role, int]:
    """What of the wanted pods the accelerators allow: who falls frees them first, then growth is given pod by pod.

    The pod next given is one of the role that has the smallest part of what it wants. What there is, stays.
    """
    if quota is None:
        return dict(wanted)
    given = {role: min(pods, max(present[role], 0)) for role, pods in wanted.items()}
    left = quota - sum(pods * rules[role].accelerators for role, pods in given.items())
    while True:
        # What is there may be more than the quota; who asks for none has none to wait for.
        short = [role for role in given if given[role] < wanted[role] and rules[role].accelerators <= max(left, 0)]
        if not short:
            return given
        role = min(short, key=lambda one: (given[one] / wanted[one], one.value))
        given[role] += 1
        left -= rules[role].accelerators
