"""Which pods of a role go first when it becomes smaller: those with the least to do. Pure.

A ReplicaSet that has to take pods away takes those that do not serve, and among the others the one whose annotation
`controller.kubernetes.io/pod-deletion-cost` is lowest. So before fewer replicas are asked for, by whomever, the pods of
that role say what they cost: their unfinished requests, KV that is held for decode included. The figure is that of the
last reading, seconds old, and a hint, no promise: the pod that goes still drains.

A pod of which no fresh reading is there keeps what it says. One that never said anything counts as 0, like an idle one:
what does not answer is missed least. Only values that change are written, and only when a count falls, since each write
to a pod wakes every watcher of pods. Whoever is to follow a number may never do so, such as a HorizontalPodAutoscaler
without its metric: `FOLLOWED_S` after a number fell, a pod that has said something says nothing more. Left out: groups
of several nodes, whose controller goes by number alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prefleet_operator.api import Role
from prefleet_operator.core.observed import Reading, Sample

HIGHEST: Final = 2**31 - 1
"""What Kubernetes takes: a number of 32 bits."""

FOLLOWED_S: Final = 180.0
"""In what time another controller takes up a number: a scrape, the rate of its queries, and its own turn."""


@dataclass(frozen=True, slots=True)
class CostedPod:
    """One pod of a role. `cost`: what it says now, None if nothing that can be read."""

    name: str
    role: Role
    cost: int | None = None


def falling_roles(asked: Mapping[Role, int], live: Mapping[Role, int]) -> frozenset[Role]:
    """The roles that are to have fewer replicas than their workloads ask for now; one without a workload is none."""
    return frozenset(role for role, count in asked.items() if role in live and count < live[role])


def late_roles(fell_at_s: Mapping[Role, int | None], now: float) -> frozenset[Role]:
    """Of the sized roles those whose number did not fall, or fell so long ago that it should have been followed."""
    return frozenset(role for role, at_s in fell_at_s.items() if at_s is None or now - at_s >= FOLLOWED_S)


def deletion_costs(
    pods: Iterable[CostedPod],
    loads: Mapping[str, Reading[float]],
    falling: frozenset[Role],
    late: frozenset[Role] = frozenset(),
) -> dict[str, int]:
    """By pod name, what is to be written. `late`: roles whose number should have been followed by now."""
    costs = {}
    for pod in pods:
        load = loads.get(pod.name)
        if pod.role not in falling or not isinstance(load, Sample) or (pod.role in late and pod.cost is not None):
            continue
        cost = min(HIGHEST, max(0, round(load.value)))
        if cost != pod.cost:
            costs[pod.name] = cost
    return costs
