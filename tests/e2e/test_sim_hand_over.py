"""Prefill and decode as two processes: KV is handed over, fetched, given up, and refused where it does not belong."""

from __future__ import annotations

import asyncio
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.e2e.conftest import idle
from tests.support.hand_over import HAND_OVER
from tests.support.sim_server import MODEL_NAME, SimServer, complete, sim_server
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SimServer, SimServer]]:
    folder = tmp_path_factory.mktemp("pair")
    with (
        sim_server(folder, "--role", "prefill", name="prefill") as prefill,
        sim_server(folder, "--role", "decode", name="decode") as decode,
    ):
        yield prefill, decode


async def test_prefill_hands_its_kv_over_to_decode(
    pair: tuple[SimServer, SimServer], session: aiohttp.ClientSession
) -> None:
    prefill, decode = pair
    prompt = [1] * 3000
    _, first = await complete(session, prefill, prompt=prompt, max_tokens=1, kv_transfer_params=HAND_OVER)
    params = first["kv_transfer_params"]
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    assert (params["remote_host"], params["remote_port"]) == ("127.0.0.1", prefill.port)
    assert params["remote_num_tokens"] == 3000
    assert prefill.vllm("kv_cache_usage_perc") > 0
    _, rest = await complete(session, decode, prompt=prompt, max_tokens=8, kv_transfer_params=params)
    assert rest["usage"] == {"prompt_tokens": 3000, "completion_tokens": 8, "total_tokens": 3008}
    await idle(prefill)
    await idle(decode)
    labels = f'engine="0",model_name="{MODEL_NAME}"'
    computed = decode.metrics()[f"vllm:request_prefill_kv_computed_tokens_sum{{{labels}}}"]
    assert computed == 1
    assert decode.vllm("prompt_tokens_total") == 3000


async def test_decode_computes_a_plain_request_by_itself(
    pair: tuple[SimServer, SimServer], session: aiohttp.ClientSession
) -> None:
    status, answer = await complete(session, pair[1], prompt=[1] * 300, max_tokens=2)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 2)


async def test_kv_of_a_decode_that_was_given_up_is_freed_at_once(
    pair: tuple[SimServer, SimServer], session: aiohttp.ClientSession
) -> None:
    prefill, decode = pair
    _, first = await complete(session, prefill, prompt=[1] * 500, max_tokens=1, kv_transfer_params=HAND_OVER)
    body = {"prompt": [1] * 500, "max_tokens": 20_000, "kv_transfer_params": first["kv_transfer_params"]}
    task = asyncio.create_task(complete(session, decode, **body))
    await asyncio.to_thread(eventually, lambda: decode.vllm("num_requests_running") == 1)
    task.cancel()
    await idle(prefill)
    await idle(decode)


@pytest.mark.parametrize(
    ("role", "params", "sentence"),
    [
        pytest.param(0, {"do_remote_prefill": True}, "goes to a decode pod", id="a fetch by a prefill pod"),
        pytest.param(1, HAND_OVER, "goes to a prefill pod", id="a hand-over by a decode pod"),
        pytest.param(1, {"do_remote_prefill": True}, "remote_engine_id must be", id="a fetch from nowhere"),
        pytest.param(1, [], "must be an object", id="a list"),
        pytest.param(1, {"do_remote_prefill": True, "do_remote_decode": True}, "both", id="both directions at once"),
    ],
)
async def test_a_wrong_hand_over_is_refused_with_a_sentence(
    pair: tuple[SimServer, SimServer], session: aiohttp.ClientSession, role: int, params: Any, sentence: str
) -> None:
    status, answer = await complete(session, pair[role], prompt="x", max_tokens=1, kv_transfer_params=params)
    assert status == 400
    assert sentence in answer["error"]["message"]


async def test_a_release_for_another_engine_is_refused(
    pair: tuple[SimServer, SimServer], session: aiohttp.ClientSession
) -> None:
    body = {"engine_id": "someone else", "request_id": "x"}
    async with session.post(f"{pair[0].url}/prefleet/kv_release", json=body) as response:
        assert response.status == 404


async def test_a_drain_waits_until_what_prefill_holds_was_fetched(
    pair: tuple[SimServer, SimServer], session: aiohttp.ClientSession
) -> None:
    prefill, decode = pair
    prompt = [1] * 700
    _, first = await complete(session, prefill, prompt=prompt, max_tokens=1, kv_transfer_params=HAND_OVER)
    assert prefill.runtime_metrics()["prefleet_unfinished_requests"] == 1
    hook = [sys.executable, "-m", "prefleet_runtime.drain", "--host", "127.0.0.1", "--settle-s", "0", "--limit-s", "60"]
    ports = ["--http-port", str(prefill.port), "--exporter-port", str(prefill.exporter_port)]
    drain = await asyncio.create_subprocess_exec(*hook, *ports)
    try:
        await asyncio.to_thread(eventually, lambda: closes_connections(prefill))
        assert drain.returncode is None, "it holds KV yet"
        body = {"prompt": prompt, "max_tokens": 3, "kv_transfer_params": first["kv_transfer_params"]}
        _, rest = await complete(session, decode, **body)
        assert rest["choices"][0]["text"] == " 1 2 3"
        assert await asyncio.wait_for(drain.wait(), 30) == 0
    finally:
        if drain.returncode is None:
            drain.kill()
            await drain.wait()
    assert prefill.runtime_metrics()["prefleet_unfinished_requests"] == 0
    status, _ = await complete(session, prefill, prompt="still", max_tokens=1)
    assert status == 200, "what still comes is served until the signal"


def closes_connections(server: SimServer) -> bool:
    with urllib.request.urlopen(f"{server.url}/v1/models", timeout=5) as answer:
        return str(answer.headers["Connection"]).lower() == "close"
