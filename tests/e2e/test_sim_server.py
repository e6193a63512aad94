"""The simulated server as a process: API, errors, metrics, live policy, aborts, drain."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prefleet_runtime.contract import PolicyName, RuntimePolicy
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import idle
from tests.support.sim_server import MODEL_NAME, SLOW, SimServer, complete, events, sim_server, write_policy
from tests.support.waiting import eventually

LENGTH_LIMIT = 4096


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimServer]:
    with sim_server(tmp_path_factory.mktemp("mixed"), "--max-model-len", str(LENGTH_LIMIT)) as running:
        yield running


@pytest.mark.parametrize(
    ("prompt", "prompt_tokens"),
    [
        pytest.param("hello", 2, id="a text counts one token per 4 bytes begun"),
        pytest.param([5, 6, 7], 3, id="token ids count themselves"),
        pytest.param(["hello", "hi"], 3, id="several texts are added up"),
        pytest.param([[1, 2], [3, 4, 5]], 5, id="several lists of token ids are added up"),
    ],
)
async def test_prompts_of_every_form_are_answered(
    server: SimServer, session: aiohttp.ClientSession, prompt: Any, prompt_tokens: int
) -> None:
    status, answer = await complete(session, server, prompt=prompt, max_tokens=3, temperature=0, ignore_eos=True)
    assert status == 200
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    assert {(choice["text"], choice["finish_reason"]) for choice in choices} == {(" 1 2 3", "length")}
    generated = 3 * len(choices)
    assert answer["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
    }


async def test_sixteen_tokens_are_the_default(server: SimServer, session: aiohttp.ClientSession) -> None:
    _, answer = await complete(session, server, prompt="x")
    assert answer["usage"]["completion_tokens"] == 16


async def test_a_stream_brings_each_token_in_an_event_of_its_own(
    server: SimServer, session: aiohttp.ClientSession
) -> None:
    body = {
        "model": MODEL_NAME,
        "prompt": [[1] * 50, [2] * 900],
        "max_tokens": 20,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with session.post(f"{server.url}/v1/completions", json=body) as response:
        assert response.content_type == "text/event-stream"
        documents = [document async for document in events(response)]
    texts = {0: "", 1: ""}
    for document in documents[:-1]:
        (choice,) = document["choices"]
        texts[choice["index"]] += choice["text"]
    expected = "".join(f" {k}" for k in range(1, 21))
    assert texts == {0: expected, 1: expected}
    assert len(documents) == 41
    assert documents[-1]["choices"] == []
    assert documents[-1]["usage"]["completion_tokens"] == 40
    last = [d["choices"][0]["finish_reason"] for d in documents[:-1] if d["choices"][0]["text"] == " 20"]
    assert last == ["length", "length"]


async def test_the_small_routes(server: SimServer, session: aiohttp.ClientSession) -> None:
    async with session.get(f"{server.url}/health") as response:
        assert response.status == 200
    async with session.get(f"{server.url}/v1/models") as response:
        (model,) = (await response.json())["data"]
        assert (model["id"], model["max_model_len"]) == (MODEL_NAME, LENGTH_LIMIT)
    async with session.get(f"{server.url}/version") as response:
        assert (await response.json())["version"].startswith("prefleet-sim")


REFUSALS = [
    pytest.param({"prompt": "x", "priority": "high"}, 400, "priority", "64 bits, got 'high'", id="priority as text"),
    pytest.param({"prompt": "x", "priority": 2**64}, 400, "priority", "64 bits", id="a priority beyond 64 bits"),
    pytest.param(b"{", 400, None, "not JSON", id="torn JSON"),
    pytest.param(b"[" * 100_000, 400, None, "not JSON", id="lists in lists without end"),
    pytest.param(b"[1]", 400, None, "JSON object", id="a body that is no object"),
    pytest.param({"prompt": ["x"] * 100_001}, 503, None, "brings 100001 more", id="more prompts than may wait"),
    pytest.param({"model": "other", "prompt": "x"}, 404, "model", "`other` does not exist", id="an unknown model"),
    pytest.param({}, 400, "prompt", "prompt must be", id="no prompt"),
    pytest.param({"prompt": ""}, 400, "prompt", "empty", id="an empty text"),
    pytest.param({"prompt": []}, 400, "prompt", "non-empty", id="an empty list"),
    pytest.param({"prompt": [[]]}, 400, "prompt", "empty", id="an empty list of token ids"),
    pytest.param({"prompt": [1, -2]}, 400, "prompt", "0 or more", id="a negative token id"),
    pytest.param({"prompt": [1, "a"]}, 400, "prompt", "whole numbers", id="a text among token ids"),
    pytest.param({"prompt": {"a": 1}}, 400, "prompt", "prompt must be", id="an object for a prompt"),
    pytest.param({"prompt": "x", "max_tokens": 0}, 400, "max_tokens", "at least 1", id="no tokens wanted"),
    pytest.param({"prompt": "x", "max_tokens": "9"}, 400, "max_tokens", "whole number", id="max_tokens as text"),
    pytest.param(
        {"prompt": [1] * 4090, "max_tokens": 7},
        400,
        "max_tokens",
        "maximum context length is 4096 tokens, but the prompt has 4090 and max_tokens asks for 7",
        id="prompt and max_tokens beyond the context",
    ),
    pytest.param({"prompt": [1] * 5000}, 400, "prompt", "the prompt has 5000", id="a prompt beyond the context"),
    pytest.param({"prompt": "x", "stream": "yes"}, 400, "stream", "true or false", id="stream as text"),
    pytest.param({"prompt": "x", "n": 2}, 400, "n", "not supported", id="more than one answer"),
    pytest.param({"prompt": "x", "logprobs": 1}, 400, "logprobs", "not supported", id="log probabilities"),
    pytest.param({"prompt": "x", "echo": True}, 400, "echo", "not supported", id="echo"),
    pytest.param(
        {"prompt": "x", "stream_options": {}}, 400, "stream_options", "stream: true", id="stream options, no stream"
    ),
    pytest.param(
        {"prompt": "x", "kv_transfer_params": {"do_remote_decode": True}},
        400,
        "kv_transfer_params",
        "do_remote_decode goes to a prefill pod, and this is a mixed pod",
        id="a hand-over from a mixed pod",
    ),
]


@pytest.mark.parametrize(("body", "status", "param", "sentence"), REFUSALS)
async def test_bad_input_is_refused_with_a_sentence(
    server: SimServer,
    session: aiohttp.ClientSession,
    body: bytes | dict[str, Any],
    status: int,
    param: str | None,
    sentence: str,
) -> None:
    data = body if isinstance(body, bytes) else json.dumps({"model": MODEL_NAME} | body).encode()
    async with session.post(f"{server.url}/v1/completions", data=data) as response:
        assert response.status == status
        error = (await response.json())["error"]
    assert sentence in error["message"]
    assert (error["param"], error["code"]) == (param, status)


async def test_an_unknown_route_answers_in_the_same_form(server: SimServer, session: aiohttp.ClientSession) -> None:
    async with session.post(f"{server.url}/v1/chat/completions", json={}) as response:
        assert response.status == 404
        assert "/v1/chat/completions" in (await response.json())["error"]["message"]


async def test_metrics_have_the_names_of_vllm_and_count_what_was_done(
    server: SimServer, session: aiohttp.ClientSession
) -> None:
    before = server.metrics()
    await complete(session, server, prompt=[1] * 700, max_tokens=5)
    async with session.get(f"{server.url}/metrics") as response:
        families = {family.name for family in text_string_to_metric_families(await response.text())}
    assert {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions",
        "vllm:prompt_tokens",
        "vllm:generation_tokens",
        "vllm:request_success",
        "vllm:request_prompt_tokens",
        "vllm:request_prefill_kv_computed_tokens",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:iteration_tokens_total",
    } <= families
    after = server.metrics()
    labels = f'engine="0",model_name="{MODEL_NAME}"'
    for series, rise in [
        (f"vllm:prompt_tokens_total{{{labels}}}", 700),
        (f"vllm:generation_tokens_total{{{labels}}}", 5),
        (f"vllm:time_to_first_token_seconds_count{{{labels}}}", 1),
        (f"vllm:inter_token_latency_seconds_count{{{labels}}}", 4),
        (f'vllm:request_prompt_tokens_bucket{{engine="0",le="500.0",model_name="{MODEL_NAME}"}}', 0),
        (f'vllm:request_prompt_tokens_bucket{{engine="0",le="1000.0",model_name="{MODEL_NAME}"}}', 1),
    ]:
        assert after[series] - before.get(series, 0) == rise, series


async def test_the_runtime_counts_dispatches_on_its_own_port(server: SimServer, session: aiohttp.ClientSession) -> None:
    before = server.runtime_metrics()["prefleet_request_prompt_tokens_count"]
    await complete(session, server, prompt=[1] * 10, max_tokens=1)
    after = server.runtime_metrics()
    assert after["prefleet_request_prompt_tokens_count"] == before + 1
    assert after["prefleet_step_seconds_count"] > 0


async def test_the_runtime_shows_the_work_of_steps_and_what_the_engine_holds(
    server: SimServer, session: aiohttp.ClientSession
) -> None:
    before = server.runtime_metrics()
    await complete(session, server, prompt=[1] * 700, max_tokens=5)
    after = server.runtime_metrics()

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown("prefleet_prefill_tokens_total") == 700
    assert grown("prefleet_decode_tokens_total") == 4
    # One request alone: the gaps are the decode steps, and the rest of the time was its prefill.
    assert 0 < grown("prefleet_decode_gap_seconds_total") < grown("prefleet_step_seconds_sum")
    assert after["prefleet_step_token_budget"] == 2048
    assert (after["prefleet_running_requests"], after["prefleet_kv_usage_ratio"]) == (0, 0)


async def test_a_request_that_runs_is_shown_with_what_it_holds(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    with sim_server(tmp_path, "--kv-cache-tokens", "1600", "--max-model-len", "1600", cost_model=SLOW) as server:
        body = asyncio.ensure_future(complete(session, server, prompt=[1] * 100, max_tokens=100))
        await asyncio.to_thread(eventually, lambda: server.runtime_metrics()["prefleet_running_requests"] == 1)
        shown = server.runtime_metrics()
        assert shown["prefleet_kv_capacity_tokens"] == 1600
        assert 6.5 / 100 < shown["prefleet_kv_usage_ratio"] < 13.5 / 100  # blocks of 16, for 100 to 200 tokens
        await body


async def test_recent_requests_tell_of_the_answered_and_of_those_whose_client_left(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    with sim_server(tmp_path, "--max-num-seqs", "1", cost_model=SLOW) as server:
        await complete(session, server, prompt=[1] * 700, max_tokens=3)
        running = asyncio.create_task(complete(session, server, prompt=[1] * 300, max_tokens=1000))
        await asyncio.to_thread(eventually, lambda: server.vllm("num_requests_running") == 1)
        waiting = asyncio.create_task(complete(session, server, prompt=[1] * 200, max_tokens=1))
        await asyncio.to_thread(eventually, lambda: server.vllm("num_requests_waiting") == 1)
        for task in (waiting, running):
            task.cancel()
        await idle(server)
        recent = {request["prompt_tokens"]: request for request in server.recent()}
    assert len(recent) == 3
    assert (recent[700]["output_tokens"], recent[700]["cached_tokens"]) == (3, 0)
    assert recent[300]["output_tokens"] < 1000
    assert [list(recent[tokens]["waits_s"]) for tokens in (700, 300, 200)] == [["all"], ["all"], []]


async def test_a_policy_changed_in_mid_burst_takes_effect_without_a_restart(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    # 40 longs of 8 steps take at least 16 s; under first come, first served the short would be the last.
    arguments = ("--max-num-batched-tokens", "500", "--max-num-seqs", "1")
    with sim_server(tmp_path, *arguments, cost_model=SLOW) as server:
        long = {"prompt": [1] * 4000, "max_tokens": 1}
        longs = [asyncio.create_task(complete(session, server, **long)) for _ in range(40)]
        await asyncio.to_thread(eventually, lambda: server.vllm("num_requests_waiting") > 30)
        short = asyncio.create_task(complete(session, server, prompt=[1] * 50, max_tokens=1))
        policy = RuntimePolicy(generation=7, policy=PolicyName.SHORT_REQUEST_FIRST, threshold=1000)
        write_policy(server.policy_file, policy)
        status, _ = await short
        assert status == 200
        assert sum(task.done() for task in longs) < 30
        for task in longs:
            task.cancel()
        assert server.runtime_metrics()["prefleet_policy_generation"] == 7
        await idle(server)


async def test_a_torn_policy_file_changes_nothing(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    with sim_server(tmp_path) as server:
        server.policy_file.write_text('{"generation": 8, "poli')
        await asyncio.to_thread(eventually, lambda: server.runtime_metrics()["prefleet_policy_refused_total"] == 1)
        assert server.runtime_metrics()["prefleet_policy_generation"] == 1
        status, _ = await complete(session, server, prompt="still here", max_tokens=1)
        assert status == 200


@pytest.mark.parametrize("trusted", [False, True], ids=["ignored unless trusted", "heeded where trusted"])
@pytest.mark.parametrize("how", ["field", "header"])
async def test_a_priority_that_a_client_sets_is(
    tmp_path: Path, session: aiohttp.ClientSession, how: str, trusted: bool
) -> None:
    """One seat: while the first runs, the last goes before the one in between only if clients are trusted."""
    body, headers = ({"priority": -1}, {}) if how == "field" else ({"priority": 7}, {"X-Vllm-Priority": "-1"})
    ended: list[str] = []

    async def send(name: str, more: dict[str, Any], with_headers: dict[str, str]) -> None:
        document = {"model": MODEL_NAME, "prompt": [1] * 100, "max_tokens": 8} | more
        url = f"{server.url}/v1/completions"
        async with session.post(url, json=document, headers=with_headers) as response:
            assert response.status == 200
        ended.append(name)

    with sim_server(tmp_path, "--max-num-seqs", "1", cost_model=SLOW) as server:
        write_policy(server.policy_file, RuntimePolicy(generation=2, trust_client_priority=trusted))
        await asyncio.to_thread(eventually, lambda: server.runtime_metrics()["prefleet_policy_generation"] == 2)
        tasks = [asyncio.create_task(send("first", {}, {}))]
        await asyncio.to_thread(eventually, lambda: server.vllm("num_requests_running") == 1)
        tasks.append(asyncio.create_task(send("plain", {}, {})))
        await asyncio.to_thread(eventually, lambda: server.vllm("num_requests_waiting") == 1)
        tasks.append(asyncio.create_task(send("favoured", body, headers)))
        await asyncio.gather(*tasks)
    assert ended == (["first", "favoured", "plain"] if trusted else ["first", "plain", "favoured"])


async def test_clients_that_leave_take_their_requests_with_them(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    with sim_server(tmp_path, "--max-num-seqs", "1", cost_model=SLOW) as server:
        body = {"model": MODEL_NAME, "prompt": [1] * 100, "max_tokens": 10_000, "stream": True}
        running = await session.post(f"{server.url}/v1/completions", json=body)
        await running.content.readline()
        waiting = asyncio.create_task(complete(session, server, prompt=[1] * 100))
        await asyncio.to_thread(eventually, lambda: server.vllm("num_requests_waiting") == 1)
        waiting.cancel()
        await asyncio.to_thread(eventually, lambda: server.vllm("num_requests_waiting") == 0)
        running.close()
        await idle(server)
        aborted = f'vllm:request_success_total{{engine="0",finished_reason="abort",model_name="{MODEL_NAME}"}}'
        assert server.metrics()[aborted] == 2


async def test_clients_that_leave_as_they_ask_are_no_errors(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 2, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with sim_server(tmp_path) as server:
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
                client.sendall(head + body)
        status, _ = await complete(session, server, prompt="still here", max_tokens=1)
        assert status == 200
        await idle(server)
        assert "Traceback" not in server.log.read_text()


async def test_sigterm_lets_running_requests_end_and_takes_no_new_ones(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    with sim_server(tmp_path, cost_model=SLOW) as server:
        body = {"model": MODEL_NAME, "prompt": "x", "max_tokens": 60, "stream": True}
        async with session.post(f"{server.url}/v1/completions", json=body) as response:
            stream = events(response)
            seen = [await anext(stream)]
            server.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(eventually, lambda: b"draining" in server.log.read_bytes())
            status, refused = await complete(session, server, prompt="x")
            assert status == 503
            assert "shutting down" in refused["error"]["message"]
            seen += [document async for document in stream]
        assert len(seen) == 60
        assert await asyncio.to_thread(server.process.wait, 20) == 0


async def test_a_second_signal_ends_it_at_once(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    with sim_server(tmp_path, cost_model=SLOW) as server:
        body = {"model": MODEL_NAME, "prompt": "x", "max_tokens": 100_000, "stream": True}
        async with session.post(f"{server.url}/v1/completions", json=body) as response:
            await response.content.readline()
            server.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(eventually, lambda: b"draining" in server.log.read_bytes())
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, 20) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(["--policy-file", "absent.json"], "cannot be read", id="no policy file"),
        pytest.param(
            ["--policy-file", "x", "--cost-model", "abacus"], "no cost model is named", id="an unknown cost model"
        ),
        pytest.param(
            ["--policy-file", "x", "--kv-cache-tokens", "100"], "give 2 to 96", id="a context beyond the cache"
        ),
        pytest.param(["--policy-file", "x", "--role", "router"], "invalid choice", id="an unknown role"),
        pytest.param(["--policy-file", "x", "--kv-lease-s", "nan"], "kv_lease_s is nan", id="a lease of no length"),
        pytest.param(["--policy-file", "x", "--exporter-port", "70000"], "exporter_port:", id="no such exporter port"),
        pytest.param(["--policy-file", "good.json", "--port", "70000"], "set another --port", id="no such port"),
    ],
)
def test_a_start_that_cannot_work_ends_with_a_sentence(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    write_policy(tmp_path / "good.json", RuntimePolicy(generation=1))
    command = [sys.executable, "-m", "prefleet_runtime.sim.server", "--exporter-port", "0", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode != 0
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr
