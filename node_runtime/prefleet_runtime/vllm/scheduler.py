"""The scheduler of vLLM, with its waiting queue replaced. Named on the command line as

    --scheduler-cls prefleet_runtime.vllm.scheduler.make_scheduler
    --additional-config '{"prefleet": {"policy_file": "/etc/prefleet/policy/policy.json"}}'

`schedule()` is never copied: what it reads is prepared before the call, and what it did is read from its
output after it. A step, always on the engine's thread:

1. cached lengths of a few waiting longs are looked up anew, and requests that the engine holds back (a
   grammar being compiled) are marked, so that they hold nobody else back;
2. the governor takes a new policy, if there is one, and fixes the order;
3. heads that found no room in the KV cache step aside, while something runs and something else waits;
4. the engine schedules;
5. what it took from the queue is committed, in that order, with the wait since the request arrived.

`kv_holding_waiting` (requests that hold KV blocks already) stays the engine's own, first come first served.

Left out: the step budget, and priorities set by clients (`--scheduling-policy priority` is refused).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from ..contract import InvalidPolicyError, RuntimeSettings
from ..governor import Governor
from .cached_length import cached_length
from .releases import require_supported
from .waiting_queue import WaitingQueue, is_deferred

STEPS_IN_FLIGHT = 64
"""More than any pipeline depth: a bound on the steps whose start is remembered."""


class SetupError(RuntimeError):
    """The engine was started with settings that the runtime cannot work with; the message says the fix."""


def make_scheduler(**kwargs: Any) -> Scheduler:
    """Build the scheduler that the engine would run, synchronous or asynchronous, with our waiting queue.

    Raises:
        UnsupportedReleaseError, SetupError, InvalidPolicyError: with one sentence that says what to do.
        OSError: the exporter's port cannot be had.
    """
    require_supported(vllm.__version__)
    config = kwargs["vllm_config"]
    settings = read_settings(config)
    _log_as_the_engine_does()
    cls = GovernedAsyncScheduler if config.scheduler_config.async_scheduling else GovernedScheduler
    return cls(Governor.start(settings, rank=config.parallel_config.data_parallel_index), **kwargs)


def _log_as_the_engine_does() -> None:
    # vLLM configures its own logger alone: without this, what the runtime says would be lost.
    engine, ours = logging.getLogger("vllm"), logging.getLogger("prefleet_runtime")
    ours.handlers = list(engine.handlers)
    ours.setLevel(engine.getEffectiveLevel())
    ours.propagate = engine.propagate


def read_settings(config: Any) -> RuntimeSettings:
    """The value of `prefleet` in the engine's --additional-config, checked."""
    additional = config.additional_config
    if not isinstance(additional, dict) or "prefleet" not in additional:
        raise SetupError(
            "Prefleet's scheduler needs its settings: add --additional-config "
            '\'{"prefleet": {"policy_file": "/etc/prefleet/policy/policy.json"}}\''
        )
    policy = config.scheduler_config.policy
    if policy != "fcfs":
        raise SetupError(f"Prefleet orders the queue itself: leave --scheduling-policy {policy} out")
    try:
        return RuntimeSettings.parse(additional["prefleet"])
    except InvalidPolicyError as error:
        raise SetupError(f"the key prefleet of --additional-config is wrong: {error}") from None


class GovernedScheduler(Scheduler):  # type: ignore[misc]  # vllm has no types here
    """The synchronous scheduler over a governor's queue; it owns the governor and closes it."""

    def __init__(self, governor: Governor[Request], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._governor = governor
        self._cached_tokens = cached_length(self.kv_cache_manager)
        self._no_room: set[str] = set()
        self._began: deque[tuple[SchedulerOutput, float]] = deque(maxlen=STEPS_IN_FLIGHT)
        self._last_end_s = 0.0
        self.waiting = WaitingQueue(governor, self._cached_tokens)
        self._watch_allocations()

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        began = time.perf_counter()
        now = time.time()
        self._governor.refresh_heads(self._cached_tokens)
        self._mark_deferred()
        self._governor.begin_step(now)
        self._step_aside()
        output = super().schedule(*args, **kwargs)
        self._commit(output, now)
        self._began.append((output, began))
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        answers = super().update_from_output(scheduler_output, *args, **kwargs)
        self._end_step(scheduler_output)
        return answers

    def finish_requests(self, *args: Any, **kwargs: Any) -> list[Request]:
        finished: list[Request] = super().finish_requests(*args, **kwargs)
        self._no_room.difference_update(request.request_id for request in finished)
        return finished

    def shutdown(self) -> None:
        super().shutdown()
        self._governor.close()

    def _mark_deferred(self) -> None:
        for request in self.deferred_waiting:
            # One that the last scan skipped for another reason (an adapter slot, say) is held back as well.
            held = request.status is RequestStatus.WAITING or is_deferred(request)
            self._governor.queue.set_deferred(request.request_id, held)

    def _step_aside(self) -> None:
        queue = self._governor.queue
        others = len(queue) - 1
        while self.running and others > 0 and queue and queue.peek().request_id in self._no_room:
            if not queue.bypass_head():
                return
            others -= 1

    def _commit(self, output: SchedulerOutput, now: float) -> None:
        for request_id, scheduled in self._taken_from_queue(output):
            request = self.requests[request_id]
            self._no_room.discard(request_id)
            left = request.num_tokens - request.num_computed_tokens + scheduled
            self._governor.dispatched(request_id, now, max(1, left))

    @staticmethod
    def _taken_from_queue(output: SchedulerOutput) -> list[tuple[str, int]]:
        taken = {request.req_id for request in output.scheduled_new_reqs}
        taken |= output.scheduled_cached_reqs.resumed_req_ids
        # This mapping alone keeps the order in which new and resumed requests were taken.
        return [(name, tokens) for name, tokens in output.num_scheduled_tokens.items() if name in taken]

    def _end_step(self, output: SchedulerOutput) -> None:
        ended = time.perf_counter()
        while self._began:
            candidate, began = self._began.popleft()
            if candidate is output:
                # Steps overlap under asynchronous scheduling: a step lasts from the end of the one before.
                seconds = ended - max(began, self._last_end_s)
                self._governor.end_step(time.time(), seconds, output.total_num_scheduled_tokens)
                break
        self._last_end_s = ended

    def _watch_allocations(self) -> None:
        """Learn which waiting requests find no room: `allocate_slots` alone knows."""
        allocate_slots = self.kv_cache_manager.allocate_slots

        def watched(request: Request, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate_slots(request, *args, **kwargs)
            if blocks is None and request.status is not RequestStatus.RUNNING:
                self._no_room.add(request.request_id)
            return blocks

        self.kv_cache_manager.allocate_slots = watched


class GovernedAsyncScheduler(GovernedScheduler, AsyncScheduler):  # type: ignore[misc]
    """The same over the asynchronous scheduler."""
