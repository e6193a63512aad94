"""The queues that the benchmark times, each behind the same four calls.

Prefleet's policies and vLLM's own queues hold the same `vllm.v1.request.Request` objects. SGLang's ordering is its
own function, given stand-ins for its requests with the four attributes that it reads. The naive forms are what
one writes first: a list, sorted in each step or searched for its shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from prefleet_runtime.contract import PolicyName, RuntimePolicy
from prefleet_runtime.queueing import PolicyQueue, RequestFacts, make_queue
from vllm import SamplingParams
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
from vllm.v1.request import Request

LONG_MAX_WAIT_MS = 8000
SAMPLING = SamplingParams(max_tokens=1)


class Work:
    """One request, ready to be added to any subject: nothing of what is timed has to be made."""

    num_matched_prefix_tokens = 0  # SGLang's name for what is cached

    def __init__(self, number: int, tokens: int) -> None:
        self.rid = self.request_id = f"request-{number}"
        self.tokens = tokens
        self.origin_input_ids = range(tokens)
        self.request = Request(self.rid, [0], SAMPLING, None, arrival_time=0.0, priority=tokens)
        self.arrive(0.0, 0)

    def arrive(self, now: float, processed: int) -> None:
        self.arrival_processed_tokens = processed
        self.request.arrival_time = now
        self.facts = RequestFacts(self.rid, now, self.tokens)


class Subject(Protocol):
    """A queue. `step` takes out the next request; `settle` follows it, once it was scheduled."""

    def add(self, work: Work) -> None: ...
    def step(self, now: float, processed: int) -> Request | Work: ...
    def settle(self, request_id: str, now: float, tokens: int) -> None: ...
    def remove(self, work: Work) -> None: ...


class Prefleet:
    """One of Prefleet's policies."""

    def __init__(self, name: PolicyName, threshold: int) -> None:
        policy = RuntimePolicy(generation=1, policy=name, threshold=threshold, long_max_wait_ms=LONG_MAX_WAIT_MS)
        self._queue: PolicyQueue[Request] = make_queue(policy)

    def add(self, work: Work) -> None:
        self._queue.add(work.request, work.facts)

    def step(self, now: float, processed: int) -> Request | Work:
        queue = self._queue
        queue.begin_step(now, processed)
        queue.peek()
        return queue.pop()

    def settle(self, request_id: str, now: float, tokens: int) -> None:
        self._queue.commit(request_id, now, tokens)

    def remove(self, work: Work) -> None:
        self._queue.remove(work.rid)


class Vllm:
    """vLLM's own queue; its priority queue is given the length as priority."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._queue = create_request_queue(policy)

    def add(self, work: Work) -> None:
        self._queue.add_request(work.request)

    def step(self, now: float, processed: int) -> Request | Work:
        queue = self._queue
        queue.peek_request()
        return queue.pop_request()

    def settle(self, request_id: str, now: float, tokens: int) -> None:
        pass

    def remove(self, work: Work) -> None:
        self._queue.remove_request(work.request)


class Listed:
    """A plain list; `order` brings the next request to its front."""

    def __init__(self, order: Callable[[list[Any], int], None]) -> None:
        self._waiting: list[Work] = []
        self._order = order

    def add(self, work: Work) -> None:
        self._waiting.append(work)

    def step(self, now: float, processed: int) -> Request | Work:
        self._order(self._waiting, processed)
        return self._waiting.pop(0)

    def settle(self, request_id: str, now: float, tokens: int) -> None:
        pass

    def remove(self, work: Work) -> None:
        self._waiting.remove(work)


def sort_by_ratio(waiting: list[Work], processed: int) -> None:
    waiting.sort(key=lambda work: -(processed - work.arrival_processed_tokens) / work.tokens)


def scan_for_shortest(waiting: list[Work], processed: int) -> None:
    place = min(range(len(waiting)), key=lambda at: waiting[at].tokens)
    waiting.insert(0, waiting.pop(place))


def sglang_order() -> Callable[[list[Any], int], None]:
    """SGLang's own ordering. Raises ImportError with what is missing."""
    policy = import_module("sglang.srt.managers.schedule_policy").SchedulePolicy
    return lambda waiting, processed: policy._sort_by_hrrn(waiting, set(), processed)


@dataclass(frozen=True)
class Entrant:
    """A subject's name in the table, and how a new one is made."""

    name: str
    make: Callable[[], Subject]


def entrants(threshold: int) -> Iterator[Entrant]:
    """Prefleet's policies, then their peers. SGLang is left out where it cannot be imported."""

    def prefleet(name: PolicyName) -> Entrant:
        return Entrant(name.value, lambda: Prefleet(name, threshold))

    yield from map(prefleet, PolicyName)
    yield Entrant("vllm_fcfs", lambda: Vllm(SchedulingPolicy.FCFS))
    yield Entrant("vllm_priority", lambda: Vllm(SchedulingPolicy.PRIORITY))
    try:
        order = sglang_order()
        yield Entrant("sglang_hrrn", lambda: Listed(order))
    except ImportError as error:
        print(f"sglang_hrrn is left out, SGLang cannot be imported: {error}")
    yield Entrant("hrrn_sort", lambda: Listed(sort_by_ratio))
    yield Entrant("promote_shortest_scan", lambda: Listed(scan_for_shortest))
