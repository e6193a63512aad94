"""A bound that no policy reaches: prefills in the order of what is left to compute of them, preempted at chunk ends.

Shortest remaining processing time first has the least mean response of all rules on one server (Schrage, "A proof of
the optimality of the shortest remaining processing time discipline", Operations Research 16, 1968). Here each step
gives its tokens, after one for each decode, to the prefill with least left, then to the next. It knows lengths without
a threshold, lets nobody age, pays nothing for a preemption, and is bound by neither seats nor KV room.

Left out: decode is not ordered, so for whole answers it is no bound; KV that comes from elsewhere (decode pods).
"""

from __future__ import annotations

import heapq
from dataclasses import replace

from prefleet_runtime.contract import RuntimePolicy
from prefleet_runtime.queueing import Dispatch, Lane, make_queue
from prefleet_runtime.sim.cost_model import EngineProfile
from prefleet_runtime.sim.engine import Engine, PlainQueue
from prefleet_runtime.sim.state import Limits, Outcome, RequestState, SimRequest, StepPlan

BOUNDLESS_TOKENS = 10**12


class ClairvoyantEngine(Engine):
    """An engine without a queue: all that came and is not prefilled lies in one heap."""

    def __init__(self, profile: EngineProfile, limits: Limits) -> None:
        nobody = PlainQueue(make_queue(RuntimePolicy(generation=1)))
        super().__init__(profile, replace(limits, kv_cache_tokens=BOUNDLESS_TOKENS), nobody)
        self._prefills: list[tuple[int, int, SimRequest]] = []
        self._going: list[SimRequest] = []

    def submit(self, request: SimRequest) -> None:
        self._live[request.request_id] = request
        request.state = RequestState.RUNNING
        self.kv.start(request)
        self._push(request)

    def schedule(self, now: float) -> StepPlan | None:
        self._end_leases(now)
        plan = StepPlan(self.limits.max_num_batched_tokens)
        for request in self.running[: plan.budget]:
            self.kv.grow(request, 1)
            plan.include(request, 1)
        self._going = []
        while plan.budget and self._prefills:
            request = heapq.heappop(self._prefills)[2]
            self._going.append(request)
            tokens = min(plan.budget, request.prefill_until - request.computed)
            self.kv.grow(request, tokens)
            plan.include(request, tokens)
            if request.first_scheduled_s is None:
                request.first_scheduled_s = now
                wait_s = now - request.arrival_s
                plan.dispatches.append((request, Dispatch(request.request_id, Lane.ALL, wait_s, request.prompt_tokens)))
        return self._costed(plan)

    def finish(self, plan: StepPlan, now: float) -> Outcome:
        outcome = super().finish(plan, now)
        for request in self._going:
            if request.prefills:
                self._push(request)
            elif request.state is RequestState.RUNNING:
                self.running.append(request)
        return outcome

    def _push(self, request: SimRequest) -> None:
        left = request.prefill_until - request.computed
        heapq.heappush(self._prefills, (left, next(self._serial), request))
