"""The real vllm-router, told what the operator renders, before real vLLM pods on the CPU.

Prefill and decode are apart and hand over through NixlConnector; the operator's own arguments for it are theirs. What
tokens are right says the decode engine alone, asked plainly under a salt that hides from it what it fetched.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prefleet_operator.api import parse_spec

from tests.support.real_router import RealRouter, real_router
from tests.support.rendering import VLLM
from tests.support.tiny_model import FIRST_WORD
from tests.support.vllm_server import MODEL_NAME, VllmServer, complete, read_metrics, running
from tests.vllm.conftest import wait_until
from tests.vllm.test_prefill_decode import POLICIES, launch_role

pytestmark = pytest.mark.vllm

TIMEOUT_S = 180
OUTPUT_TOKENS = 8
GREETING_TOKENS = 20
# A prompt's length is its name: none is asked twice.
LENGTHS = [60 + 7 * number for number in range(10)] + [1200, 1300]
SPEC = parse_spec(VLLM | {"router": {"type": "VLLMRouter", "image": "example.com/router:1"}})


@pytest.fixture(scope="module")
def answered(vllm_python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came through the router, what the decode engine says alone, and what both engines tell of it."""
    folder = tmp_path_factory.mktemp("routed")
    with running([launch_role(vllm_python, model, folder, role) for role in POLICIES]) as (prefill, decode):
        answers = asyncio.run(ask_through_router(folder, prefill, decode))
        wait_until(lambda: in_use(prefill) == in_use(decode) == 0)
        ended = {"prefill": counted(prefill), "decode": counted(decode)}
        return answers | ended


async def ask_through_router(folder: Path, prefill: VllmServer, decode: VllmServer) -> dict[str, Any]:
    """Streamed and whole answers by turns, all at once; then the same prompts to the decode engine alone."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        pods = {"prefill": [prefill.port], "decode": [decode.port]}
        async with real_router(folder, SPEC, pods) as router:
            await greet(session, router)
            calls = (ask(session, router, length, stream=length % 2 == 0) for length in LENGTHS)
            routed = list(await asyncio.gather(*calls))
        alone = [
            (await complete(session, decode, prompt(length), OUTPUT_TOKENS, cache_salt="alone")).tokens
            for length in LENGTHS
        ]
    return {"routed": routed, "alone": alone}


async def greet(session: aiohttp.ClientSession, router: RealRouter) -> None:
    """The engines get to know each other at the first hand-over; on a busy machine that may time out once."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await ask(session, router, GREETING_TOKENS, stream=False)
                return
            except aiohttp.ClientResponseError:
                await asyncio.sleep(1)


async def ask(session: aiohttp.ClientSession, router: RealRouter, length: int, stream: bool) -> list[int]:
    """The tokens of one greedy completion through the router."""
    body = {
        "model": MODEL_NAME,
        "prompt": prompt(length),
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
        "return_token_ids": True,
    }
    async with session.post(f"{router.url}/v1/completions", json=body) as response:
        response.raise_for_status()
        text = await response.text()
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")] if stream else [text]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    return [token for choice in choices for token in choice.get("token_ids") or ()]


def prompt(length: int) -> list[int]:
    """Token ids that no other length begins with."""
    return [FIRST_WORD + (length + position) % 1000 for position in range(length)]


def counted(server: VllmServer) -> list[tuple[int, int, int]]:
    """Prompt, cached and output tokens of every request that ended, greetings left out."""
    requests = (r for r in server.recent() if r["prompt_tokens"] != GREETING_TOKENS)
    return [(r["prompt_tokens"], r["cached_tokens"], r["output_tokens"]) for r in requests]


def in_use(server: VllmServer) -> float:
    """Requests running and waiting."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return sum(value for name, value in read_metrics(f"{server.url}/metrics").items() if name.split("{")[0] in names)


def test_the_tokens_are_those_of_a_single_engine(answered: dict[str, Any]) -> None:
    assert answered["routed"] == answered["alone"]
    assert {len(tokens) for tokens in answered["routed"]} == {OUTPUT_TOKENS}


def test_every_request_is_prefilled_once_on_the_prefill_pod(answered: dict[str, Any]) -> None:
    assert sorted(lengths(answered["prefill"])) == sorted(LENGTHS)
    assert {output for _, _, output in answered["prefill"]} == {1}


def test_every_request_is_decoded_once_on_the_decode_pod_which_computes_no_prompt(answered: dict[str, Any]) -> None:
    routed = answered["decode"][: len(LENGTHS)]
    assert sorted(lengths(routed)) == sorted(LENGTHS)
    assert {prompt_tokens - cached for prompt_tokens, cached, _ in routed} <= {0, 1}
    assert {output for _, _, output in routed} == {OUTPUT_TOKENS}


def lengths(requests: Sequence[tuple[int, int, int]]) -> list[int]:
    return [prompt_tokens for prompt_tokens, _, _ in requests]
