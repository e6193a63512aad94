"""What is not a cost of each operation: a switch of the policy, the sweep after many removals, and memory."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import dataclass
from itertools import pairwise
from time import thread_time_ns

from prefleet_runtime.contract import PolicyName, RuntimePolicy
from prefleet_runtime.queueing import PolicyQueue, make_queue, transfer
from vllm.v1.request import Request

from tests.benchmarks.subjects import Work


@dataclass(frozen=True)
class Rare:
    """What one policy costs beside its operations, with `waiting` requests.

    Milliseconds of CPU time (each happens once, so a neighbour's share would count): the switch from fcfs, the first
    step after it, and the longest of the removals when four fifths are aborted at random. Bytes: what the queue
    holds for a request, without the engine's request and its facts.
    """

    policy: PolicyName
    waiting: int
    switch_ms: float
    first_step_ms: float
    longest_remove_ms: float
    bytes_a_request: int


def rare_costs(name: PolicyName, works: list[Work], threshold: int) -> Rare:
    """One of each."""
    policy = RuntimePolicy(generation=2, policy=name, threshold=threshold)
    old, new = _filled(RuntimePolicy(generation=1), works), _empty(policy)
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
    return Rare(name, len(works), round(switch, 1), round(first, 2), round(longest / 1e6, 2), _bytes(policy, works))


def _empty(policy: RuntimePolicy) -> PolicyQueue[Request]:
    return make_queue(policy)


def _filled(policy: RuntimePolicy, works: list[Work]) -> PolicyQueue[Request]:
    queue = _empty(policy)
    for number, work in enumerate(works):
        queue.begin_step(0.0, 1000 * number)
        queue.add(work.request, work.facts)
    queue.begin_step(0.0, 1000 * len(works))
    queue.peek()
    return queue


def _bytes(policy: RuntimePolicy, works: list[Work]) -> int:
    tracemalloc.start()
    queue = _filled(policy, works)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held // len(queue)
