"""LightLLM's two queues in the simulated engine: a router that admits in order of arrival, and rounds behind it.

What LightLLM's sources say (ModelTC/LightLLM, 2026; `ChunkedPrefillQueue` in req_queue/chunked_prefill/impl.py, and
`_get_classed_reqs` in mode_backend/base_backend.py):

- a strategy orders only what the router has admitted, and the router admits first come, first served: in each cycle as
  long as the first chunks of what it admits fit into twice `batch_max_tokens`, and as what it has admitted, prompts
  and answers, fits into the KV cache; the first that does not holds all others;
- a round takes the prefill chunks in the strategy's order, passing over those that do not fit whole.

The second is `Limits.whole_chunks`; the first is here. A cycle is a round of the engine.

Left out: that LightLLM expects answers shorter than `max_tokens` and orders started prefills among the waiting (here
they go first, as in vLLM); a waiting request is passed over eight times at most (the queue's bound) and then holds
its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from prefleet_runtime.contract import RuntimePolicy
from prefleet_runtime.queueing import PolicyQueue, make_queue
from prefleet_runtime.sim.cost_model import EngineProfile, StepCost
from prefleet_runtime.sim.engine import Engine, PlainQueue
from prefleet_runtime.sim.state import Limits, SimRequest


class Router:
    """Holds what has arrived until the engine may have it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._limits = engine.limits
        self._waiting: deque[SimRequest] = deque()
        self._admitted: list[SimRequest] = []

    def add(self, request: SimRequest) -> None:
        self._waiting.append(request)

    def cycle(self) -> None:
        """Admit what one cycle admits."""
        limits = self._limits
        self._admitted = [r for r in self._admitted if r.generated < r.max_tokens]
        room = limits.kv_cache_tokens - sum(_most_tokens(request) for request in self._admitted)
        first_chunks = 2 * limits.max_num_batched_tokens
        while self._waiting:
            head = self._waiting[0]
            room -= _most_tokens(head)
            first_chunks -= min(head.prompt_tokens, limits.whole_chunks or head.prompt_tokens)
            if room < 0 or first_chunks < 0:
                return
            self._engine.submit(self._waiting.popleft())
            self._admitted.append(head)


def serve(requests: Sequence[SimRequest], policy: RuntimePolicy, cost: StepCost, limits: Limits) -> float:
    """Serve requests, whose arrivals ascend, to their ends; answers when the last one ended (seconds)."""
    queue: PolicyQueue[SimRequest] = make_queue(policy)
    profile = EngineProfile("given", cost, limits.kv_cache_tokens, kv_transfer_token_s=0.0)
    engine = Engine(profile, limits, PlainQueue(queue))
    router, coming, now = Router(engine), deque(requests), 0.0
    while coming or engine.unfinished:
        while coming and coming[0].arrival_s <= now:
            router.add(coming.popleft())
        router.cycle()
        plan = engine.schedule(now)
        if plan is None:
            now = coming[0].arrival_s
            continue
        now += plan.cost_s
        engine.finish(plan, now)
    return now


def _most_tokens(request: SimRequest) -> int:
    return request.prompt_tokens + request.max_tokens
