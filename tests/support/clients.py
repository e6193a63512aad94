"""Streaming clients that count: what a user of a fleet saw while something was done to it.

    with StreamingClients(url, rate=20) as clients:
        plane.kubectl("rollout", "restart", ...)
    tally = clients.tally        # after the block every request has ended
    assert not tally.failed and len(tally.answered) == len(tally.sent)

Open loop: a request leaves when it is due, however slow the fleet is, for `duration_s` or until the block ends (or
`stop`), and `limit` requests at most. Each has a prompt of a length that no other has: that is its name, which the
engines tell in /recent. It is answered whole if its stream had exactly the tokens asked for, each once and in their
order, and [DONE]; the simulator's tokens are " 1", " 2", ..., so the text proves it. Anything else is a failure: it
is counted by what was seen, and never tried again, since a user's client would not either.

Where no router stands before the fleet, `decode_url` makes the client the proxy of prefill and decode: it asks the
first for one token and its KV, and gives what it answered to the second. Connections are fresh, or kept alive
(`keep_alive`) as a proxy's pool keeps them. Runs in a thread of its own, so that a test may block.
Left out: whether a request was done twice by the pods, which only they know (`pod_ledger`).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.support.hand_over import HAND_OVER

REQUEST_TIMEOUT_S = 120.0
SHORTEST_PROMPT = 20
KEPT_S = 4.0
"""How long a connection may lie idle: less than a pod goes on to serve after it was told to go, as it has to be."""


@dataclass(slots=True)
class Tally:
    """Requests by their names, the lengths of their prompts in tokens."""

    sent: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)

    @property
    def open(self) -> int:
        """Requests under way."""
        return len(self.sent) - len(self.answered) - len(self.failures)

    @property
    def failed(self) -> Counter[str]:
        """Failed requests by what was seen."""
        return Counter(self.failures.values())


class RequestFailedError(Exception):
    """A request was not answered whole; the message says what was seen."""


class StreamingClients:
    """See the module. `rate` in requests a second; `tally` may be read at any time."""

    def __init__(
        self,
        url: str,
        *,
        rate: float,
        decode_url: str | None = None,
        output_tokens: int = 8,
        model: str = "chat",
        keep_alive: bool = False,
        duration_s: float | None = None,
        limit: int = 3000,
        shortest_prompt: int = SHORTEST_PROMPT,
    ) -> None:
        self.tally = Tally()
        self.output_tokens = output_tokens
        self._url = url
        self._decode_url = decode_url
        self._model = model
        self._rate = rate
        self._keep_alive = keep_alive
        self._duration_s = duration_s
        self._names = range(shortest_prompt, shortest_prompt + limit)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="clients", daemon=True)

    def start(self) -> Self:
        """Begin to send."""
        self._thread.start()
        return self

    def stop(self) -> Tally:
        """Send no more, wait for what is open (bounded by the requests' own limit), and tell what became of all."""
        self._stop.set()
        return self.wait()

    def wait(self) -> Tally:
        """Until `duration_s` or `limit` is reached and every request has ended."""
        self._thread.join()
        return self.tally

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def _run(self) -> None:
        kept = {"keepalive_timeout": KEPT_S} if self._keep_alive else {"force_close": True}
        connector = aiohttp.TCPConnector(limit=0, **kept)
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as group,
        ):
            for number, name in enumerate(self._names):
                due_s = number / self._rate
                await asyncio.sleep(began + due_s - loop.time())
                if self._stop.is_set() or (self._duration_s is not None and due_s >= self._duration_s):
                    return
                self.tally.sent.append(name)
                group.create_task(self._one(session, name))

    async def _one(self, session: aiohttp.ClientSession, name: int) -> None:
        try:
            await self._ask(session, name)
        except (RequestFailedError, aiohttp.ClientError, TimeoutError, OSError) as error:
            self.tally.failures[name] = f"{type(error).__name__}: {error}"[:200]
        else:
            self.tally.answered.append(name)

    async def _ask(self, session: aiohttp.ClientSession, name: int) -> None:
        body: dict[str, Any] = {"model": self._model, "prompt": [1] * name, "max_tokens": self.output_tokens}
        if self._decode_url is None:
            return await self._stream(session, self._url, body)
        kv = await self._prefill(session, body)
        return await self._stream(session, self._decode_url, body | {"kv_transfer_params": kv})

    async def _prefill(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> dict[str, Any]:
        asked = body | {"max_tokens": 1, "stream": False, "kv_transfer_params": HAND_OVER}
        async with session.post(f"{self._url}/v1/completions", json=asked) as answer:
            await _require_success(answer, "prefill")
            kv: dict[str, Any] | None = (await answer.json()).get("kv_transfer_params")
        if not kv:
            raise RequestFailedError("prefill answered without kv_transfer_params")
        return kv

    async def _stream(self, session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
        text, done = "", False
        async with session.post(f"{url}/v1/completions", json=body | {"stream": True}) as answer:
            await _require_success(answer, "the stream")
            async for line in answer.content:
                if line.strip() == b"data: [DONE]":
                    done = True
                elif line.startswith(b"data: "):
                    text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
        if text != whole_text(self.output_tokens):
            raise RequestFailedError(f"the answer was {text!r}, [DONE] {'came' if done else 'did not come'}")
        if not done:
            raise RequestFailedError("all tokens came, [DONE] did not")


async def _require_success(answer: aiohttp.ClientResponse, what: str) -> None:
    if answer.status != 200:
        raise RequestFailedError(f"{what}: HTTP {answer.status}: {(await answer.text())[:120]}")


def whole_text(tokens: int) -> str:
    """The simulator's answer of so many tokens."""
    return "".join(f" {number + 1}" for number in range(tokens))
