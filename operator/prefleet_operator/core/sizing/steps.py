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

UP_FACTOR, UP_PODS = 2.0, 4
DOWN_SHARE = 0.25
MOST_FORESEEN = 1.5
SURE = 2.0


def remember(marks: Sequence[Mark], value: float, window_s: float, now: float) -> tuple[Mark, ...]:
    """The window with one more value; the highest of each part of it is kept.

    And the newest from before the window, which stood until the next: by that one the whole window is known, however
    long the turns are of which values come.
    """
    part = max(1, math.ceil(window_s / MARKS))
    began = int(now // part) * part
    before = [mark for mark in marks if mark.at_s <= now - window_s]
    kept = [*before[-1:], *(mark for mark in marks if mark.at_s > now - window_s and mark.at_s != began)]
    highest = max([value, *(mark.value for mark in marks if mark.at_s == began)])
    return (*kept, Mark(began, highest))


def latest(marks: Sequence[Mark], value: float, window_s: float, now: float) -> tuple[Mark, ...]:
    """The window with one more value; the first of each part of it is kept."""
    part = max(1, math.ceil(window_s / MARKS))
    began = int(now // part) * part
    kept = tuple(mark for mark in marks if mark.at_s > now - window_s - part)
    return kept if any(mark.at_s == began for mark in kept) else (*kept, Mark(began, value))


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


def damp(wanted: int, replicas: int) -> int:
    """Of a long way only the first part: at most twice as many (or 4 more), or a quarter fewer (1 at least)."""
    most = max(math.ceil(replicas * UP_FACTOR), replicas + UP_PODS)
    least = min(replicas - 1, math.floor(replicas * (1 - DOWN_SHARE)))
    return max(least, min(most, wanted))


def stabilise(wanted: int, replicas: int, needs: Sequence[Mark], window_s: float, now: float) -> int:
    """Up at once; down to the highest need of the window, once a whole window is known."""
    if wanted >= replicas:
        return wanted
    if not needs or needs[0].at_s > now - window_s:
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
        short = [role for role in given if given[role] < wanted[role] and rules[role].accelerators <= left]
        if not short:
            return given
        role = min(short, key=lambda one: (given[one] / wanted[one], one.value))
        given[role] += 1
        left -= rules[role].accelerators
