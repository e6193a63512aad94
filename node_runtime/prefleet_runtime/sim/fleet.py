"""A fleet of simulated pods under a virtual clock: events in the order of their times, and nothing else moves.

    requests -> router -> prefill (or mixed) pods -> [KV on its way] -> decode pods

A pod steps whenever it has something to do; a step begins when the last one ended, and what arrives meanwhile, or at
the very moment at which it begins, is seen by it. The engine, its queue and its step budget are the runtime's own
code (`engine`, `queueing`, `stage`). A policy that decides by what steps cost learns that from the true cost of each
step; for the others nobody would read it.

With decode pods a request is prefilled for one token, which is thrown away as vLLM's proxies do, and then queued at a
decode pod, which fetches the KV. Its first token is the decode pod's.

Memory grows with what waits and runs, not with the number of requests: they come from an iterator, and whoever
wants to know of their fates is told as they pass (`Watcher`).

Left out: the network between client and pod, and pods that start or fail.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from prefleet_runtime.contract import RuntimePolicy
from prefleet_runtime.queueing import Dispatch, make_queue
from prefleet_runtime.sim.clairvoyant import ClairvoyantEngine
from prefleet_runtime.sim.cost_model import DEFAULT_PROFILE, EngineProfile
from prefleet_runtime.sim.engine import Engine, PlainQueue
from prefleet_runtime.sim.router import RouterKind, make_router
from prefleet_runtime.sim.state import Limits, SimRequest, StepPlan
from prefleet_runtime.stage import Arbiter


@dataclass(frozen=True)
class FleetShape:
    """`prefill` pods and `decode` pods, or with `decode` 0 mixed pods; all of one profile and the same limits."""

    prefill: int = 1
    decode: int = 0
    router: RouterKind = RouterKind.ROUND_ROBIN
    profile: EngineProfile = DEFAULT_PROFILE
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.prefill < 1 or self.decode < 0:
            raise ValueError(f"{self.prefill} prefill and {self.decode} decode pods: give at least 1 and 0")


class Watcher(Protocol):
    """Is told what happens, in the order of its times."""

    def dispatched(self, request: SimRequest, dispatch: Dispatch, now: float) -> None: ...
    def answered(self, request: SimRequest, now: float) -> None: ...


class Pod:
    """One engine and the step that it is in."""

    def __init__(self, shape: FleetShape, policy: RuntimePolicy | None) -> None:
        """Without a policy the pod is clairvoyant."""
        arbiter = Arbiter(policy) if policy is not None else None
        self.learner = arbiter if arbiter is not None and arbiter.reads_cost else None
        self.engine = (
            Engine(shape.profile, shape.limits, PlainQueue(make_queue(policy), arbiter))
            if policy is not None
            else ClairvoyantEngine(shape.profile, shape.limits)
        )
        self.plan: StepPlan | None = None
        self.pending_tokens = 0

    def cached_tokens(self, request: SimRequest) -> int:
        return self.engine.kv.cached_tokens(request)


class VirtualFleet:
    """See the module. To be run once."""

    def __init__(self, shape: FleetShape, policy: RuntimePolicy | None, watcher: Watcher) -> None:
        """`policy` None: the clairvoyant bound (`clairvoyant`)."""
        self.prefill = [Pod(shape, policy) for _ in range(shape.prefill)]
        # A decode pod prefills nothing: its queue is first come first served, as the product renders it.
        self.decode = [Pod(shape, RuntimePolicy(generation=1)) for _ in range(shape.decode)]
        self.refused = 0
        self._watcher = watcher
        self._route = make_router(shape.router, self.prefill)
        self._route_decode = make_router(RouterKind.LEAST_TOKENS, self.decode) if self.decode else None
        self._events: list[tuple[float, int, Pod, StepPlan | None]] = []
        self._serial = count()
        self._handed_over: dict[str, tuple[SimRequest, Pod]] = {}

    def run(self, requests: Iterator[SimRequest]) -> float:
        """Serve all requests, whose arrivals ascend; answers when the last one ended (seconds).

        What no pod could ever hold is counted as `refused`, as an engine refuses it.
        """
        ended = 0.0
        events = self._events
        request = next(requests, None)
        while request is not None or events:
            if request is not None and (not events or request.arrival_s <= events[0][0]):
                self._arrive(request, request.arrival_s)
                request = next(requests, None)
            else:
                now, _, pod, plan = heapq.heappop(events)
                # A pod that was to look again may have begun a step since.
                if pod.plan is plan:
                    ended = ended if plan is None else now
                    self._end_step(pod, now)
        return ended

    def _arrive(self, request: SimRequest, now: float) -> None:
        pod = self.prefill[self._route(request)]
        if self._route_decode is not None:
            self._handed_over[request.request_id] = (request, pod)
            request = SimRequest(request.request_id, request.prompt_tokens, 1, now, keep_kv=True, prefix=request.prefix)
        self._submit(pod, request, now)

    def _submit(self, pod: Pod, request: SimRequest, now: float) -> None:
        try:
            pod.engine.submit(request)
        except ValueError:
            self.refused += 1
            self._handed_over.pop(request.request_id, None)
            return
        pod.pending_tokens += request.prompt_tokens
        self._wake(pod, now)

    def _wake(self, pod: Pod, now: float) -> None:
        """Have an idle pod look again; not at once: the step sees whatever else comes at this moment."""
        if pod.plan is None:
            heapq.heappush(self._events, (now, next(self._serial), pod, None))

    def _begin_step(self, pod: Pod, now: float) -> None:
        """Start the next step, or look again when something is due."""
        pod.plan = plan = pod.engine.schedule(now)
        if plan is not None:
            heapq.heappush(self._events, (now + plan.cost_s, next(self._serial), pod, plan))
            for request, dispatch in plan.dispatches:
                self._watcher.dispatched(request, dispatch, now)
        elif (due := pod.engine.next_event_s()) is not None:
            heapq.heappush(self._events, (max(now, due), next(self._serial), pod, None))

    def _end_step(self, pod: Pod, now: float) -> None:
        plan, pod.plan = pod.plan, None
        if plan is not None:
            outcome = pod.engine.finish(plan, now)
            if pod.learner is not None:
                pod.learner.observe(plan.work, plan.cost_s)
            for request in outcome.emitted:
                if request.generated == 1:
                    self._has_first_token(pod, request, now)
            for request in outcome.finished:
                self._is_done(pod, request, now)
        self._begin_step(pod, now)

    def _has_first_token(self, pod: Pod, request: SimRequest, now: float) -> None:
        pod.pending_tokens -= request.prompt_tokens
        if not request.keep_kv and (handed_over := self._handed_over.pop(request.request_id, None)):
            handed_over[1].engine.release(request.request_id)
            self._wake(handed_over[1], now)

    def _is_done(self, pod: Pod, request: SimRequest, now: float) -> None:
        if self._route_decode is None or not request.keep_kv:
            self._watcher.answered(request, now)
            return
        whole, _ = self._handed_over[request.request_id]
        whole.remote_kv = True
        self._submit(self.decode[self._route_decode(whole)], whole, now)
