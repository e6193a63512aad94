"""What happens seldom and costs more: a switch of the policy, and the sweep after many removals."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from time import thread_time_ns

from prefleet_runtime.contract import PolicyName, RuntimePolicy
from prefleet_runtime.queueing import PolicyQueue, make_queue, transfer
from vllm.v1.request import Request

from tests.benchmarks.subjects import Work


@dataclass(frozen=True)
class Rare:
    """Milliseconds of CPU time, since each happens once and a neighbour's share would count; with
    `waiting` requests: the switch from fcfs, the first step after it, and the longest of the removals when four
    fifths of them are aborted at random."""

    policy: PolicyName
    waiting: int
    switch_ms: float
    first_step_ms: float
    longest_remove_ms: float


def rare_costs(name: PolicyName, works: list[Work], threshold: int) -> Rare:
    """One of each."""
    old: PolicyQueue[Request] = make_queue(RuntimePolicy(generation=1))
    new: PolicyQueue[Request] = make_queue(RuntimePolicy(generation=2, policy=name, threshold=threshold))
    for number, work in enumerate(works):
        old.begin_step(0.0, 1000 * number)
        old.add(work.request, work.facts)
    times = [thread_time_ns()]
    transfer(old, new)
    times.append(thread_time_ns())
    new.begin_step(0.0, 1000 * len(works))
    new.peek()
    times.append(thread_time_ns())
    longest = 0
    for work in random.Random(1).sample(works, len(works) * 4 // 5):
        begun = thread_time_ns()
        new.remove(work.rid)
        longest = max(longest, thread_time_ns() - begun)
    switch, first = ((ended - begun) / 1e6 for begun, ended in pairwise(times))
    return Rare(name, len(works), round(switch, 1), round(first, 2), round(longest / 1e6, 2))
