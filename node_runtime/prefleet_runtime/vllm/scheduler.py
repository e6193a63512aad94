"""The scheduler of vLLM, with its waiting queue replaced. Named on the command line as

    --scheduler-cls prefleet_runtime.vllm.scheduler.make_scheduler
    --additional-config '{"prefleet": {"policy_file": "/etc/prefleet/policy/policy.json"}}'

`schedule()` is never copied: what it reads is prepared before the call, and what it did is read from its
output after it. A step, always on the engine's thread:

1. cached lengths of a few waiting longs are looked up anew, and requests that the engine holds back (a
   grammar being compiled) are marked, so that they hold nobody else back;
2. the governor takes a new policy, if there is one, and fixes the order;
3. heads that found no room in the KV cache, of which no more is free now than then, step aside, while
   something runs and something else waits;
4. the step's budget is decided and set, for this step alone (`budget`);
5. the engine schedules;
6. what it took from the queue is committed, in that order, with the wait since the request arrived; if the step
   carries prefill, all its tokens count as work done, by which `hrrn` ages.

`kv_holding_waiting` (requests that hold KV blocks already) stays the engine's own, first come first served; releases
before 0.31 are made to do the same (`skipped_waiting`).

What of this only advises or counts may fail, and the engine goes on without it (`faults`); the queue may not.

Left out: the engine's own order by priorities (`--scheduling-policy priority` is refused).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import vllm
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from ..contract import InvalidPolicyError, RuntimeSettings
from ..device import Device, find_cpu, find_device
from ..governor import Governor
from .releases import require_supported
from .steps import Clock, Steps

logger = logging.getLogger(__name__)

REAL_CLOCK = Clock()


class SetupError(RuntimeError):
    """The engine was started with settings that the runtime cannot work with; the message says the fix."""


def make_scheduler(**kwargs: Any) -> Scheduler:
    """Build the scheduler that the engine would run, synchronous or asynchronous, with our waiting queue.

    `kwargs` are the engine's; a `clock` among them stands in for the real one (a simulation has its own).

    Raises:
        UnsupportedReleaseError, SetupError, InvalidPolicyError: with one sentence that says what to do.
        OSError: the exporter's port cannot be had.
    """
    require_supported(vllm.__version__)
    config = kwargs["vllm_config"]
    settings = read_settings(config)
    _log_as_the_engine_does()
    cls = GovernedAsyncScheduler if config.scheduler_config.async_scheduling else GovernedScheduler
    device = _device()
    rank = config.parallel_config.data_parallel_index
    governor: Governor[Request] = Governor.start(settings, rank=rank, device=device)
    logger.info(
        "Prefleet orders the queue: policy %s, generation %d, from %s; on %s; metrics on port %d",
        governor.policy.policy,
        governor.policy.generation,
        settings.policy_file,
        device,
        governor.exporter_port,
    )
    try:
        return cls(governor, **kwargs)
    except BaseException:
        governor.close()
        raise


def _device() -> Device:
    """What the engine computes on; its platform decides, as torch may see an accelerator that a CPU build leaves alone.

    With several workers this process has no context on the device: then the platform knows the name.
    """
    device = find_cpu() if current_platform.is_cpu() else find_device()
    return device if device.name is not None else replace(device, name=current_platform.get_device_name())


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

    def __init__(self, governor: Governor[Request], *args: Any, clock: Clock = REAL_CLOCK, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prefleet = Steps(self, governor, clock)
        self.prefleet.watch_allocations()
        self.waiting = self.prefleet.waiting
        if hasattr(self, "skipped_waiting"):  # 0.28 to 0.30
            self.skipped_waiting = self.prefleet.skipped_waiting

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        began, now = self.prefleet.clock.steady(), self.prefleet.clock.wall()
        self.prefleet.prepare(now)
        with self.prefleet.budgets.applied() as decode_only:
            output = super().schedule(True) if decode_only else super().schedule(*args, **kwargs)
        self.prefleet.commit(output, now, began)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        answers = super().update_from_output(scheduler_output, *args, **kwargs)
        self.prefleet.end(scheduler_output)
        return answers

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        # Private, yet the one place that every end of a request passes once: answered, stopped or aborted.
        self.prefleet.ended(request)
        return super()._free_request(request, *args, **kwargs)

    def shutdown(self) -> None:
        super().shutdown()
        self.prefleet.governor.close()


class GovernedAsyncScheduler(GovernedScheduler, AsyncScheduler):  # type: ignore[misc]
    """The same over the asynchronous scheduler."""
