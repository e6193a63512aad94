"""The runtime's own telemetry behind a loopback server that can be told to misbehave."""

from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from types import TracebackType

from prefleet_runtime.contract import RuntimePolicy
from prefleet_runtime.queueing import Counters, Dispatch, Lane, LaneGauge, RequestFacts
from prefleet_runtime.stage import Fit, StageCounters, StepWork
from prefleet_runtime.telemetry import EngineLoad, QueueSnapshot, RuntimeMetrics, StageSnapshot
from prometheus_client import CollectorRegistry, generate_latest


class Exporter:
    """The metrics of one engine, served at a loopback address."""

    def __init__(self, host: str, port: int, generation: int = 1) -> None:
        self._answer: tuple[int, bytes] | None = None
        self._delay_s = 0.0
        self._closed = Event()
        self.restart(generation)
        self._server = ThreadingHTTPServer((host, port), self._handler())
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def restart(self, generation: int = 1) -> None:
        """Begin anew, as an engine does after a crash: every counter at zero, no wait seen yet."""
        self._registry = CollectorRegistry()
        policy = RuntimePolicy(generation=generation)
        self._metrics = RuntimeMetrics(self._registry, clock=lambda: 0.0, policy=lambda: policy, refused=lambda: 0)
        self.publish()
        self.hold()

    def publish(
        self, promotions: float = 0, degradations: float = 0, oldest_wait_s: float = 0.0, lane: Lane = Lane.LONG
    ) -> None:
        """Show these counters, and one lane with a request that has waited so long."""
        counters = Counters(promotions=promotions, degradations=degradations)  # type: ignore[arg-type]
        self._metrics.publish(QueueSnapshot(counters, {lane: LaneGauge(1, 1, -oldest_wait_s)}))

    def serve(self, lengths: Iterable[int], waits_s: Iterable[float] = (), lane: Lane = Lane.LONG) -> None:
        """Take in requests of these lengths, a quarter of each cached, and dispatch some after these waits."""
        for length in lengths:
            self._metrics.observe_request(RequestFacts("request", 0.0, length, cached_tokens=length // 4))
        for wait_s in waits_s:
            self._metrics.observe_dispatch(Dispatch("request", lane, wait_s, 1, promoted=lane is Lane.LONG))

    def wait(self, requests: int, tokens: int, lane: Lane = Lane.SHORT) -> None:
        """Show so many requests of so many tokens that wait in one lane, and nothing in the others."""
        self._metrics.publish(QueueSnapshot(Counters(), {lane: LaneGauge(requests, tokens, 0.0)}))

    def hold(
        self, running: int = 0, kv_usage: float = 0.0, kv_tokens: int = 10_000, step_tokens: int = 512, more: int = 0
    ) -> None:
        """Show what the engine holds; `more` requests are in it beside those that run."""
        load = EngineLoad(running, running + more, kv_usage, kv_tokens, step_tokens)
        self._metrics.show_load(lambda: load)

    def compute(self, prefill_tokens: int, decode_tokens: int, seconds: float) -> None:
        """Do one step."""
        self._metrics.observe_step(seconds, prefill_tokens + decode_tokens)
        self._metrics.observe_work(StepWork(prefill_tokens, decode_tokens), seconds)

    def learn(self, *coefficients: float, samples: int = 500) -> None:
        """Show a fitted step cost."""
        self._metrics.publish_stage(StageSnapshot(StageCounters(), Fit(coefficients, (0.0,) * 5, 0.0, samples)))

    def answer_with(self, status: int, body: bytes) -> None:
        """Answer this from now on, whatever the metrics are."""
        self._answer = (status, body)

    def delay(self, seconds: float) -> None:
        """Hold each answer back from now on."""
        self._delay_s = seconds

    def close(self) -> None:
        """Stop listening. May be repeated."""
        if not self._closed.is_set():
            self._closed.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def __enter__(self) -> "Exporter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter._closed.wait(exporter._delay_s)
                status, body = exporter._answer or (200, generate_latest(exporter._registry))
                reply(self, status, body, "text/plain; version=0.0.4; charset=utf-8")

            def log_message(self, *_: object) -> None:
                """Say nothing: pytest shows what matters."""

        return Handler


def reply(handler: BaseHTTPRequestHandler, status: int, body: bytes, content_type: str) -> None:
    """Answer a request whose client may have gone away meanwhile."""
    try:
        handler.send_response(status)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
    except OSError:
        handler.close_connection = True
