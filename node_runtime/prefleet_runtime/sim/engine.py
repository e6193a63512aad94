"""The simulated engine: a scheduler in vLLM's shape over a cost model, without a clock and without I/O.

    submit(request) ... plan = schedule(now) -> [plan.cost_s pass] -> finish(plan, end) -> Outcome, and again

Each step has a token budget, spent as vLLM spends it: running requests first, in the order in which they
started (one token for each decode, the next chunk for each unfinished prefill); then requests whose remote KV
has arrived; then the waiting queue, whose policy says who is next, as long as budget, seats and KV room last.
A waiting head that finds no room in the KV cache ends the step's admissions, and steps aside from the next step on
until blocks are freed (`bypass_head`), as in the vLLM adapter. When a decode finds no free block, the
last of `running` is preempted: its KV is dropped and it returns to the queue to be recomputed. What the step budget
decides (`stage`) is applied as in the vLLM adapter, by order, limits and holds.

The same code serves the real-time server and a virtual-clock replay: time is an argument and nothing else
moves. The caller owns the axis, and `now` never decreases.

Invariants (`check_integrity`): all KV blocks are accounted for (`kv_cache`); a live request is in exactly one of queue,
loading and running; an idle engine owns no block.

With `Limits.whole_chunks` prefill is batched by LightLLM's rule instead (`StepPlan`): what does not fit whole in what
is left of the step is passed over, a waiting head like one without KV room.

How it differs from vLLM: the prefix cache knows
prompts alone, by hashes that the request brings, and only once their prefill is complete, so that what was preempted
finds nothing of its own; waiting longs are not looked up anew; no speculative decoding, no EOS: a request generates
`max_tokens` tokens. Where none of these matters the two agree to the token (tests/vllm/inproc/test_replay_agreement).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count
from typing import Protocol

from prefleet_runtime.queueing.base import Dispatch, Lane, PolicyQueue, RequestFacts
from prefleet_runtime.sim.cost_model import EngineProfile
from prefleet_runtime.sim.kinds import Kinds, Started
from prefleet_runtime.sim.kv_cache import KvCache
from prefleet_runtime.sim.state import (
    BLOCK_TOKENS,
    Held,
    Limits,
    Outcome,
    RequestState,
    SimRequest,
    StepPlan,
    blocks_for,
)
from prefleet_runtime.stage import UNLIMITED, Arbiter, StepBudget, StepView


class Waiting(Protocol):
    """What the engine asks of what waits: a `Governor`, or `PlainQueue` where nothing is served or watched.

    `queue` is read afresh for each call, since a new policy may replace it at `add` and `begin_step`.
    """

    @property
    def queue(self) -> PolicyQueue[SimRequest]: ...
    @property
    def shares_steps(self) -> bool: ...
    def add(self, item: SimRequest, facts: RequestFacts) -> None: ...
    def prepend(self, item: SimRequest, facts: RequestFacts) -> None: ...
    def remove(self, request_id: str) -> SimRequest | None: ...
    def begin_step(self, now: float, processed_prefill_tokens: int = 0) -> None: ...
    def plan_step(self, view: StepView) -> StepBudget: ...
    def dispatched(self, request_id: str, now: float, tokens: int) -> Dispatch | None: ...


class PlainQueue:
    """One policy's queue as the engine wants it, without policy file and metrics: for a virtual clock.

    `arbiter`: shares the steps; whoever drives the engine tells it what they cost (`observe`). Without one steps are
    the engine's own.
    """

    def __init__(self, queue: PolicyQueue[SimRequest], arbiter: Arbiter | None = None) -> None:
        self.queue = queue
        self._arbiter = arbiter
        self.add = queue.add
        self.prepend = queue.prepend
        self.remove = queue.remove
        self.begin_step = queue.begin_step
        self.dispatched = queue.commit

    @property
    def shares_steps(self) -> bool:
        return self._arbiter is not None and not self._arbiter.is_idle

    def plan_step(self, view: StepView) -> StepBudget:
        budget = self._arbiter.plan(view) if self._arbiter is not None else UNLIMITED
        self.queue.limit_longs(budget.new_longs)
        return budget


def step_aside(queue: PolicyQueue[SimRequest], head: SimRequest) -> bool:
    """Pass over a head that does not fit; whether another is the head now (the queue bounds how often)."""
    queue.bypass_head()
    return bool(queue) and queue.peek() is not head


class Engine:
    """See the module. Not thread-safe: one caller drives it."""

    def __init__(self, profile: EngineProfile, limits: Limits, waiting: Waiting) -> None:
        self.profile = profile
        self.limits = limits
        self.waiting = waiting
        self.running: list[SimRequest] = []
        self.kv = KvCache(limits)
        self.processed_prefill_tokens = 0
        self.preemptions = 0
        self.expired_leases = 0
        self._live: dict[str, SimRequest] = {}
        self._loading: list[tuple[float, int, SimRequest]] = []
        self._held: dict[str, Held] = {}
        self._no_room: dict[str, int] = {}
        self._serial = count()

    # What goes in and out between steps.

    def submit(self, request: SimRequest) -> None:
        """Queue a request. Raises ValueError if it could never fit in the KV cache, or if its id is taken."""
        needed = blocks_for(request.prompt_tokens + request.max_tokens)
        if needed > self.limits.blocks:
            raise ValueError(
                f"prompt and max_tokens need {needed * BLOCK_TOKENS} KV-cache tokens and the cache holds"
                f" {self.limits.blocks * BLOCK_TOKENS}: shorten the prompt or lower max_tokens"
            )
        if request.request_id in self._live or request.request_id in self._held:
            raise ValueError(f"request {request.request_id} is already here: give each an id of its own")
        request.cached_tokens = self.kv.cached_tokens(request)
        self.waiting.add(request, request.facts)
        self._live[request.request_id] = request

    def abort(self, request_id: str) -> bool:
        """Forget a request wherever it is, at any moment; False if it is unknown or done."""
        request = self._live.pop(request_id, None)
        if request is None:
            return False
        self.waiting.remove(request_id)
        self._no_room.pop(request_id, None)
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
        elif request.state is RequestState.LOADING:
            self._loading = [entry for entry in self._loading if entry[2] is not request]
            heapq.heapify(self._loading)
        self.kv.release(request)
        request.state = RequestState.ABORTED
        return True

    def release(self, request_id: str) -> bool:
        """The other pod has fetched the KV that was kept for it; False if it is not (or no longer) held."""
        held = self._held.pop(request_id, None)
        if held is None:
            return False
        self.kv.release_held(held)
        return True

    @property
    def used_fraction(self) -> float:
        """Share of the KV cache in use, blocks held for other pods included."""
        return 1 - self.kv.free / self.kv.total

    @property
    def loading(self) -> int:
        """Requests whose KV is on its way from another pod."""
        return len(self._loading)

    @property
    def held(self) -> int:
        """Finished requests whose KV is kept for another pod."""
        return len(self._held)

    @property
    def unfinished(self) -> int:
        """Requests that wait, load or run."""
        return len(self._live)

    def next_event_s(self) -> float | None:
        """When an engine that has nothing to schedule should look again, if not for a new request."""
        times = [entry[0] for entry in self._loading[:1]]
        times += [held.expires_s for held in list(self._held.values())[:1]]
        return min(times, default=None)

    # One step.

    def schedule(self, now: float) -> StepPlan | None:
        """Decide what the step that begins at `now` computes; None if there is nothing to do."""
        self._end_leases(now)
        self.waiting.begin_step(now, self.processed_prefill_tokens)
        self._step_aside()
        plan, going = self._plan_step()
        preempted = self._schedule_running(plan, going)
        self._resume_loaded(plan, now)
        if not preempted:
            self._admit(plan, now)
        for request, tokens in plan.admitted:
            dispatch = self.waiting.dispatched(request.request_id, now, tokens)
            if dispatch is not None and not request.preemptions:
                request.long = dispatch.lane is Lane.LONG
                plan.dispatches.append((request, dispatch))
        return self._costed(plan)

    def finish(self, plan: StepPlan, now: float) -> Outcome:
        """The step of `plan` ended at `now`. Requests aborted meanwhile are passed over."""
        outcome = Outcome(emitted=[], finished=[])
        running = RequestState.RUNNING
        for request, tokens in plan.items:
            if request.state is not running:
                continue
            request.computed += tokens
            if request.prefix and not request.generated and request.computed >= request.prompt_tokens:
                self.kv.publish(request)
            if request.computed < request.prefill_until:
                continue
            request.generated += 1
            if request.first_token_s is None:
                request.first_token_s = now
            outcome.emitted.append(request)
            if request.generated >= request.max_tokens:
                self._complete(request, now)
                outcome.finished.append(request)
        if outcome.finished:
            self.running = [request for request in self.running if request.state is running]
        return outcome

    def _costed(self, plan: StepPlan) -> StepPlan | None:
        if not plan.items:
            return None
        if plan.prefill_tokens:
            self.processed_prefill_tokens += plan.prefill_tokens + plan.decode_tokens
        plan.cost_s = self.profile.cost.step_s(plan.prefill_tokens, plan.decode_tokens, plan.pairs, plan.decode_context)
        return plan

    def _plan_step(self) -> tuple[StepPlan, list[SimRequest]]:
        """An empty plan with its limits, and what runs and is not held, in the order in which it is served."""
        shares, whole_chunks = self.waiting.shares_steps, self.limits.whole_chunks
        kinds = Kinds.of(self.running) if shares or whole_chunks is not None else None
        limits = self.waiting.plan_step(self._view(kinds)) if shares and kinds is not None else UNLIMITED
        plan = StepPlan(self.limits.max_num_batched_tokens, limits, whole_chunks)
        if kinds is None or not plan.in_order:
            return plan, self.running
        self.running = kinds.in_order(limits)
        return plan, kinds.going(limits)

    def _schedule_running(self, plan: StepPlan, going: Iterable[SimRequest]) -> bool:
        """Give every request that goes on its share; True if one had to be preempted."""
        before = self.preemptions
        for request in going:
            if not plan.budget:
                break
            if request.state is not RequestState.RUNNING:  # preempted for one before it
                continue
            tokens = plan.grant(request)
            if not tokens:
                continue
            if not self.kv.grow(request, tokens) and not self._make_room(request, tokens):
                break
            plan.include(request, tokens)
        return self.preemptions > before

    def _view(self, kinds: Kinds) -> StepView:
        """What the step finds, for whoever shares it."""
        decodes = len(kinds.decodes)
        queue = self.waiting.queue
        seats = self.limits.max_num_seqs - len(self.running)
        admits = seats > 0 and bool(queue) and not self._has_no_room(queue.peek())
        shorts, tokens, others = queue.ready_for(seats) if admits else (0, 0, 0)
        return StepView(
            budget=self.limits.max_num_batched_tokens,
            decodes=decodes,
            decode_tokens=decodes,
            decode_context=sum([request.computed for request in kinds.decodes]),
            shorts=Started(kinds.shorts),
            longs=Started(kinds.longs),
            waiting_shorts=shorts,
            waiting_short_tokens=tokens,
            waiting_longs=others,
        )

    def _resume_loaded(self, plan: StepPlan, now: float) -> None:
        while self._loading and self._loading[0][0] <= now and self._has_seat(plan):
            _, _, request = heapq.heappop(self._loading)
            request.computed = request.prompt_tokens - 1
            self._start(request, plan, now)

    def _admit(self, plan: StepPlan, now: float) -> None:
        queue = self.waiting.queue
        while self._has_seat(plan) and queue:
            head = queue.peek()
            granted = head.remote_kv or plan.grant(head) > 0
            if not granted and not plan.passes_over:
                break
            if not granted:
                if not step_aside(queue, head):
                    break
                continue
            if not self.kv.fits(head):
                self._no_room[head.request_id] = self.kv.free
                break
            queue.pop()
            self._no_room.pop(head.request_id, None)
            self.kv.start(head)
            if head.remote_kv:
                self._load(head, now)
            else:
                self._start(head, plan, now)

    def _step_aside(self) -> None:
        """Pass over heads that found no room, as long as something runs that may yet free blocks."""
        queue = self.waiting.queue
        others = len(queue) - 1
        while self._no_room and self.running and others > 0 and queue and self._has_no_room(queue.peek()):
            if not queue.bypass_head():
                return
            others -= 1

    def _has_no_room(self, request: SimRequest) -> bool:
        free_then = self._no_room.get(request.request_id)
        return free_then is not None and self.kv.free <= free_then

    def _has_seat(self, plan: StepPlan) -> bool:
        return plan.budget > 0 and len(self.running) < self.limits.max_num_seqs

    def _load(self, request: SimRequest, now: float) -> None:
        ready_s = now + request.prompt_tokens * self.profile.kv_transfer_token_s
        request.state = RequestState.LOADING
        self.kv.grow(request, request.known_tokens)
        heapq.heappush(self._loading, (ready_s, next(self._serial), request))

    def _start(self, request: SimRequest, plan: StepPlan, now: float) -> None:
        left = request.known_tokens - request.computed
        request.state = RequestState.RUNNING
        if request.first_scheduled_s is None:
            request.first_scheduled_s = now
        self.running.append(request)
        tokens = plan.grant(request)
        self.kv.grow(request, tokens)
        plan.include(request, tokens)
        plan.admitted.append((request, left))

    def _make_room(self, request: SimRequest, tokens: int) -> bool:
        """Preempt from the back until `tokens` more have their blocks; False if `request` fell itself."""
        while True:
            victim = self.running.pop()
            self._preempt(victim)
            if victim is request:
                return False
            if self.kv.grow(request, tokens):
                return True

    def _preempt(self, victim: SimRequest) -> None:
        self.kv.release(victim)
        self.preemptions += 1
        victim.preemptions += 1
        victim.computed = 0
        victim.remote_kv = False
        victim.prefill_until = victim.known_tokens
        victim.state = RequestState.WAITING
        self.waiting.prepend(victim, victim.facts)

    def _complete(self, request: SimRequest, now: float) -> None:
        request.state = RequestState.FINISHED
        del self._live[request.request_id]
        if request.keep_kv:
            self._held[request.request_id] = self.kv.hold(request, now + self.limits.kv_lease_s)
        else:
            self.kv.release(request)

    def _end_leases(self, now: float) -> None:
        """Leases have one length, so the dictionary's order is the order of their ends."""
        while self._held:
            request_id, held = next(iter(self._held.items()))
            if held.expires_s > now:
                return
            self.expired_leases += 1
            self.release(request_id)

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant of the module is broken. O(n); for tests and idle moments."""
        self.kv.check(self._live.values(), self._held.values())
        places = [r.request_id for r in self.running] + [entry[2].request_id for entry in self._loading]
        places += [r.request_id for r in self.waiting.queue]
        assert len(places) == len(set(places)), "a request is in two places"
        assert set(places) == set(self._live), f"lost or left over: {set(places) ^ set(self._live)}"
