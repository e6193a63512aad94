"""From the loads of pods to those of roles: the same for every source.

What is safe differs by value, and errs so that nobody shrinks a fleet by what was not seen:

- Sums (arrivals, tokens and requests that wait, what runs, what is generated) and means of all pods (KV use, gaps)
  need every ready pod of the role: one that could not be read, or shows no such value, makes them Missing, since a sum
  without it understates and a fleet would shrink by a failed scrape; one that is stale makes them Stale.
- What is the same in every pod (KV capacity, a step's tokens, what steps cost) is read of those that show it: the
  least capacity, the smallest budget, and of the fits the one in the middle by what a full step of prefill costs (of
  two the dearer). A fit counts from `MIN_COST_SAMPLES` steps on, and if a full step costs more than nothing and less
  than `MAX_STEP_S`.
- Pods that are gone have still had the requests that came to them: for as long as the slow window reaches, what the
  source knows of them counts to arrivals and to what was generated. Without that every pod that goes would lower the
  demand, and take the next with it.
- Rates are over the time since the first of these pods was watched, one that has left included: fresh pods that have
  taken over what others did for long have not had all of it themselves. They are Missing until that is a fast window:
  nothing follows from the first seconds after the operator, Prometheus or a fleet has started.
- What pods can do is learnt of all together: `served` is empty unless all pods were watched for a fast window.

Pods of one role alone count to it, so lengths that decode pods see are no arrivals of the prefill role. A role without
a ready pod is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from prefleet_operator.adapters import native_reading, pod_load
from prefleet_operator.adapters.fleet_reading import LENGTHS, UNFINISHED, merge_histograms
from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, PodTarget
from prefleet_operator.adapters.pod_load import PodLoad
from prefleet_operator.api import Role
from prefleet_operator.core.histogram import closed_buckets, mean_between
from prefleet_operator.core.observed import HistogramSnapshot, Missing, Reading, Sample, Stale
from prefleet_operator.core.sizing.values import PodServed, RoleLoad, StepCost

MIN_COST_SAMPLES = 100
"""Fewer steps say too little of five terms."""
MAX_STEP_S = 60.0

_TOLD = {"waiting": "requests that wait", "running": "requests that run", "kv_usage": "how full its KV cache is"}

NO_COST = "the engine shows no step cost"

T = TypeVar("T")
U = TypeVar("U")

PodLoads = Mapping[str, Reading[PodLoad]]


@dataclass(frozen=True, slots=True)
class Windows:
    """What rates are taken over: seconds of the slow and of the fast window, those of `make bench-sizing`.

    They are not the tuning window: that one may be a day, and nobody sizes a fleet by the mean of a day.
    """

    slow_s: float = 600.0
    fast_s: float = 60.0


DEFAULT_WINDOWS = Windows()


class Leavers:
    """Pods that a fleet no longer names, for as long as a window reaches; of all fleets."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._seen: dict[str, dict[str, tuple[PodTarget, float]]] = {}

    def note(self, fleets: Sequence[FleetQuery], now: float) -> None:
        """What is asked now; fleets that are not asked for are forgotten."""
        seen = {}
        for fleet in fleets:
            kept = {n: (p, at) for n, (p, at) in self._seen.get(fleet.key, {}).items() if now - at < self._keep_s}
            seen[fleet.key] = kept | {pod.name: (pod, now) for pod in fleet.pods}
        self._seen = seen

    def note_shown(self, fleet: FleetQuery, pod: PodTarget, at_s: float) -> None:
        """One that has left, as a pod that ends what it has begun, was read at that time all the same."""
        self._seen[fleet.key][pod.name] = pod, at_s

    def of(self, fleet: FleetQuery) -> tuple[tuple[PodTarget, float], ...]:
        """The pods that have left a fleet, and when each was last one of it, or read."""
        present = {pod.name for pod in fleet.pods}
        return tuple(seen for name, seen in self._seen.get(fleet.key, {}).items() if name not in present)


