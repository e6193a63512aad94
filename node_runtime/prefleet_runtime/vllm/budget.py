"""The step budget in vLLM: what a step finds, and how what is decided is set before `schedule()` and undone after.

`schedule()` runs as it is; only what it reads is changed, and only while it runs (`applied`), also if it raises:

| decided | set |
|---|---|
| order | `running` sorted, stably: decodes, short prefills, longs; it stays so (the engine preempts from the back) |
| decode only | `schedule(throttle_prefills=True)` with `prefill_capacity_bound` off: data-parallel balancing's way |
| all prefill | `max_num_scheduled_tokens`, what decodes need and that much more |
| any one prefill | `scheduler_config.long_prefill_token_threshold`, not adaptive; a smaller one of the user stays |
| held longs | `next_decode_eligible_step` one step ahead: pipeline parallelism's way |
| new longs | the limit of the queue itself (`limit_longs`) |

Which running prefills are long is what the queue said when they went; of those that no lane describes (preempted,
the next segment of a session, begun under another policy) what is left to compute says it, once.

With speculative decoding a decode's drafts are among its tokens, and no limit is below the width of a decode: the
engine pads a request that needs but one token to that width, and its assertions fail where it gets less. The slots
that a drafter takes beside the tokens of each request lessen the step; those of waiting shorts count as their tokens.

Left out: without chunked prefill a prompt goes in one piece or not at all, so there steps are the engine's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from ..governor import Governor
from ..queueing import Dispatch, Lane
from ..stage import Prefill, StepBudget, StepView
from .faults import Faults
from .waiting_queue import is_deferred


class StepBudgets:
    """One scheduler's step budgets. `head_fits` tells whether the queue's head may find room in the KV cache."""

    def __init__(
        self, scheduler: Scheduler, governor: Governor[Request], head_fits: Callable[[], bool], faults: Faults
    ) -> None:
        self._scheduler = scheduler
        self._governor = governor
        self._head_fits = head_fits
        self._faults = faults
        self._chunks = bool(scheduler.scheduler_config.enable_chunked_prefill)
        drafter = scheduler.vllm_config.speculative_config
        self._draft_slots = drafter.max_num_new_slots_for_drafting if drafter is not None else 0
        self._long: dict[str, bool] = {}

    @property
    def _is_idle(self) -> bool:
        return not (self._chunks and self._governor.shares_steps)

    def started(self, request: Request, dispatch: Dispatch | None) -> None:
        """A request was scheduled out of the queue, or (None) came by another way."""
        if self._is_idle or dispatch is None or dispatch.lane is Lane.ALL or request.num_preemptions:
            return
        self._long[request.request_id] = dispatch.lane is Lane.LONG

    @contextmanager
    def applied(self) -> Iterator[bool]:
        """Decide and set the budget of a step, for as long as the context lasts; answers whether only decodes may go.

        To be entered once in each step, after the queue has begun it.
        """
        if self._is_idle:
            self._long.clear()
            yield False
            return
        decode_only = False
        with ExitStack() as undo:
            undo.callback(self._governor.queue.limit_longs, None)
            with self._faults.survived("sharing a step"):
                view, started = self._look()
                budget = self._governor.plan_step(view)
                self._set(budget, view, started, undo)
                decode_only = budget.decode_only
            yield decode_only

    def _look(self) -> tuple[StepView, list[Request]]:
        """What the step finds, and the started prefills that it shows."""
        scheduler = self._scheduler
        started: list[Request] = []
        decodes = decode_tokens = context = 0
        for request in scheduler.running:
            if request.is_prefill_chunk:
                started.append(request)
            elif tokens := _decode_tokens(request):
                decodes += 1
                decode_tokens += tokens
                context += tokens * request.num_computed_tokens
        self._long = {request.request_id: self._is_long(request) for request in started}
        shorts, short_tokens, longs = self._waiting()
        view = StepView(
            budget=self._budget(decodes + len(started)),
            decodes=decodes,
            decode_tokens=decode_tokens,
            decode_context=context,
            shorts=[_prefill(request) for request in started if not self._long[request.request_id]],
            longs=[_prefill(request) for request in started if self._long[request.request_id]],
            waiting_shorts=shorts,
            waiting_short_tokens=short_tokens,
            waiting_longs=longs + self._ready_aside(),
        )
        return view, started

    def _budget(self, requests: int) -> int:
        """Tokens that a step with so many requests can compute."""
        inputs = self._scheduler.scheduler_config.max_num_batched_tokens - self._draft_slots * requests
        return max(1, int(min(self._scheduler.max_num_scheduled_tokens, inputs)))

    def _is_long(self, request: Request) -> bool:
        known = self._long.get(request.request_id)
        if known is not None:
            return known
        threshold = self._governor.policy.threshold
        return threshold is not None and _left(request) > threshold

    def _waiting(self) -> tuple[int, int, int]:
        """Shorts that could be admitted now, their tokens, and others that wait for their turn."""
        scheduler, queue = self._scheduler, self._governor.queue
        slots = getattr(scheduler, "max_num_active_reqs", scheduler.max_num_running_reqs)
        # A session between two segments does not run, yet keeps its seat.
        seats = slots - len(scheduler.running) - scheduler.num_waiting_for_streaming_input
        if seats <= 0 or not self._head_fits():
            return 0, 0, 0
        shorts, tokens, others = queue.ready_for(seats)
        return shorts, tokens + self._draft_slots * shorts, others

    def _ready_aside(self) -> int:
        """Requests aside from the queue that go before it: segments of sessions, which hold KV blocks already."""
        newer = hasattr(self._scheduler, "kv_holding_waiting")
        aside = self._scheduler.kv_holding_waiting if newer else self._scheduler.skipped_waiting
        return sum(not is_deferred(request) for request in aside)

    def _set(self, budget: StepBudget, view: StepView, started: list[Request], undo: ExitStack) -> None:
        scheduler, config = self._scheduler, self._scheduler.scheduler_config
        if budget.decode_only:
            _change(undo, scheduler, "prefill_capacity_bound", False)
            return
        if budget.in_order and started:
            long = self._long
            scheduler.running.sort(key=lambda r: budget.rank(r.is_prefill_chunk, long.get(r.request_id, False)))
        if budget.prefill_tokens is not None:
            most = view.decode_tokens + self._wide_enough(budget.prefill_tokens)
            _change(undo, scheduler, "max_num_scheduled_tokens", min(scheduler.max_num_scheduled_tokens, most))
        if budget.chunk_tokens is not None:
            widest = max((_decode_tokens(r) for r in scheduler.running if not r.is_prefill_chunk), default=1)
            chunk, own = max(widest, self._wide_enough(budget.chunk_tokens)), config.long_prefill_token_threshold
            _change(undo, config, "long_prefill_token_threshold", min(own, chunk) if own > 0 else chunk)
            if getattr(scheduler, "adaptive_long_prefill_threshold", False):
                _change(undo, scheduler, "adaptive_long_prefill_threshold", False)
        if budget.running_longs is not None:
            longs = [request for request in started if self._long[request.request_id]]
            for request in longs[budget.running_longs :]:
                ahead = max(request.next_decode_eligible_step, scheduler.current_step + 2)
                _change(undo, request, "next_decode_eligible_step", ahead)

    def _wide_enough(self, tokens: int) -> int:
        """The least limit from `tokens` on that stops nothing.

        That is the width of a decode with its drafts, and for hybrid models, which compute whole blocks only, a block.
        """
        tokens = max(tokens, 1 + self._scheduler.num_spec_tokens)
        if not getattr(self._scheduler, "need_mamba_block_aligned_split", False):
            return tokens
        block: int = self._scheduler.block_size
        return -(-tokens // block) * block


def _left(request: Request) -> int:
    """Tokens that a started prefill has yet to compute, at least 1."""
    return max(1, int(request.num_tokens - request.num_computed_tokens))


def _prefill(request: Request) -> Prefill:
    return Prefill(_left(request), request.num_computed_tokens)


def _decode_tokens(request: Request) -> int:
    """Tokens that the engine will schedule for a running decode: 0 if those in flight already end it."""
    in_flight = request.num_output_placeholders
    computed = request.num_computed_tokens
    if in_flight and computed + 2 - in_flight >= request.num_prompt_tokens + request.max_tokens:
        return 0
    return max(0, int(request.num_tokens_with_spec + in_flight - computed))


def _change(undo: ExitStack, owner: Any, name: str, value: object) -> None:
    """Set an attribute until `undo` is left."""
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
