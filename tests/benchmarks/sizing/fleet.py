"""A simulated fleet whose pods come and go: mixed pods behind a router that picks the one with fewest prompt tokens.

Pods are `sim.fleet.Pod`s, so queue and engine are the runtime's own code. A pod that is ordered serves after the start
delay; one that is to go takes no new requests and is gone when it has answered those it has. Those that do not serve
yet go first, then those with least to do. Both cost accelerators for as long as they are there.

What makes it quick: steps that differ only by the growing context are taken as one (`_stretch`), up to the next end of
an answer and the last step before a scrape. Such are steps of nothing but decodes, up to the next request at that pod;
and those that one long prompt fills, chunk by chunk, in which nobody else can start. Times stay those of the single
steps, but for the context's growth, which is spread evenly over the stretch.

Left out: the network, pods that fail, and a router's own delay in seeing a new pod.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from prefleet_runtime.contract import RuntimePolicy
from prefleet_runtime.sim.cost_model import LLAMA_ON_A100, EngineProfile, derive_profile
from prefleet_runtime.sim.fleet import FleetShape, Pod
from prefleet_runtime.sim.hardware import A100_80GB_SXM, Accelerator, Transformer
from prefleet_runtime.sim.state import BLOCK_TOKENS, Limits, SimRequest, StepPlan
from prefleet_runtime.stage.cost_model import StepCostModel
from prefleet_runtime.telemetry import TOKEN_BOUNDS

# "The Llama 3 Herd of Models" (table 3): 70B parameters.
LLAMA_3_1_70B = Transformer(
    name="llama-3.1-70b",
    parameters=70.6e9,
    layers=80,
    hidden=8192,
    intermediate=28672,
    heads=64,
    kv_heads=8,
    head_size=128,
    vocabulary=128256,
)
ACCELERATORS = 4
"""Of one pod, taken as one of four times the figures: what their communication costs is left out."""
FOUR_A100 = Accelerator(
    name="4x-a100-80gb-sxm",
    peak_flop_s=ACCELERATORS * A100_80GB_SXM.peak_flop_s,
    memory_bytes_s=ACCELERATORS * A100_80GB_SXM.memory_bytes_s,
    memory_bytes=ACCELERATORS * A100_80GB_SXM.memory_bytes,
    network_bytes_s=A100_80GB_SXM.network_bytes_s,
)
PROFILE: EngineProfile = derive_profile(LLAMA_3_1_70B, FOUR_A100, LLAMA_ON_A100)
LIMITS = Limits(kv_cache_tokens=PROFILE.kv_cache_tokens)
SHAPE = FleetShape(profile=PROFILE, limits=LIMITS)
POLICY = RuntimePolicy(generation=1)
SCRAPE_S = 15.0
MOST_STEPS_WHILE_WAITING = 16
LEARN_EVERY = 8
"""Of so many steps one is shown to the model that fits their cost."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a request is promised: its wait before it starts and its mean gap between tokens, in seconds."""

    wait_s: float = 10.0
    gap_s: float = 0.4


LIMIT = Limit()


