"""The simulated engine in real time: one asyncio task that sleeps as long as each step would compute.

Steps follow one another on an absolute timeline: the next begins when the last one ends by the cost model,
not when the sleeping task woke, so that late wake-ups do not add up. The queue, on the other hand, sees the
clock: waits are what requests really waited. If the timeline falls behind the clock by more than
`MAX_LAG_S`, the machine is too small for what it simulates: the timeline starts anew and a warning says so.

The task hands out progress by setting an event per request; `request.generated` says how far it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from prefleet_runtime.governor import Governor
from prefleet_runtime.sim.engine import Engine
from prefleet_runtime.sim.state import BLOCK_TOKENS, SimRequest
from prefleet_runtime.sim.vllm_metrics import VllmMetrics
from prefleet_runtime.telemetry import EngineLoad

logger = logging.getLogger(__name__)

MAX_LAG_S = 1.0

clock = time.monotonic
"""The one axis of arrivals, steps and waits."""


class RealTimeEngine:
    """Drives an `Engine`; all methods run on the event loop's thread."""

    def __init__(self, engine: Engine, governor: Governor[SimRequest], metrics: VllmMetrics) -> None:
        self.engine = engine
        self._governor = governor
        self._metrics = metrics
        self._wakes: dict[str, asyncio.Event] = {}
        self._work = asyncio.Event()
        governor.show_load(self._load)

    def submit(self, requests: Sequence[SimRequest]) -> asyncio.Event:
        """Queue requests of one call; the event is set whenever one of them has progressed.

        Raises:
            ValueError: one could never run; then none of them is queued.
        """
        wake = asyncio.Event()
        try:
            for request in requests:
                self.engine.submit(request)
                self._wakes[request.request_id] = wake
        except ValueError:
            self.abandon(requests)
            raise
        self._work.set()
        return wake

    def abandon(self, requests: Sequence[SimRequest]) -> None:
        """Forget what is left of a call whose client is gone, or that is done."""
        for request in requests:
            self._wakes.pop(request.request_id, None)
            if self.engine.abort(request.request_id):
                self._metrics.abort(request.request_id)
                self._note_end(request)
        self._work.set()

    def release(self, request_id: str) -> bool:
        """Free KV that was kept for another pod."""
        freed = self.engine.release(request_id)
        self._work.set()
        return freed

    async def run(self) -> None:
        """Step for ever."""
        begin = ended = clock()
        while True:
            now = clock()
            begin = self._keep_up(begin, now)
            before = self.engine.preemptions
            plan = self.engine.schedule(now)
            if plan is None:
                await self._wait_for_work(now)
                begin = ended = clock()
                continue
            preempted = self.engine.preemptions - before
            begin += plan.cost_s
            await asyncio.sleep(begin - clock())
            now = clock()
            outcome = self.engine.finish(plan, now)
            self._governor.end_step(now, now - ended, plan.prefill_tokens + plan.decode_tokens, plan.work)
            self._metrics.step(plan, outcome, preempted, now)
            ended = now
            for request in outcome.finished:
                self._note_end(request)
            for request in outcome.emitted:
                wake = self._wakes.get(request.request_id)
                if wake is not None:
                    wake.set()

    def _load(self) -> EngineLoad:
        """Called by threads of the exporter's: only lengths and numbers are read."""
        engine, limits = self.engine, self.engine.limits
        kv_tokens = limits.blocks * BLOCK_TOKENS
        return EngineLoad(
            running=len(engine.running),
            unfinished=engine.unfinished + engine.held,
            kv_usage=engine.used_fraction,
            kv_tokens=kv_tokens,
            step_tokens=limits.max_num_batched_tokens,
        )

    def _note_end(self, request: SimRequest) -> None:
        self._governor.ended(request.request_id, request.arrival_s, request.prompt_tokens, request.generated)

    async def _wait_for_work(self, now: float) -> None:
        """Until something is submitted, freed or due. Only whole-idle moments are cheap enough to check."""
        due = self.engine.next_event_s()
        timeout = None if due is None else max(0.0, due - now)
        try:
            await asyncio.wait_for(self._work.wait(), timeout)
        except TimeoutError:
            return
        self._work.clear()

    def _keep_up(self, begin: float, now: float) -> float:
        lag = now - begin
        if lag <= MAX_LAG_S:
            return begin
        logger.warning("the simulated engine fell %.1f s behind real time and goes on from now: give it more CPU", lag)
        return now