def long_ago(load: PodLoad, gone_s: float, windows: Windows) -> PodLoad:
    """What a pod adds that was last read so long ago: it is watched as from its first scrape to now."""
    if load.watched_s is None:
        return load
    return replace(load, watched_s=min(windows.slow_s, load.watched_s + gone_s))


def add_loads(
    reading: FleetReading,
    query: FleetQuery,
    pods: PodLoads,
    left: Sequence[tuple[Role, PodLoad]] = (),
    windows: Windows = DEFAULT_WINDOWS,
) -> FleetReading:
    """The reading with the loads of its roles and pods, from those of its pods, by name, and of those that have `left`
    (as `long_ago` tells of them); a pod that is not there was not found. A fleet that is not sized has none."""
    if not query.sized:
        return reading
    roles: dict[Role, list[tuple[str, Reading[PodLoad]]]] = {}
    for pod in query.pods:
        found = pods.get(pod.name, Missing(f"pod {pod.name} was not found"))
        roles.setdefault(pod.role, []).append((pod.name, found))
    gone = {role: [load for other, load in left if other is role] for role in roles}
    loads = {role: _Role(query, role, found, gone[role], windows).load() for role, found in roles.items()}
    return replace(reading, loads=loads, pod_loads=_pod_loads(query, [pod for role in roles.values() for pod in role]))


def missing_loads(reading: FleetReading, query: FleetQuery, reason: str) -> FleetReading:
    """The reading with loads of which nothing is known, for one reason."""
    return add_loads(reading, query, {pod.name: Missing(reason) for pod in query.pods})


def _pod_loads(query: FleetQuery, pods: Sequence[tuple[str, Reading[PodLoad]]]) -> dict[str, Reading[float]]:
    """By pod name, the requests that are in its engine."""
    name = UNFINISHED if query.engine is None else native_reading.life_names(query.engine)[0]
    return {pod: _total([(pod, found)], name, lambda load: load.unfinished, sum) for pod, found in pods}


