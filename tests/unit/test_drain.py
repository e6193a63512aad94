"""What a pod waits for before its engine is told to stop, and what vLLM's server does meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from prefleet_runtime.drain import DRAIN_PATH, LOOK_EVERY_S, Pod, drain
from prefleet_runtime.vllm.front import DrainFront

from tests.support.exporter import reply

HOST = "127.0.0.1"
SETTLE_S, LIMIT_S = 10.0, 60.0

Look = tuple[int | OSError | None, int | OSError]
"""What the server and the exporters tell: open requests, unfinished ones."""


class ScriptedPod:
    """Tells one look after another, then the last one for ever; a clock that only `sleep` moves."""

    def __init__(self, looks: list[Look]) -> None:
        self._looks = looks
        self.now_s = 0.0

    def open_requests(self) -> int | None:
        told = self._looks[0][0]
        if isinstance(told, OSError):
            self._next()
            raise told
        if told is None:
            self._next()
        return told

    def unfinished(self) -> int:
        told = self._looks[0][1]
        self._next()
        if isinstance(told, OSError):
            raise told
        return told

    def _next(self) -> None:
        if len(self._looks) > 1:
            self._looks.pop(0)

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize(
    ("looks", "ended", "waited_s"),
    [
        pytest.param([(0, 0)], True, SETTLE_S + LOOK_EVERY_S, id="an idle pod stays until its endpoint is gone"),
        pytest.param([(None, 0)], True, 0.0, id="a pod that serves nobody waits for nothing"),
        pytest.param([(1, 1), (1, 1), (0, 0)], True, SETTLE_S + 2 * LOOK_EVERY_S, id="a running request is waited for"),
        pytest.param([(0, 1), (0, 1), (0, 0)], True, SETTLE_S + 2 * LOOK_EVERY_S, id="KV that is held is waited for"),
        pytest.param(
            [(0, 0), (0, 0), (1, 0), (0, 0)],
            True,
            SETTLE_S + 3 * LOOK_EVERY_S,
            id="one quiet look between two requests is no end",
        ),
        pytest.param([(0, 1)], False, LIMIT_S, id="what never ends is given up at the limit"),
        pytest.param(
            [(0, 0), (TimeoutError(), 0), (0, TimeoutError()), (0, 0)],
            True,
            SETTLE_S + 3 * LOOK_EVERY_S,
            id="a server or exporter too busy to answer has not ended",
        ),
        pytest.param([(1, 1), (None, 0)], True, SETTLE_S, id="an engine that has died meanwhile is not waited for"),
    ],
)
def test_a_drain_waits_for_what_is_unfinished(looks: list[Look], ended: bool, waited_s: float) -> None:
    pod = ScriptedPod(looks)
    assert drain(pod, SETTLE_S, LIMIT_S, pod.clock, pod.sleep) is ended  # type: ignore[arg-type]
    assert pod.now_s == waited_s


class Answers:
    """A server with one body for each path; asked with POST it remembers that."""

    def __init__(self, bodies: dict[str, tuple[int, str]]) -> None:
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(f"{self.command} {self.path}")
                status, body = bodies.get(self.path, (404, "not here"))
                reply(self, status, body.encode(), "text/plain")

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._http = ThreadingHTTPServer((HOST, 0), Handler)
        self.port = self._http.server_port
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def answers() -> Iterator[Any]:
    opened: list[Answers] = []

    def answering(bodies: dict[str, tuple[int, str]]) -> Answers:
        opened.append(Answers(bodies))
        return opened[-1]

    yield answering
    for each in opened:
        each.close()


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        pytest.param(200, '{"open": 3}', 3, id="the server tells"),
        pytest.param(404, '{"detail": "Not Found"}', 0, id="a server without the drain"),
        pytest.param(200, "[]", 0, id="an answer of another kind"),
    ],
)
def test_the_server_is_told_and_asked_in_one(answers: Any, status: int, body: str, told: int) -> None:
    server = answers({DRAIN_PATH: (status, body)})
    assert Pod(HOST, server.port, 1).open_requests() == told
    assert server.asked == [f"POST {DRAIN_PATH}"]


METRICS = """# HELP prefleet_unfinished_requests Requests in the engine.
# TYPE prefleet_unfinished_requests gauge
prefleet_unfinished_requests 4.0
prefleet_waiting_requests{lane="all"} 7.0
"""


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        pytest.param((200, METRICS), 4, id="the gauge"),
        pytest.param((200, "prefleet_waiting_requests 7.0\n"), 0, id="an exporter without the gauge"),
        pytest.param((404, METRICS), 0, id="another server"),
    ],
)
def test_the_exporters_are_asked_until_none_listens(answers: Any, metrics: tuple[int, str], told: int) -> None:
    exporter = answers({"/metrics": metrics})
    assert Pod(HOST, 1, exporter.port).unfinished() == told


@pytest.mark.parametrize(
    ("status", "metrics", "told"),
    [
        pytest.param(500, METRICS, "answers 500", id="it fails"),
        pytest.param(200, "prefleet_unfinished_requests NaN\n", "is no number", id="no number"),
        pytest.param(200, "prefleet_unfinished_requests +Inf\n", "is no number", id="without end"),
        pytest.param(200, 'prefleet_unfinished_requests{rank="0"} 4,\n', "is no number", id="other text"),
    ],
)
def test_an_exporter_that_tells_nothing_has_not_said_that_nothing_is_left(
    answers: Any, status: int, metrics: str, told: str
) -> None:
    with pytest.raises(OSError, match=told):
        Pod(HOST, 1, answers({"/metrics": (status, metrics)}).port).unfinished()


def test_a_pod_without_a_server_or_exporter() -> None:
    pod = Pod(HOST, 1, 1)
    assert pod.open_requests() is None
    assert pod.unfinished() == 0


def test_an_answer_that_never_ends_holds_the_hook_no_longer_than_its_limit() -> None:
    class Trickle(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
            while not done.wait(0.1):
                self.wfile.write(b" ")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    done = threading.Event()
    with ThreadingHTTPServer((HOST, 0), Trickle) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        flags = ("--host", HOST, "--http-port", str(server.server_port), "--exporter-port", "1")
        command = (sys.executable, "-m", "prefleet_runtime.drain", *flags, "--settle-s", "0", "--limit-s", "1")
        try:
            assert subprocess.run(command, timeout=60, check=False).returncode == 0
        finally:
            done.set()
            server.shutdown()


async def ask(front: DrainFront, path: str, method: str = "POST", client: str = "10.0.0.7") -> list[Any]:
    """What the front sends for one request to the pod at 10.0.0.7."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {"type": "http", "path": path, "method": method, "client": (client, 50000), "server": ("10.0.0.7", 8000)}
    await front(scope, receive, send)
    return sent


async def test_vllms_server_closes_its_connections_once_it_drains_and_tells_what_is_open() -> None:
    during: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        during.append(json.loads((await ask(front, DRAIN_PATH))[1]["body"]) if scope["path"] == "/v1/models" else None)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"x"})

    front = DrainFront(application)
    before = await ask(front, "/v1/completions")
    assert before[0]["headers"] == [(b"content-type", b"text/plain")]
    after = await ask(front, "/v1/models")
    assert during == [None, {"open": 1}]
    assert after[0]["headers"] == [(b"content-type", b"text/plain"), (b"connection", b"close")]
    assert after[1]["body"] == b"x"
    assert json.loads((await ask(front, DRAIN_PATH))[1]["body"]) == {"open": 0}


async def test_nobody_but_the_pod_itself_begins_its_drain() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    front = DrainFront(application)
    assert (await ask(front, DRAIN_PATH, client="10.0.0.8"))[0]["status"] == 403
    assert (await ask(front, "/v1/completions"))[0] == {"type": "http.response.start", "status": 200}
    assert (await ask(front, DRAIN_PATH, method="GET"))[0]["status"] == 200, "a GET is the application's"
