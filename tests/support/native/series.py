"""Each engine's own metrics, with its names, buckets and quirks, from what the simulated engine did.

VLLMAscend shows vLLM's (`sim.vllm_metrics`). The others are here: LightLLM, whose histogram of waits is itself named
..._bucket, so that its buckets end with _bucket_bucket; SGLang, whose histograms do not exist before their first
request; MindIE, whose names have no prefix and which measures no waits. Bounds are those of the engines; of MindIE's
lengths they are assumed.

Left out: series that nobody here reads.
"""

from __future__ import annotations

from collections.abc import Callable

from prefleet_runtime.sim.engine import Engine
from prefleet_runtime.sim.state import Outcome, StepPlan
from prefleet_runtime.sim.vllm_metrics import TIME_TO_FIRST_TOKEN_BUCKETS
from prometheus_client import CollectorRegistry, Gauge, Histogram

MAX_LENGTH = 131072
LIGHTLLM_SECONDS = tuple(0.001 * 1.5**k for k in range(30))
LIGHTLLM_LENGTHS = tuple(MAX_LENGTH / 100 * k for k in range(101))
SGLANG_LENGTHS = (
    *(100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 12500, 15000, 17500),
    *(20000, 22500, 25000, 27500, 30000, 35000, 40000, 60000, 80000, 100000, 200000, 300000, 400000, 600000, 800000),
    *(1000000, 1100000),
)
SGLANG_WAITS = (
    *(0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200),
    *(300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000),
)
MINDIE_LENGTHS = (10, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class NativeSeries:
    """Counts steps into `registry`: what `sim.realtime` asks of metrics, for one of the three flavours."""

    def __init__(self, flavour: str, registry: CollectorRegistry, engine: Engine, model: str) -> None:
        self._registry = registry
        self._labels = {"model_name": model}
        self._waits: Histogram | None = None
        self._uncached: Histogram | None = None
        match flavour:
            case "lightllm":
                self._prompts = self._histogram("lightllm_request_input_length", LIGHTLLM_LENGTHS)
                self._waits = self._histogram("lightllm_request_queue_duration_bucket", LIGHTLLM_SECONDS)
                self._first = self._histogram("lightllm_request_first_token_duration", LIGHTLLM_SECONDS)
                self._gauge("lightllm_queue_size", lambda: len(engine.waiting.queue))
            case "sglang":
                self._labels |= {"engine_type": "unified", "tp_rank": "0", "pp_rank": "0"}
                self._prompts = self._histogram("sglang:prompt_tokens_histogram", SGLANG_LENGTHS)
                self._uncached = self._histogram("sglang:uncached_prompt_tokens_histogram", SGLANG_LENGTHS)
                self._waits = self._histogram("sglang:queue_time_seconds", SGLANG_WAITS)
                self._first = self._histogram("sglang:time_to_first_token_seconds", TIME_TO_FIRST_TOKEN_BUCKETS)
                self._gauge("sglang:num_queue_reqs", lambda: len(engine.waiting.queue))
                self._gauge("sglang:num_running_reqs", lambda: len(engine.running))
                self._gauge("sglang:token_usage", lambda: engine.used_fraction)
            case "mindie":
                self._prompts = self._histogram("request_prompt_tokens", MINDIE_LENGTHS)
                self._first = self._histogram("time_to_first_token_seconds", TIME_TO_FIRST_TOKEN_BUCKETS)
                self._gauge("num_requests_waiting", lambda: len(engine.waiting.queue))
                self._gauge("num_requests_running", lambda: len(engine.running))
                self._gauge("npu_cache_usage_perc", lambda: engine.used_fraction)

    def step(self, plan: StepPlan, outcome: Outcome, preemptions: int, now: float) -> None:
        """A step ended at `now`."""
        for _, dispatch in plan.dispatches:
            self._observe(self._waits, dispatch.wait_s)
        for request in outcome.emitted:
            if request.generated == 1:
                self._observe(self._first, now - request.arrival_s)
        for request in outcome.finished:
            self._observe(self._prompts, request.prompt_tokens)
            self._observe(self._uncached, request.facts.uncached_tokens)

    def abort(self, request_id: str) -> None:
        """A request was given up by its client: none of these counts it."""

    def _observe(self, histogram: Histogram | None, value: float) -> None:
        if histogram is not None:
            histogram.labels(**self._labels).observe(value)

    def _histogram(self, name: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(name, name, tuple(self._labels), registry=self._registry, buckets=bounds)

    def _gauge(self, name: str, read: Callable[[], float]) -> None:
        gauge = Gauge(name, name, tuple(self._labels), registry=self._registry)
        gauge.labels(**self._labels).set_function(read)
