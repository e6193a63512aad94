"""The HTTP side of the simulated server: vLLM's routes over a `RealTimeEngine`. See `server` for the whole.

Every open call holds its engine requests and drops them when it ends, however it ends: answered, refused,
or left by its client (aiohttp then cancels the handler). A slow client delays nobody: the engine counts
tokens, and the call writes what has accumulated.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from prefleet_runtime.drain import DRAIN_PATH
from prefleet_runtime.governor import Governor
from prefleet_runtime.sim.cost_model import EngineProfile
from prefleet_runtime.sim.engine import Engine
from prefleet_runtime.sim.protocol import (
    PRIORITY_HEADER,
    Answer,
    ApiError,
    CompletionCall,
    RemoteKv,
    ServedModel,
    hand_over,
    parse_completion,
    usage,
)
from prefleet_runtime.sim.realtime import RealTimeEngine, clock
from prefleet_runtime.sim.state import Limits, SimRequest, blocks_for
from prefleet_runtime.sim.vllm_metrics import VllmMetrics

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 2**20
MAX_WAITING_REQUESTS = 100_000
RELEASE_TIMEOUT_S = 5.0


@dataclass(slots=True)
class OpenCall:
    """A call that is being answered; `owed` is the prefill pod that is still to be told that its KV was fetched."""

    http: web.Request
    call: CompletionCall
    requests: list[SimRequest]
    wake: asyncio.Event
    answer: Answer
    owed: RemoteKv | None


class SimulatedServer:
    """The HTTP side; one event loop runs it and its engine."""

    def __init__(
        self, model: ServedModel, profile: EngineProfile, limits: Limits, governor: Governor[SimRequest]
    ) -> None:
        self._model = model
        self._profile = profile
        self._engine_id = str(uuid.uuid4())
        self._started = int(time.time())
        self._registry = CollectorRegistry()
        engine = Engine(profile, limits, governor)
        metrics = VllmMetrics(self._registry, engine, model.name, model.max_model_len)
        self.realtime = RealTimeEngine(engine, governor, metrics)
        self._open_calls = 0
        self._releases: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None
        self.leaving = False
        self.draining = False

    @property
    def busy(self) -> bool:
        """Whether a call is open, or KV is kept for or owed to another pod."""
        return bool(self._open_calls or self._releases or self.realtime.engine.held)

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[errors_as_json])
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/prefleet/kv_release", self._kv_release)
        app.router.add_post(DRAIN_PATH, self._drain)
        app.on_response_prepare.append(self._close_connections)
        app.cleanup_ctx.append(self._with_session)
        return app

    async def _with_session(self, _: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=RELEASE_TIMEOUT_S)) as session:
            self._session = session
            yield

    # Completions.

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        arrival_s = clock()
        if self.draining:
            raise ApiError(503, "The server is shutting down: send the request to another one.")
        call = parse_completion(await http.read(), self._model, http.headers.get(PRIORITY_HEADER))
        self._refuse_flood(len(call.prompts))
        completion_id = f"cmpl-{uuid.uuid4().hex}"
        requests = make_requests(call, completion_id, arrival_s)
        answer = Answer.begin(completion_id, int(time.time()), self._model.name)
        self._open_calls += 1
        opened = OpenCall(http, call, requests, asyncio.Event(), answer, call.remote_kv)
        try:
            opened.wake = self._submit(requests)
            return await (self._stream(opened) if call.stream else self._whole(opened))
        finally:
            self._open_calls -= 1
            self.realtime.abandon(requests)
            self._settle(opened)

    def _refuse_flood(self, more: int) -> None:
        waiting = len(self.realtime.engine.waiting.queue)
        if waiting + more > MAX_WAITING_REQUESTS:
            raise ApiError(
                503,
                f"{waiting} requests wait already and this call brings {more} more, where {MAX_WAITING_REQUESTS} may"
                " wait: give it fewer prompts, try again later or add pods.",
            )

    def _submit(self, requests: Sequence[SimRequest]) -> asyncio.Event:
        try:
            return self.realtime.submit(requests)
        except ValueError as error:
            raise ApiError(400, f"{error}.", "max_tokens") from None

    async def _progress(self, opened: OpenCall) -> None:
        """Until there is a new token. The first one proves that the prompt's KV has been fetched."""
        await opened.wake.wait()
        opened.wake.clear()
        self._settle(opened)

    async def _whole(self, opened: OpenCall) -> web.StreamResponse:
        requests, call = opened.requests, opened.call
        while any(r.generated < r.max_tokens for r in requests):
            await self._progress(opened)
        kv = self._hand_over(opened.http, requests[0]) if call.keep_kv else None
        generated = [r.generated for r in requests]
        return web.json_response(opened.answer.whole(generated, usage(sum(call.prompts), sum(generated)), kv))

    async def _stream(self, opened: OpenCall) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        # A client that leaves while the handler waits cancels it; one that leaves as it writes is met here.
        with suppress(ConnectionResetError):
            await response.prepare(opened.http)
            await self._send_tokens(opened, response)
            await response.write_eof()
        return response

    async def _send_tokens(self, opened: OpenCall, response: web.StreamResponse) -> None:
        requests, call, answer = opened.requests, opened.call, opened.answer
        sent = [0] * len(requests)
        done = False
        while not done:
            await self._progress(opened)
            chunks = new_chunks(requests, sent, answer)
            done = all(count >= r.max_tokens for count, r in zip(sent, requests, strict=True))
            if done:
                counts = usage(sum(call.prompts), sum(sent)) if call.include_usage else None
                chunks += answer.end(counts)
            await response.write(chunks.encode())

    # Hand-over of KV.

    def _hand_over(self, http: web.Request, request: SimRequest) -> dict[str, object]:
        """Where the caller reached us is where the decode pod will reach us too."""
        assert http.transport is not None, "an answered request has a connection"
        host, port = http.transport.get_extra_info("sockname")[:2]
        kv = RemoteKv(self._engine_id, request.request_id, host, port)
        return hand_over(kv, request.prompt_tokens, blocks_for(request.prompt_tokens))

    def _settle(self, opened: OpenCall) -> None:
        """Tell the prefill pod, once, that its KV was fetched or is not wanted any more."""
        if opened.owed is not None:
            task = asyncio.create_task(self._release_remote(opened.owed))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)
            opened.owed = None

    async def _release_remote(self, kv: RemoteKv) -> None:
        assert self._session is not None, "the session opens with the application"
        host = f"[{kv.host}]" if ":" in kv.host else kv.host
        document = {"engine_id": kv.engine_id, "request_id": kv.request_id}
        try:
            async with self._session.post(f"http://{host}:{kv.port}/prefleet/kv_release", json=document):
                return
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            logger.info("prefill %s:%d was not told to free its KV (%s): its lease will", host, kv.port, error)

    async def _kv_release(self, http: web.Request) -> web.Response:
        try:
            document = json.loads(await http.read())
            engine_id, request_id = document["engine_id"], document["request_id"]
        except (ValueError, RecursionError, KeyError, TypeError):
            raise ApiError(400, "The body must be an object with engine_id and request_id.") from None
        if engine_id != self._engine_id:
            raise ApiError(404, f"This is engine {self._engine_id}, not {engine_id}.", "engine_id")
        return web.json_response({"released": self.realtime.release(str(request_id))})

    # The end.

    async def _drain(self, http: web.Request) -> web.Response:
        """As `vllm.front` answers it."""
        assert http.transport is not None, "a request that is read has a connection"
        if http.transport.get_extra_info("peername")[0] != http.transport.get_extra_info("sockname")[0]:
            raise ApiError(403, "Only the pod itself may begin its drain.")
        self.leaving = True
        return web.json_response({"open": self._open_calls + len(self._releases)})

    async def _close_connections(self, _: web.Request, response: web.StreamResponse) -> None:
        """Once the pod is to go, a client that keeps connections is to open its next one elsewhere."""
        if self.leaving or self.draining:
            response.headers["Connection"] = "close"
            response.force_close()

    # The small routes.

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.draining else 200)

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": version()})

    async def _models(self, _: web.Request) -> web.Response:
        model = {
            "id": self._model.name,
            "object": "model",
            "created": self._started,
            "owned_by": "prefleet-sim",
            "root": self._profile.name,
            "parent": None,
            "max_model_len": self._model.max_model_len,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _metrics(self, http: web.Request) -> web.Response:
        encode, content_type = choose_encoder(http.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})


