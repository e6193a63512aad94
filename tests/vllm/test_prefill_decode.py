"""A real prefill and a real decode engine that hand over KV through NixlConnector, on the CPU, under our scheduler.

The client does what vLLM's proxies do: the prefill is asked for one token with `do_remote_decode`, and the
`kv_transfer_params` of its answer go with the same prompt to the decode, which fetches the KV from the prefill. Which
tokens are right says one engine alone: the decode, asked plainly, under a salt that hides from it what it fetched.
The last two tests end the prefill, as a kubelet does: first the preStop hook, then the signal.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prefleet_runtime.contract import RuntimePolicy

from tests.support.hand_over import HAND_OVER
from tests.support.tiny_model import FIRST_WORD, VOCABULARY
from tests.support.vllm_server import (
    MODEL_NAME,
    Answer,
    VllmServer,
    complete,
    free_port,
    launch,
    read_metrics,
    running,
    server_environment,
)
from tests.vllm.conftest import wait_until

pytestmark = pytest.mark.vllm

TIMEOUT_S = 180
MEETING_TIMEOUT_S = 180.0
GREETING_TOKENS = 20
OUTPUT_TOKENS = 8
SHUTDOWN_S = 120
HELD = [[5, *range(FIRST_WORD, FIRST_WORD + 99)], [6, *range(FIRST_WORD, FIRST_WORD + 120)]]
"""The prompts whose KV the prefill holds as it is to end."""
LEASE_S = 110
"""How long the prefill holds KV that nobody fetches: longer than a busy machine stands still (vLLM's own 30 s are not),
and shorter than its shutdown takes at most."""
LONGS, LONG_TOKENS = 3, 1500
SHORTS, SHORT_TOKENS = 6, 80
POLICIES = {
    "kv_producer": {"policy": "short_request_first", "threshold": 256},
    "kv_consumer": {"policy": "fcfs"},
}


@dataclass(frozen=True)
class Pair:
    prefill: VllmServer
    decode: VllmServer


def launch_role(python: Path, model: Path, folder: Path, role: str) -> VllmServer:
    """One side of the pair, with the settings that the operator gives it, on loopback."""
    policy_file = folder / f"{role}.json"
    policy_file.write_text(RuntimePolicy.model_validate({"generation": 1, **POLICIES[role]}).to_json())
    transfer = {
        "kv_connector": "NixlConnector",
        "kv_role": role,
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
    }
    variables = {
        "UCX_NET_DEVICES": "lo",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
    }
    arguments = ["--kv-transfer-config", json.dumps(transfer), "--shutdown-timeout", str(SHUTDOWN_S)]
    arguments += ["--middleware", "prefleet_runtime.vllm.front.DrainFront"]
    return launch(python, model, folder / f"{role}.log", policy_file, arguments, variables)


@pytest.fixture(scope="module")
def pair(vllm_python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with running([launch_role(vllm_python, model, folder, role) for role in POLICIES]) as (prefill, decode):
        wait_until(lambda: asyncio.run(have_met(Pair(prefill, decode))), MEETING_TIMEOUT_S)
        yield Pair(prefill, decode)


async def have_met(pair: Pair) -> bool:
    """The two get to know each other at the first hand-over; on a busy machine that may time out once."""
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
            await hand_over(session, pair, [FIRST_WORD] * GREETING_TOKENS, "greeting")
    except RuntimeError:
        return False
    return True


def ended(server: VllmServer) -> list[dict[str, Any]]:
    """The requests that ended, greetings left out."""
    return [request for request in server.recent() if request["prompt_tokens"] != GREETING_TOKENS]


def make_prompts() -> list[list[int]]:
    draw = random.Random(5)
    lengths = [LONG_TOKENS] * LONGS + [SHORT_TOKENS] * SHORTS
    return [[draw.randrange(FIRST_WORD, VOCABULARY) for _ in range(length)] for length in lengths]


async def hand_over(session: aiohttp.ClientSession, pair: Pair, prompt: list[int], name: str) -> Answer:
    """One completion through both engines, as a proxy routes it."""
    params = await prefill(session, pair, prompt, name)
    return await fetch(session, pair, prompt, name, params)


async def prefill(session: aiohttp.ClientSession, pair: Pair, prompt: list[int], name: str) -> dict[str, Any]:
    """What the prefill answers for the decode; it holds the prompt's KV until that has fetched it."""
    headers = {"X-Request-Id": name}
    body = {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": 0,
        "kv_transfer_params": HAND_OVER,
    }
    async with session.post(f"{pair.prefill.url}/v1/completions", json=body, headers=headers) as response:
        response.raise_for_status()
        params: dict[str, Any] = (await response.json())["kv_transfer_params"]
    assert params["do_remote_prefill"]
    return params


async def fetch(
    session: aiohttp.ClientSession, pair: Pair, prompt: list[int], name: str, params: dict[str, Any]
) -> Answer:
    """The decode's answer from what the prefill holds."""
    headers = {"X-Request-Id": name}
    return await complete(session, pair.decode, prompt, OUTPUT_TOKENS, headers, kv_transfer_params=params)


async def send_all(pair: Pair, prompts: list[list[int]]) -> list[Answer]:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        calls = (hand_over(session, pair, prompt, f"request-{number}") for number, prompt in enumerate(prompts))
        return list(await asyncio.gather(*calls))


async def ask_alone(server: VllmServer, prompts: list[list[int]]) -> list[Answer]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
        calls = (complete(session, server, prompt, OUTPUT_TOKENS, cache_salt="alone") for prompt in prompts)
        return list(await asyncio.gather(*calls))


@pytest.fixture(scope="module")
def handed_over(pair: Pair) -> list[Answer]:
    return asyncio.run(send_all(pair, make_prompts()))


def test_the_pair_answers_the_tokens_of_a_single_engine(pair: Pair, handed_over: list[Answer]) -> None:
    single = asyncio.run(ask_alone(pair.decode, make_prompts()))
    assert [answer.tokens for answer in handed_over] == [answer.tokens for answer in single]
    assert all(len(answer.tokens) == OUTPUT_TOKENS for answer in handed_over)
    assert {request["cached_tokens"] for request in ended(pair.decode)[len(single) :]} == {0}


def test_the_prefill_computes_every_prompt_once_in_its_lane(pair: Pair, handed_over: list[Answer]) -> None:
    recent = ended(pair.prefill)
    told = sorted((r["prompt_tokens"], r["cached_tokens"], r["output_tokens"], *r["waits_s"]) for r in recent)
    assert told == [(SHORT_TOKENS, 0, 1, "short")] * SHORTS + [(LONG_TOKENS, 0, 1, "long")] * LONGS


def test_the_decode_computes_no_prompt(pair: Pair, handed_over: list[Answer]) -> None:
    recent = ended(pair.decode)[: len(handed_over)]
    computed = {request["prompt_tokens"] - request["cached_tokens"] for request in recent}
    assert len(recent) == LONGS + SHORTS
    assert computed <= {0, 1}
    assert {request["output_tokens"] for request in recent} == {OUTPUT_TOKENS}


def test_no_kv_block_stays_behind_on_either_side(pair: Pair, handed_over: list[Answer]) -> None:
    for server in (pair.prefill, pair.decode):
        wait_until(lambda server=server: _in_use(server) == 0)


def _in_use(server: VllmServer) -> float:
    """Requests running and waiting, and the share of the KV cache in use."""
    metrics = read_metrics(f"{server.url}/metrics")
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return sum(value for name, value in metrics.items() if name.split("{")[0] in names)


def held(pair: Pair) -> float:
    """What the prefill says of unfinished requests."""
    return pair.prefill.runtime_metrics()["prefleet_unfinished_requests"]


async def hold_then_fetch(pair: Pair, number: int, meanwhile: Callable[[], None]) -> tuple[list[int], list[int]]:
    """The tokens of a prompt whose KV is fetched after `meanwhile`, and those of the decode alone."""
    prompt, name = HELD[number], f"held-{number}"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
        params = await prefill(session, pair, prompt, name)
        await asyncio.to_thread(meanwhile)
        answer = await fetch(session, pair, prompt, name, params)
        alone = await complete(session, pair.decode, prompt, OUTPUT_TOKENS, cache_salt="alone")
    return answer.tokens, alone.tokens


def test_the_hook_lets_a_prefill_hand_over_what_it_holds(vllm_python: Path, pair: Pair) -> None:
    wait_until(lambda: held(pair) == 0)
    hook = [str(vllm_python), "-m", "prefleet_runtime.drain", "--host", "127.0.0.1", "--settle-s", "0"]
    ports = ["--http-port", str(pair.prefill.port), "--exporter-port", str(pair.prefill.exporter_port)]
    drains: list[subprocess.Popen[bytes]] = []

    def begin_drain() -> None:
        assert held(pair) == 1
        environment = server_environment(vllm_python)
        drains.append(subprocess.Popen([*hook, *ports, "--limit-s", str(SHUTDOWN_S)], env=environment))
        wait_until(lambda: closes_connections(pair.prefill))
        assert drains[0].poll() is None, "it holds KV yet"

    tokens, alone = asyncio.run(hold_then_fetch(pair, 0, begin_drain))
    assert len(tokens) == OUTPUT_TOKENS
    assert tokens == alone
    assert drains[0].wait(SHUTDOWN_S) == 0
    assert held(pair) == 0


def closes_connections(server: VllmServer) -> bool:
    with urllib.request.urlopen(f"{server.url}/v1/models", timeout=TIMEOUT_S) as answer:
        return str(answer.headers["Connection"]).lower() == "close"


def test_a_prefill_told_to_stop_ends_when_what_it_holds_was_fetched(pair: Pair) -> None:
    def terminate() -> None:
        pair.prefill.process.terminate()
        wait_until(lambda: b"[shutdown] EngineCore: start mode=drain" in pair.prefill.log.read_bytes())

    tokens, alone = asyncio.run(hold_then_fetch(pair, 1, terminate))
    assert len(tokens) == OUTPUT_TOKENS
    assert tokens == alone
    assert pair.prefill.process.wait(SHUTDOWN_S) == 0
