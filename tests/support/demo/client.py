"""A load client: sends requests when they are due and times what comes back, token by token.

Open loop: a request leaves at its arrival time however slow the fleet is, as users do. With prefill and
decode apart it carries `kv_transfer_params` from one to the other as vLLM's proxies do: the prompt goes to
prefill with `max_tokens` 1, and what that answers goes to decode. The time to the first token is then that
of the prefill answer, since its one token is the first token of the text.

A request that fails is counted with its reason and never retried: a retry would hide what the user saw.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from prefleet_runtime.sim.traces import TraceRequest

from tests.support.demo.workload import quantile
from tests.support.hand_over import HAND_OVER

REQUEST_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. `decode_url` is None where one pod does both."""

    model: str
    prefill_url: str
    decode_url: str | None = None


@dataclass(slots=True)
class Outcome:
    """One request's fate; times in seconds after the replay's start."""

    request: TraceRequest
    first_token_s: float | None = None
    done_s: float | None = None
    tokens: int = 0
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        """Seconds from arrival to the first token. Raises ValueError if none came."""
        if self.first_token_s is None:
            raise ValueError("the request has no first token")
        return self.first_token_s - self.request.at_s


@dataclass(slots=True)
class Replay:
    """One replay as it goes on: what is due, under way and done."""

    requests: Sequence[TraceRequest]
    outcomes: list[Outcome] = field(default_factory=list)
    started: int = 0
    start_s: float = 0.0

    @property
    def now_s(self) -> float:
        """Seconds since the replay's start."""
        return time.monotonic() - self.start_s

    @property
    def failed(self) -> Counter[str]:
        """Failed requests by reason."""
        return Counter(outcome.error for outcome in self.outcomes if outcome.error is not None)

    async def run(self, target: Target) -> None:
        """Send every request at its time and wait for all of them."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as group,
        ):
            self.start_s = time.monotonic()
            for number, request in enumerate(self.requests):
                await asyncio.sleep(request.at_s - self.now_s)
                self.started += 1
                group.create_task(self._one(session, target, request, number))

    async def _one(self, session: aiohttp.ClientSession, target: Target, request: TraceRequest, number: int) -> None:
        outcome = Outcome(request)
        try:
            await self._send(session, target, request, outcome, number)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            outcome.error = f"{type(error).__name__}: {error}"[:120]
        outcome.done_s = self.now_s
        self.outcomes.append(outcome)

    async def _send(
        self, session: aiohttp.ClientSession, target: Target, request: TraceRequest, outcome: Outcome, number: int
    ) -> None:
        body: dict[str, Any] = {
            "model": target.model,
            "prompt": _prompt(request.prompt_tokens, number),
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        if target.decode_url is not None:
            first = await self._prefill(session, target, body)
            outcome.first_token_s = self.now_s
            outcome.tokens = 1
            body["kv_transfer_params"] = first["kv_transfer_params"]
            if request.output_tokens == 1:
                return
        await self._stream(session, target.decode_url or target.prefill_url, body, outcome)

    async def _prefill(self, session: aiohttp.ClientSession, target: Target, body: dict[str, Any]) -> dict[str, Any]:
        asked = {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": HAND_OVER}
        async with session.post(f"{target.prefill_url}/v1/completions", json=asked) as answer:
            await _raise_for_error(answer)
            parsed: dict[str, Any] = await answer.json()
        if not parsed.get("kv_transfer_params"):
            raise ValueError("the prefill pod's answer carries no kv_transfer_params")
        return parsed

    async def _stream(self, session: aiohttp.ClientSession, url: str, body: dict[str, Any], outcome: Outcome) -> None:
        counted = 0
        async with session.post(f"{url}/v1/completions", json={**body, "stream": True}) as answer:
            await _raise_for_error(answer)
            finished = False
            async for line in answer.content:
                if line.startswith(b"data: [DONE]"):
                    finished = True
                elif line.startswith(b"data: "):
                    counted += 1
                    outcome.first_token_s = outcome.first_token_s or self.now_s
        if not finished:
            raise ValueError(f"the stream broke off after {counted} chunks")
        outcome.tokens = max(outcome.tokens, outcome.request.output_tokens)


async def _raise_for_error(answer: aiohttp.ClientResponse) -> None:
    if answer.status != 200:
        text = await answer.text()
        try:
            message = json.loads(text)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = text
        raise ValueError(f"HTTP {answer.status}: {message}")


def _prompt(tokens: int, number: int) -> list[int]:
    """Token ids that differ from request to request from the first token on, so that no prefix is shared."""
    return [3 + (number * 7919 + position * 31) % 900 for position in range(tokens)]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one phase showed its users."""

    requests: int
    failed_requests: int
    short_ttft_p50_s: float
    short_ttft_p95_s: float
    long_ttft_p50_s: float
    long_ttft_p95_s: float
    output_tokens_per_s: float
    duration_s: float


def figures(outcomes: Sequence[Outcome], split_tokens: int) -> Figures:
    """TTFT by lane (short: at most `split_tokens` prompt tokens) and throughput over the replay.

    Throughput counts the output tokens of completed requests over the time from the first arrival to the
    last completion.
    """
    good = [outcome for outcome in outcomes if outcome.error is None]
    short = [outcome.ttft_s for outcome in good if outcome.request.prompt_tokens <= split_tokens]
    long = [outcome.ttft_s for outcome in good if outcome.request.prompt_tokens > split_tokens]
    begin = min((outcome.request.at_s for outcome in good), default=0.0)
    end = max((outcome.done_s or 0.0 for outcome in good), default=0.0)
    duration_s = max(end - begin, 1e-9)
    return Figures(
        requests=len(outcomes),
        failed_requests=len(outcomes) - len(good),
        short_ttft_p50_s=quantile(short, 0.50),
        short_ttft_p95_s=quantile(short, 0.95),
        long_ttft_p50_s=quantile(long, 0.50),
        long_ttft_p95_s=quantile(long, 0.95),
        output_tokens_per_s=sum(outcome.tokens for outcome in good) / duration_s,
        duration_s=duration_s,
    )