def version() -> str:
    """The installed version; unknown where the package was copied without its metadata."""
    try:
        return f"prefleet-sim {metadata.version('prefleet')}"
    except metadata.PackageNotFoundError:
        return "prefleet-sim"


def make_requests(call: CompletionCall, completion_id: str, arrival_s: float) -> list[SimRequest]:
    """One engine request per prompt."""
    sizes = zip(call.prompts, call.max_tokens, strict=True)
    return [
        SimRequest(
            request_id=f"{completion_id}-{index}",
            prompt_tokens=prompt,
            max_tokens=max_tokens,
            arrival_s=arrival_s,
            remote_kv=call.remote_kv is not None,
            keep_kv=call.keep_kv,
            client_priority=call.priority,
        )
        for index, (prompt, max_tokens) in enumerate(sizes)
    ]


def new_chunks(requests: Sequence[SimRequest], sent: list[int], answer: Answer) -> str:
    """The events of all tokens generated since; brings `sent` up to date."""
    chunks: list[str] = []
    for index, request in enumerate(requests):
        fresh = range(sent[index] + 1, request.generated + 1)
        chunks += [answer.chunk(index, token, token == request.max_tokens) for token in fresh]
        sent[index] = request.generated
    return "".join(chunks)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error is vLLM's error document."""
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response(error.body(), status=error.status)
    except web.HTTPError as error:
        message = f"{request.method} {request.path}: {error.reason}."
        return web.json_response(ApiError(error.status, message).body(), status=error.status)
