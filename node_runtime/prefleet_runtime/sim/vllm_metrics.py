"""The vLLM metrics that the simulated server stands in for: same names, labels, units and buckets.

Names and bucket bounds are those of vLLM 0.32 (v1/metrics/loggers.py and buckets.py). Left out: what the
simulator has no counterpart of (prefix cache, LoRA, multi-modal cache, speculative decoding, request
parameters). Gauges are read from the engine at the scrape, on the same thread.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from prefleet_runtime.sim.engine import Engine
from prefleet_runtime.sim.state import Outcome, SimRequest, StepPlan

REQUEST_LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TIME_TO_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_LATENCY_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
ITERATION_TOKENS_BUCKETS = tuple(float(2**k) for k in (0, *range(3, 15)))


def one_two_five(limit: int) -> tuple[float, ...]:
    """vLLM's bounds for token counts: 1, 2, 5, 10, 20, 50, ... up to `limit`."""
    bounds = (m * 10**k for k in range(len(str(limit))) for m in (1, 2, 5))
    return tuple(float(bound) for bound in bounds if bound <= limit)


class VllmMetrics:
    """Counts steps and requests into `registry`. Times are on the engine's axis."""

    def __init__(self, registry: CollectorRegistry, engine: Engine, model_name: str, max_model_len: int) -> None:
        self._labels = {"model_name": model_name, "engine": "0"}
        self._registry = registry
        self._last_token_s: dict[str, float] = {}
        tokens = one_two_five(max_model_len)
        self._gauges(engine)
        self._counters()
        self._token_histograms(tokens)
        self._time_histograms()

    def _gauges(self, engine: Engine) -> None:
        def waiting() -> float:
            return len(engine.waiting.queue) + engine.loading

        self._gauge("num_requests_running", "Requests in model execution batches.", lambda: len(engine.running))
        self._gauge("num_requests_waiting", "Requests waiting to be processed.", waiting)
        self._gauge("kv_cache_usage_perc", "KV-cache usage; 1 is 100 percent.", lambda: engine.used_fraction)

    def _counters(self) -> None:
        self._preemptions = self._counter("num_preemptions", "Preemptions by the engine.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prefill tokens processed.")
        self._generation_tokens = self._counter("generation_tokens", "Generation tokens processed.")
        name, labels = "vllm:request_success", (*self._labels, "finished_reason")
        success = Counter(name, "Requests that ended well.", labels, registry=self._registry)
        self._finished = success.labels(**self._labels, finished_reason="length")
        self._aborted = success.labels(**self._labels, finished_reason="abort")

    def _token_histograms(self, tokens: tuple[float, ...]) -> None:
        self._step_tokens = self._histogram(
            "iteration_tokens_total", "Tokens per engine step.", ITERATION_TOKENS_BUCKETS
        )
        self._request_prompt = self._histogram("request_prompt_tokens", "Prefill tokens per request.", tokens)
        self._request_generation = self._histogram(
            "request_generation_tokens", "Generation tokens per request.", tokens
        )
        self._request_computed = self._histogram(
            "request_prefill_kv_computed_tokens", "New KV tokens computed during prefill.", tokens
        )

    def _time_histograms(self) -> None:
        latency = REQUEST_LATENCY_BUCKETS
        self._ttft = self._histogram("time_to_first_token_seconds", "Time to first token.", TIME_TO_FIRST_TOKEN_BUCKETS)
        self._itl = self._histogram("inter_token_latency_seconds", "Time between tokens.", INTER_TOKEN_LATENCY_BUCKETS)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Time of a request.", latency)
        self._queue = self._histogram("request_queue_time_seconds", "Time in WAITING.", latency)
        self._prefill = self._histogram("request_prefill_time_seconds", "Time in PREFILL.", latency)
        self._decode = self._histogram("request_decode_time_seconds", "Time in DECODE.", latency)
        self._inference = self._histogram("request_inference_time_seconds", "Time in RUNNING.", latency)

    def step(self, plan: StepPlan, outcome: Outcome, preemptions: int, now: float) -> None:
        """A step ended at `now`; `preemptions` happened when it was planned."""
        self._preemptions.inc(preemptions)
        self._generation_tokens.inc(len(outcome.emitted))
        self._step_tokens.observe(plan.prefill_tokens + plan.decode_tokens)
        last = self._last_token_s
        for request in outcome.emitted:
            if request.generated == 1:
                self._prompt_tokens.inc(request.prompt_tokens)
                self._ttft.observe(now - request.arrival_s)
            else:
                self._itl.observe(now - last[request.request_id])
            last[request.request_id] = now
        for request in outcome.finished:
            self._finish(request, now)

    def _finish(self, request: SimRequest, now: float) -> None:
        del self._last_token_s[request.request_id]
        started, first = request.first_scheduled_s, request.first_token_s
        assert started is not None, f"{request.request_id} finished and was never scheduled"
        assert first is not None, f"{request.request_id} finished without a token"
        self._finished.inc()
        self._request_prompt.observe(request.prompt_tokens)
        self._request_generation.observe(request.generated)
        self._request_computed.observe(request.facts.uncached_tokens)
        self._e2e.observe(now - request.arrival_s)
        self._queue.observe(started - request.arrival_s)
        self._prefill.observe(first - started)
        self._decode.observe(now - first)
        self._inference.observe(now - started)

    def abort(self, request_id: str) -> None:
        """A request was given up by its client."""
        self._last_token_s.pop(request_id, None)
        self._aborted.inc()

    def _gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        gauge = Gauge(f"vllm:{name}", text, tuple(self._labels), registry=self._registry)
        gauge.labels(**self._labels).set_function(read)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"vllm:{name}", text, tuple(self._labels), registry=self._registry)
        return counter.labels(**self._labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"vllm:{name}", text, tuple(self._labels), registry=self._registry, buckets=buckets)
        return histogram.labels(**self._labels)