class ServingPod(Pod):
    """A pod with its life and its counters. `open`: what it does now leaves room for a request that comes."""

    def __init__(self, name: str, created_s: float, ready_s: float) -> None:
        super().__init__(SHAPE, POLICY)
        self.name, self.created_s, self.ready_s = name, created_s, ready_s
        self.draining = False
        self.gone_s = math.inf
        self.event = -1
        self.steps, self.began_s, self.step_s = 1, 0.0, 0.0
        self.open = True
        self.busy_s = 0.0
        self.prefill_tokens = self.decode_tokens = 0

    def serves(self, now: float) -> bool:
        return self.ready_s <= now and not self.draining


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a whole run: the share of requests that met their limits, accelerator hours, and replicas by time."""

    attainment: float
    accelerator_hours: float
    requests: int
    moves: tuple[tuple[float, int, int], ...]
    """(seconds, replicas before, replicas after)."""


Scale = Callable[["ScalingFleet", float], int]
"""Asked at each sync: how many pods there shall be."""


class ScalingFleet:
    """See the module. To be run once."""

    def __init__(
        self, replicas: int, start_s: float, scale: Scale, quota: int | None = None, *, learns: bool = False
    ) -> None:
        """`learns`: what steps cost is fitted, for a scaler that asks."""
        self.pods = [ServingPod(f"pod-{number}", 0.0, 0.0) for number in range(replicas)]
        self.start_s = start_s
        self.replicas = replicas
        self.quota = quota
        self.lengths = [0] * (len(TOKEN_BOUNDS) + 1)
        self.arrived_tokens = 0
        self.cost = StepCostModel()
        self._learns = learns
        self._names = count(replicas)
        self._scale = scale
        self._events: list[tuple[float, int, ServingPod]] = []
        self._serial = count()
        self._steps_seen = 0
        self._next_sync_s = SCRAPE_S
        self._missed = self._asked = 0
        self._moves: list[tuple[float, int, int]] = []
        self._gone_s = 0.0

    def run(self, requests: Iterator[SimRequest], until_s: float, most_missed: float = math.inf) -> Outcome | None:
        """Serve all; accelerators are counted until `until_s`, when the scenario ends.

        None, and not to the end, where more than `most_missed` requests have not met their limits.
        """
        request = next(requests, None)
        while request is not None or self._events or self._next_sync_s < until_s:
            if self._missed > most_missed:
                return None
            at = min(self._events[0][0] if self._events else math.inf, request.arrival_s if request else math.inf)
            if self._next_sync_s <= at:
                self._sync(self._next_sync_s)
                self._next_sync_s += SCRAPE_S
            elif request is not None and request.arrival_s <= at:
                self._arrive(request, request.arrival_s)
                request = next(requests, None)
            else:
                now, serial, pod = heapq.heappop(self._events)
                if serial == pod.event:
                    self._end_step(pod, now)
        hours = self._gone_s + sum(max(0.0, min(p.gone_s, until_s) - p.created_s) for p in self.pods)
        share = 1 - self._missed / max(1, self._asked)
        return Outcome(share, hours * ACCELERATORS / 3600, self._asked, tuple(self._moves))

    # Pods come and go.

    def _sync(self, now: float) -> None:
        self._reap(now)
        wanted = self._scale(self, now)
        if self.quota is not None:
            wanted = min(wanted, self.quota)
        if wanted != self.replicas:
            self._moves.append((now, self.replicas, wanted))
            self._resize(wanted, now)

    def _resize(self, wanted: int, now: float) -> None:
        for _ in range(wanted - self.replicas):
            self.pods.append(ServingPod(f"pod-{next(self._names)}", now, now + self.start_s))
        leaving = [pod for pod in self.pods if not pod.draining]
        leaving.sort(key=lambda pod: (pod.ready_s <= now, pod.pending_tokens + pod.engine.unfinished, -pod.created_s))
        for pod in leaving[: max(0, self.replicas - wanted)]:
            pod.draining = True
            if not pod.engine.unfinished:
                pod.gone_s = now
        self.replicas = wanted

    def _reap(self, now: float) -> None:
        for pod in [pod for pod in self.pods if pod.gone_s <= now]:
            self._gone_s += pod.gone_s - pod.created_s
            self.pods.remove(pod)

    # Requests.

    def _arrive(self, request: SimRequest, now: float) -> None:
        self.lengths[bisect_left(TOKEN_BOUNDS, request.prompt_tokens)] += 1
        self.arrived_tokens += request.prompt_tokens
        self._asked += 1
        pod = min((pod for pod in self.pods if pod.serves(now)), key=lambda one: one.pending_tokens)
        pod.engine.submit(request)
        pod.pending_tokens += request.prompt_tokens
        if pod.plan is None:
            self._begin_step(pod, now)
        elif pod.open and pod.steps > 1:
            self._cut(pod, now)

    def _begin_step(self, pod: ServingPod, now: float) -> None:
        pod.plan = plan = pod.engine.schedule(now)
        if plan is None:
            if pod.draining:
                pod.gone_s = now
            return
        pod.began_s, pod.open = now, not plan.prefill_tokens
        pod.steps, growth_s = self._stretch(pod, plan, now)
        pod.step_s = plan.cost_s + growth_s * (pod.steps - 1) / 2
        self._push(pod)

    def _stretch(self, pod: ServingPod, plan: StepPlan, now: float) -> tuple[int, float]:
        """How many steps like this one may follow one another, and how much longer each takes; see the module."""
        cost, decodes, chunk = PROFILE.cost, plan.decode_tokens, plan.prefill_tokens
        steps = math.floor((self._next_sync_s - now) / plan.cost_s)
        growth_s = decodes * cost.per_decode_context_token_s
        if chunk:
            request = next(request for request, _ in plan.items if request.prefills)
            left = request.prefill_until - request.computed
            if plan.budget or len(plan.items) > decodes + 1:
                return 1, 0.0
            steps = min(steps, (left - 1) // chunk)
            growth_s += chunk * chunk * cost.per_attention_pair_s
        elif pod.engine.waiting.queue:
            steps = min(steps, MOST_STEPS_WHILE_WAITING)
        if steps <= 1:
            return 1, 0.0
        if decodes:
            steps = min(steps, *(one.max_tokens - one.generated for one, _ in plan.items if not one.prefills))
        blocks = (decodes + chunk) / BLOCK_TOKENS
        return max(1, min(steps, math.floor((pod.engine.kv.free - len(plan.items)) / blocks))), growth_s

    def _cut(self, pod: ServingPod, now: float) -> None:
        """A request has come: the stretch ends with the step that is under way."""
        steps = max(1, math.ceil((now - pod.began_s) / pod.step_s))
        if steps < pod.steps:
            pod.steps = steps
            self._push(pod)

    def _push(self, pod: ServingPod) -> None:
        pod.event = next(self._serial)
        heapq.heappush(self._events, (pod.began_s + pod.steps * pod.step_s, pod.event, pod))

    def _end_step(self, pod: ServingPod, now: float) -> None:
        plan, engine = pod.plan, pod.engine
        assert plan is not None
        more = pod.steps - 1
        if more:
            for request, tokens in plan.items:
                request.generated += 0 if request.prefills else more
                request.computed += more * tokens
                engine.kv.grow(request, tokens)
        outcome = engine.finish(plan, now)
        pod.busy_s += now - pod.began_s
        pod.prefill_tokens += plan.prefill_tokens * pod.steps
        pod.decode_tokens += plan.decode_tokens * pod.steps
        self._steps_seen += 1
        if self._learns and self._steps_seen % LEARN_EVERY == 0:
            self.cost.observe(plan.work, plan.cost_s)
        if plan.prefill_tokens:
            for request in outcome.emitted:
                if request.generated == 1:
                    pod.pending_tokens -= request.prompt_tokens
        for request in outcome.finished:
            self._missed += not keeps(request, now)
        self._begin_step(pod, now)


def keeps(request: SimRequest, now: float) -> bool:
    """Whether a request that ended now met its limits."""
    assert request.first_scheduled_s is not None
    assert request.first_token_s is not None
    gaps = max(1, request.generated - 1)
    waited = request.first_scheduled_s - request.arrival_s
    return waited <= LIMIT.wait_s and now - request.first_token_s <= LIMIT.gap_s * gaps
