"""What happens around each `schedule()` of the engine: the half before it, and what is read from its output.

Kept apart from the scheduler class on purpose: that class inherits several hundred private names of vLLM, any of
which a helper of ours could take by accident. It therefore owns one attribute, an object of this class.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from ..governor import Governor
from ..stage import StepWork, chunk_pairs
from ..telemetry import EngineLoad
from .budget import StepBudgets
from .cached_length import cached_length, heads_looked_at
from .faults import Faults
from .skipped_waiting import SkippedWaiting
from .waiting_queue import WaitingQueue, is_deferred, is_void

STEPS_IN_FLIGHT = 64
"""More than any pipeline depth: a bound on the steps whose start is remembered."""


@dataclass(frozen=True)
class Clock:
    """Seconds: `wall` on the axis of `Request.arrival_time`, `steady` for how long a step takes."""

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.perf_counter


class Steps:
    """The governor's side of one scheduler's steps; all calls come from the engine's thread."""

    def __init__(self, scheduler: Scheduler, governor: Governor[Request], clock: Clock) -> None:
        self.governor = governor
        self.clock = clock
        self.faults = Faults(governor.count_fault)
        self.cached_tokens = cached_length(scheduler.kv_cache_manager)
        self._heads = heads_looked_at(scheduler.kv_cache_manager)
        self.waiting = WaitingQueue(governor, self.cached_tokens, self.faults)  # stands in for `Scheduler.waiting`
        self.skipped_waiting = SkippedWaiting(self.waiting)  # of use in releases that have such a queue
        self._scheduler = scheduler
        self._free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks
        self.budgets = StepBudgets(scheduler, governor, self._head_fits, self.faults)
        self._began: deque[tuple[SchedulerOutput, StepWork, float]] = deque(maxlen=STEPS_IN_FLIGHT)
        self._last_end_s = 0.0
        self._processed_prefill_tokens = 0
        self._kv_tokens = _kv_tokens(scheduler)
        self._step_tokens = int(scheduler.max_num_scheduled_tokens)  # before any step lowers it
        governor.show_load(self._load)

    def prepare(self, now: float) -> None:
        """Before `schedule()`: fix the order of the step that begins at `now`."""
        with self.faults.survived("looking up what is cached of waiting longs"):
            self.governor.refresh_heads(self.cached_tokens, self._heads)
        with self.faults.survived("marking what the engine holds back"):
            self._mark_deferred()
        self.governor.begin_step(now, self._processed_prefill_tokens)
        with self.faults.survived("letting heads step aside"):
            self._step_aside()

    def commit(self, output: SchedulerOutput, now: float, began_s: float) -> None:
        """After `schedule()`: count what it took from the queue."""
        with self.faults.survived("counting what a step took"):
            self._commit(output, now, began_s)

    def _commit(self, output: SchedulerOutput, now: float, began_s: float) -> None:
        for request_id, scheduled in _taken_from_queue(output):
            request = self._scheduler.requests[request_id]
            self.waiting.no_room.pop(request_id, None)
            left = request.num_tokens - request.num_computed_tokens + scheduled
            dispatch = self.governor.dispatched(request_id, now, max(1, left))
            self.budgets.started(request, dispatch)
        work = work_of(output, self._scheduler.requests)
        if work.prefill_tokens:
            self._processed_prefill_tokens += output.total_num_scheduled_tokens
        self._began.append((output, work, began_s))

    def end(self, output: SchedulerOutput) -> None:
        """After `update_from_output()`: the step is over."""
        with self.faults.survived("measuring a step"):
            self._end(output)

    def _end(self, output: SchedulerOutput) -> None:
        ended = self.clock.steady()
        while self._began:
            candidate, work, began = self._began.popleft()
            if candidate is output:
                # Steps overlap under asynchronous scheduling: a step lasts from the end of the one before.
                seconds = ended - max(began, self._last_end_s)
                self.governor.end_step(self.clock.wall(), seconds, output.total_num_scheduled_tokens, work)
                break
        self._last_end_s = ended

    def ended(self, request: Request) -> None:
        """A request leaves the engine, however it ended; the queue may hold it yet where a dispatch was not counted."""
        self.governor.queue.remove(request.request_id)
        if is_void(request):
            return
        with self.faults.survived("noting the end of a request"):
            self.governor.ended(
                request.request_id, request.arrival_time, request.num_prompt_tokens, request.num_output_tokens
            )

    def watch_allocations(self) -> None:
        """Learn which waiting requests find no room: `allocate_slots` alone knows."""
        manager = self._scheduler.kv_cache_manager
        allocate_slots = manager.allocate_slots

        def watched(request: Request, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate_slots(request, *args, **kwargs)
            if blocks is None and request.status is not RequestStatus.RUNNING:
                self.waiting.no_room[request.request_id] = self._free_blocks()
            return blocks

        manager.allocate_slots = watched

    def _load(self) -> EngineLoad:
        """Called by threads of the exporter's: two lengths and a few numbers are read, nothing is walked."""
        scheduler = self._scheduler
        return EngineLoad(
            running=len(scheduler.running),
            # What is held for a decode pod stays among these, and has left every queue.
            unfinished=len(scheduler.requests),
            kv_usage=float(scheduler.kv_cache_manager.usage),
            kv_tokens=self._kv_tokens,
            step_tokens=self._step_tokens,
        )

    def _mark_deferred(self) -> None:
        newer = hasattr(self._scheduler, "deferred_waiting")
        for request in self._scheduler.deferred_waiting if newer else self.skipped_waiting.deferred():
            # One that the last scan put back for another reason (no adapter slot, say) is held back as well. One that
            # it did not reach, or that lacked room, stays in that set too: it waits like any other.
            put_back = request.status is RequestStatus.WAITING and request.request_id in self.waiting.put_back
            self.governor.queue.set_deferred(request.request_id, put_back or is_deferred(request))
        self.waiting.put_back.clear()

    def _step_aside(self) -> None:
        queue = self.governor.queue
        others = len(queue) - 1
        while self._scheduler.running and others > 0 and queue and self._has_no_room(queue.peek()):
            if not queue.bypass_head():
                return
            others -= 1

    def _head_fits(self) -> bool:
        queue = self.governor.queue
        return bool(queue) and not self._has_no_room(queue.peek())

    def _has_no_room(self, request: Request) -> bool:
        free_then = self.waiting.no_room.get(request.request_id)
        return free_then is not None and self._free_blocks() <= free_then


def work_of(output: SchedulerOutput, requests: Mapping[str, Request]) -> StepWork:
    """What a step computes. Prefill is any part of a prompt, and what a preempted request had and computes again.

    To be asked after `schedule()`, which counts the step's tokens as computed already, and before its output is in.
    """
    prefill = decode = context = 0
    pairs = 0.0
    for name, tokens in output.num_scheduled_tokens.items():
        request = requests[name]
        computed = request.num_computed_tokens - tokens
        # A decode has everything computed but its last token, under asynchronous scheduling even that.
        if computed < max(request.num_prompt_tokens, request.num_tokens - 1):
            prefill += tokens
            pairs += chunk_pairs(computed, tokens)
        else:
            decode += tokens
            context += tokens * computed
    return StepWork(prefill, decode, pairs, context)


def _kv_tokens(scheduler: Scheduler) -> int:
    """What the KV cache holds, as the engine has reckoned it for its groups of layers; else by its blocks.

    One block is the null block, which holds nothing.
    """
    told = scheduler.cache_config.kv_cache_size_tokens
    if told:
        return int(told)
    blocks = scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1
    return int(blocks // max(1, len(scheduler.kv_cache_config.kv_cache_groups)) * scheduler.block_size)


def _taken_from_queue(output: SchedulerOutput) -> Iterator[tuple[str, int]]:
    """Requests that this step started or resumed, with their tokens, in the order in which they were taken."""
    taken = {request.req_id for request in output.scheduled_new_reqs}
    taken |= output.scheduled_cached_reqs.resumed_req_ids
    return ((name, tokens) for name, tokens in output.num_scheduled_tokens.items() if name in taken)