class _Role:
    """The pods of one role."""

    def __init__(
        self,
        query: FleetQuery,
        role: Role,
        pods: Sequence[tuple[str, Reading[PodLoad]]],
        left: Sequence[PodLoad],
        windows: Windows,
    ) -> None:
        self._query, self._role, self._pods, self._left, self._windows = query, role, pods, left, windows
        known = [found.value for _, found in pods if not isinstance(found, Missing)]
        self._watched_s = max((pod.watched_s or 0.0 for pod in (*known, *left)), default=0.0)

    def load(self) -> RoleLoad:
        """See the module."""
        load = RoleLoad(
            slow_s=self._watched_s or self._windows.slow_s,
            fast_s=self._windows.fast_s,
            arrivals=self._arrivals(lambda pod: pod.lengths),
            recent=self._arrivals(lambda pod: pod.recent),
            waiting=self._gauge("waiting", pod_load.WAITING, lambda pod: pod.waiting, sum),
            running=self._gauge("running", pod_load.RUNNING, lambda pod: pod.running, sum),
            kv_usage=self._gauge("kv_usage", pod_load.KV_USAGE, lambda pod: pod.kv_usage, _mean),
        )
        return self._native(load) if self._query.engine is not None else self._runtime(load)

    def _runtime(self, load: RoleLoad) -> RoleLoad:
        left = sum(pod.decode_tokens or 0.0 for pod in self._left)
        generated: Reading[float] = self._all(pod_load.DECODE_TOKENS, lambda pod: pod.decode_tokens, sum)
        return replace(
            load,
            waiting_tokens=self._all(pod_load.WAITING_TOKENS, lambda pod: pod.waiting_tokens, sum),
            step_cost=self._step_cost(),
            step_tokens=_map(self._any(pod_load.STEP_TOKENS, lambda pod: pod.step_tokens), int),
            generated=self._rated(_map(generated, lambda tokens: (tokens + left) / load.slow_s)),
            kv_tokens=self._any(pod_load.KV_TOKENS, lambda pod: pod.kv_tokens),
            gap_s=self._gap(),
            served=self._served(),
        )

    def _native(self, load: RoleLoad) -> RoleLoad:
        return replace(
            load,
            waiting_tokens=_guess_tokens(load.waiting, load.arrivals),
            step_cost=Missing(NO_COST),
            step_tokens=Missing("the engine does not show the token budget of its steps"),
            generated=Missing("the engine's generated tokens are not read"),
            kv_tokens=Missing("the engine does not show how many tokens its KV cache holds"),
            gap_s=Missing("the engine's inter-token gaps are not read"),
            served=self._served(),
        )

    def _gauge(
        self,
        kind: str,
        name: str,
        pick: Callable[[PodLoad], float | None],
        merge: Callable[[Sequence[float]], float],
    ) -> Reading[float]:
        """Of all pods, where their engine shows it; `name` is the runtime's, `kind` the field of an engine's names."""
        engine = self._query.engine
        spellings: tuple[str, ...] = (name,) if engine is None else getattr(engine, kind)
        if not spellings:
            return Missing(f"the engine does not show {_TOLD[kind]}")
        return self._all(spellings[0], pick, merge)

    def _all(self, name: str, pick: Callable[[PodLoad], T | None], merge: Callable[[Sequence[T]], T]) -> Reading[T]:
        return _total(self._pods, name, pick, merge)

    def _any(self, name: str, pick: Callable[[PodLoad], float | None]) -> Reading[float]:
        """The least of the pods that show it; Missing if none is fresh."""
        shown = [(f.at_s, v) for _, f in self._pods if isinstance(f, Sample) and (v := pick(f.value)) is not None]
        if not shown:
            return Missing(f"no {self._role.value} pod shows a usable {name}")
        return Sample(min(value for _, value in shown), min(at_s for at_s, _ in shown))

    def _arrivals(self, pick: Callable[[PodLoad], HistogramSnapshot | None]) -> Reading[HistogramSnapshot]:
        query = self._query
        if query.engine is None:
            name = LENGTHS[query.length]
        else:
            name = native_reading.length_names(query.engine, query.length)[0]
        left = [lengths for pod in self._left if (lengths := pick(pod)) is not None]
        return self._rated(self._all(name, pick, lambda lengths: merge_histograms([*lengths, *left])))

    def _rated(self, reading: Reading[T]) -> Reading[T]:
        """What is counted over time, once that is long enough."""
        if isinstance(reading, Missing) or self._watched_s >= self._windows.fast_s:
            return reading
        return Missing(
            f"the {self._role.value} pods have been watched for {self._watched_s:.0f} s, "
            f"and sizing wants {self._windows.fast_s:.0f} s of them"
        )

    def _gap(self) -> Reading[float]:
        """The mean gap of the fast window; of the slow one where that shows no token. No token, no gap: 0."""
        fast = self._all(pod_load.DECODE_GAPS, lambda pod: pod.recent_gaps, _add_pairs)
        if isinstance(fast, Missing) or fast.value[1] <= 0:
            fast = self._all(pod_load.DECODE_GAPS, lambda pod: pod.gaps, _add_pairs)
        return _map(fast, lambda gaps: gaps[0] / gaps[1] if gaps[1] > 0 else 0.0)

    def _step_cost(self) -> Reading[StepCost]:
        fits: list[tuple[float, float, StepCost]] = []
        most = 0.0
        for _, found in self._pods:
            if not isinstance(found, Sample) or found.value.cost is None:
                continue
            most = max(most, found.value.cost_samples)
            full_s = _full_step_s(found.value.cost, found.value.step_tokens, self._role)
            if found.value.cost_samples >= MIN_COST_SAMPLES and 0 < full_s <= MAX_STEP_S:
                fits.append((full_s, found.at_s, found.value.cost))
        if fits:
            middle = sorted(fits, key=lambda fit: fit[0])[len(fits) // 2]
            return Sample(middle[2], middle[1])
        if most < MIN_COST_SAMPLES:
            return Missing(
                f"the {self._role.value} pods have learnt what a step costs from {most:.0f} steps at most, "
                f"and {MIN_COST_SAMPLES} are needed"
            )
        return Missing(
            f"no {self._role.value} pod has learnt a step cost that can be: a full step costs nothing or hours"
        )

    def _served(self) -> tuple[PodServed, ...]:
        served = [_served(name, found, self._windows.fast_s) for name, found in self._pods]
        known = tuple(pod for pod in served if pod is not None)
        return known if len(known) == len(served) else ()


def mean_length(lengths: HistogramSnapshot) -> float:
    """Tokens of a request on average; 0 without any."""
    tokens = sum(count * mean_between(lower, upper) for lower, upper, count in closed_buckets(lengths))
    return tokens / lengths.total if lengths.total > 0 else 0.0


def _guess_tokens(waiting: Reading[float], arrivals: Reading[HistogramSnapshot]) -> Reading[float]:
    """Tokens of so many requests of the mean length, where an engine shows their number alone."""
    if isinstance(waiting, Missing) or waiting.value == 0:
        return waiting
    if isinstance(arrivals, Missing):
        return arrivals
    mean = mean_length(arrivals.value)
    if mean <= 0:
        return Missing("requests wait, and none has ended from whose length theirs could be guessed")
    fresh = isinstance(waiting, Sample) and isinstance(arrivals, Sample)
    return (Sample if fresh else Stale)(waiting.value * mean, min(waiting.at_s, arrivals.at_s))


def _total(
    pods: Sequence[tuple[str, Reading[PodLoad]]],
    name: str,
    pick: Callable[[PodLoad], T | None],
    merge: Callable[[Sequence[T]], T],
) -> Reading[T]:
    """One value over all pods, of which every one is needed."""
    values, at_s, stale = [], math.inf, False
    for pod, found in pods:
        if isinstance(found, Missing):
            return found
        value = pick(found.value)
        if value is None:
            return Missing(f"pod {pod} shows no usable value of {name} yet")
        values.append(value)
        at_s, stale = min(at_s, found.at_s), stale or isinstance(found, Stale)
    return Stale(merge(values), at_s) if stale else Sample(merge(values), at_s)


def _map(reading: Reading[T], change: Callable[[T], U]) -> Reading[U]:
    if isinstance(reading, Missing):
        return reading
    value = change(reading.value)
    return Sample(value, reading.at_s) if isinstance(reading, Sample) else Stale(value, reading.at_s)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _add_pairs(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(first for first, _ in pairs), sum(second for _, second in pairs)


def _full_step_s(cost: StepCost, step_tokens: float | None, role: Role) -> float:
    """A full step of prefill, of a decode pod one of a single token: what orders the fits, and tells those that cannot
    be."""
    if role is Role.DECODE:
        return max(0.0, cost.fixed) + max(0.0, cost.decode_token)
    return max(0.0, cost.fixed) + max(0.0, cost.prefill_token) * (step_tokens or 1.0) if cost.prefill_token > 0 else 0.0


def _served(name: str, found: Reading[PodLoad], least_s: float) -> PodServed | None:
    """What a pod did, if all of it is known."""
    if not isinstance(found, Sample):
        return None
    pod = found.value
    if pod.watched_s is None or pod.watched_s < least_s or pod.prefill_tokens is None:
        return None
    if pod.busy is None or pod.waited is None:
        return None
    decoded = (pod.decode_tokens or 0.0) / pod.watched_s
    return PodServed(name, pod.prefill_tokens / pod.watched_s, decoded, pod.busy, pod.waited)
