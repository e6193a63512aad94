"""The real routers, told what the operator renders, in front of simulated pods: nothing lost, nothing doubled.

A prompt's length is its name: every request of a test has another one, so that pods tell which of them they saw.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prefleet_operator.api import PrefillPolicySpec, RoleSpec, RouterType, parse_spec
from prefleet_operator.render.router_command import RETRY_PAUSE_MS, retry_arguments, router_command

from tests.e2e.conftest import idle
from tests.support.busy_pod import BusyPod, busy_pod
from tests.support.real_router import RealRouter, addresses, real_router
from tests.support.rendering import SGLANG, SIMULATOR, VLLM, VLLM_MIXED, option
from tests.support.router_env import ensure_router_env
from tests.support.sim_server import FAST, MODEL_NAME, SLOW, SimServer, events, sim_server
from tests.support.waiting import eventually

APART: dict[str, Any] = {"model": SIMULATOR["model"], "engine": SIMULATOR["engine"], "prefill": {}, "decode": {}}
IMAGE = "example.com/router:1"
OUTPUT_TOKENS = 6
FIRST_LENGTH = 20
# KV that a dead decode pod never fetched is soon free.
LEASE = ("--kv-lease-s", "4")


def vllm_router(fleet: dict[str, Any], **fields: str) -> PrefillPolicySpec:
    return parse_spec(fleet | {"router": {"type": "VLLMRouter", "image": IMAGE} | fields})


def sglang_router(busy_retry_timeout: str) -> PrefillPolicySpec:
    """The pods here speak no SGLang, but what a router does with refusals is seen in front of anything."""
    router = {"type": "SGLangRouter", "image": IMAGE, "busyRetryTimeout": busy_retry_timeout}
    return parse_spec(SGLANG | {"router": router})


@dataclass(frozen=True)
class Fleet:
    prefill: Sequence[SimServer]
    decode: Sequence[SimServer]
    router: RealRouter


@asynccontextmanager
async def fleet_apart(folder: Path, cost_model: str = FAST) -> AsyncIterator[Fleet]:
    """Two prefill and two decode pods behind vllm-router."""
    with ExitStack() as stack:

        def start(role: str) -> list[SimServer]:
            names = [f"{role}-{number}" for number in range(2)]
            servers = [sim_server(folder, "--role", role, *LEASE, name=name, cost_model=cost_model) for name in names]
            return [stack.enter_context(server) for server in servers]

        prefill, decode = start("prefill"), start("decode")
        pods = {"prefill": [pod.port for pod in prefill], "decode": [pod.port for pod in decode]}
        async with real_router(folder, vllm_router(APART), pods) as router:
            yield Fleet(prefill, decode, router)


async def send(
    session: aiohttp.ClientSession, router: RealRouter, length: int, stream: bool, max_tokens: int = OUTPUT_TOKENS
) -> str:
    """One completion through the router: its text. Raises what aiohttp raises if it was refused or cut off."""
    body = {"model": MODEL_NAME, "prompt": [1] * length, "max_tokens": max_tokens, "stream": stream}
    async with session.post(f"{router.url}/v1/completions", json=body) as response:
        response.raise_for_status()
        if not stream:
            return str((await response.json())["choices"][0]["text"])
        return "".join([event["choices"][0]["text"] async for event in events(response)])


def seen(pods: Sequence[SimServer]) -> list[Counter[tuple[int, int]]]:
    """Of each pod: how often it ended a request of (prompt tokens, output tokens)."""
    return [Counter((r["prompt_tokens"], r["output_tokens"]) for r in pod.recent()) for pod in pods]


def text(tokens: int) -> str:
    return "".join(f" {number}" for number in range(1, tokens + 1))


async def test_every_request_is_prefilled_once_and_decoded_once(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    lengths = range(FIRST_LENGTH, FIRST_LENGTH + 40)
    async with fleet_apart(tmp_path) as fleet:
        answers = await asyncio.gather(*(send(session, fleet.router, n, stream=n % 2 == 0) for n in lengths))
        assert set(answers) == {text(OUTPUT_TOKENS)}
        for pod in (*fleet.prefill, *fleet.decode):
            await idle(pod)
        prefilled, decoded = await asyncio.to_thread(lambda: (seen(fleet.prefill), seen(fleet.decode)))
    assert prefilled[0] + prefilled[1] == Counter((length, 1) for length in lengths)
    assert decoded[0] + decoded[1] == Counter((length, OUTPUT_TOKENS) for length in lengths)
    assert all(prefilled)
    assert all(decoded)


async def test_a_pod_that_dies_takes_its_own_requests_along_and_no_others(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    tokens, lengths = 40, range(FIRST_LENGTH, FIRST_LENGTH + 12)
    async with fleet_apart(tmp_path, SLOW) as fleet:
        dying, staying = fleet.decode
        calls = [asyncio.create_task(send(session, fleet.router, n, True, tokens)) for n in lengths]
        await asyncio.to_thread(eventually, lambda: dying.vllm("num_requests_running") > 0)
        dying.process.kill()
        # What Kubernetes does a moment later.
        fleet.router.services["decode"].backends = addresses([staying.port])
        answers = await asyncio.gather(*calls, return_exceptions=True)
        whole = [answer for answer in answers if answer == text(tokens)]
        later = range(100, 120)
        assert set(await asyncio.gather(*(send(session, fleet.router, n, False) for n in later))) == {
            text(OUTPUT_TOKENS)
        }
        for pod in (*fleet.prefill, staying):
            await idle(pod)
        prefilled, decoded = await asyncio.to_thread(lambda: (seen(fleet.prefill), seen([staying])))
    assert 0 < len(whole) < len(lengths)
    assert max((prefilled[0] + prefilled[1]).values()) == 1
    assert sum(decoded[0].values()) == len(whole) + len(later)
    assert max(decoded[0].values()) == 1


async def test_a_router_that_is_told_to_stop_ends_its_running_answers(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    async with fleet_apart(tmp_path, SLOW) as fleet:
        call = asyncio.create_task(send(session, fleet.router, 50, True, 40))
        await asyncio.to_thread(eventually, lambda: any(pod.vllm("num_requests_running") > 0 for pod in fleet.decode))
        fleet.router.terminate()
        assert await call == text(40)
        assert await asyncio.to_thread(fleet.router.process.wait, 20) in (0, -signal.SIGTERM)


# Busy pods.

MIXED_ROUTERS = pytest.mark.parametrize(
    "spec",
    [
        pytest.param(lambda timeout: vllm_router(SIMULATOR, busyRetryTimeout=timeout), id="vllm-router"),
        pytest.param(sglang_router, id="sglang-router"),
    ],
)


async def ask(session: aiohttp.ClientSession, router: RealRouter) -> tuple[int, float]:
    """The status of one completion, and how long it took."""
    began = time.monotonic()
    body = json.dumps({"model": MODEL_NAME, "prompt": "x", "max_tokens": 1})
    headers = {"Content-Type": "application/json"}
    async with session.post(f"{router.url}/v1/completions", data=body, headers=headers) as response:
        await response.read()
        return response.status, time.monotonic() - began


@MIXED_ROUTERS
@pytest.mark.parametrize("status", [429, 503])
async def test_without_a_busy_retry_a_refusal_is_passed_on_after_one_try(
    tmp_path: Path, session: aiohttp.ClientSession, spec: Any, status: int
) -> None:
    async with busy_pod(status, refusals=1) as pod, real_router(tmp_path, spec("0s"), {"mixed": [pod.port]}) as router:
        assert (await ask(session, router))[0] == status
        assert pod.tries == 1
        assert (await ask(session, router))[0] == 200


@MIXED_ROUTERS
@pytest.mark.parametrize("status", [429, 503])
async def test_with_a_busy_retry_a_pod_that_frees_itself_in_time_answers(
    tmp_path: Path, session: aiohttp.ClientSession, spec: Any, status: int
) -> None:
    async with busy_pod(status, refusals=2) as pod, real_router(tmp_path, spec("5s"), {"mixed": [pod.port]}) as router:
        answered, took_s = await ask(session, router)
        assert (answered, pod.tries) == (200, 3)
        assert took_s >= 2 * 0.9 * RETRY_PAUSE_MS / 1000


@MIXED_ROUTERS
async def test_a_busy_retry_ends(tmp_path: Path, session: aiohttp.ClientSession, spec: Any) -> None:
    timeout_s = 1.2
    tries = int(option(list(retry_arguments(timeout_s)), "--retry-max-retries"))
    async with (
        busy_pod(503, refusals=1000) as pod,
        real_router(tmp_path, spec("1200ms"), {"mixed": [pod.port]}) as router,
    ):
        answered, took_s = await ask(session, router)
        print(f"{pod.tries} tries in {took_s:.2f} s")
        assert (answered, pod.tries) == (503, tries)


@MIXED_ROUTERS
async def test_a_service_whose_pods_failed_is_used_again_at_once(
    tmp_path: Path, session: aiohttp.ClientSession, spec: Any
) -> None:
    """However often: a router's circuit breaker would take the role away for a minute, all of its pods."""
    failures = 30
    async with (
        busy_pod(500, failures) as pod,
        real_router(tmp_path, spec("0s"), {"mixed": [pod.port]}) as router,
    ):
        assert [(await ask(session, router))[0] for _ in range(failures)] == [500] * failures
        assert (await ask(session, router))[0] == 200


async def apart(session: aiohttp.ClientSession, folder: Path, spec: PrefillPolicySpec) -> tuple[int, BusyPod, BusyPod]:
    """One completion where the prefill pod is busy once: its status, and both pods."""
    async with busy_pod(503, refusals=1) as prefill, busy_pod(503, refusals=0) as decode:
        pods = {"prefill": [prefill.port], "decode": [decode.port]}
        async with real_router(folder, spec, pods) as router:
            return (await ask(session, router))[0], prefill, decode


async def test_where_prefill_is_apart_vllm_router_never_tries_again_which_is_why_the_spec_refuses_it(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    spec = vllm_router(APART)
    insisting = spec.model_copy(update={"router": spec.router.model_copy(update={"busy_retry_timeout": "2s"})})
    status, prefill, decode = await apart(session, tmp_path, insisting)
    assert status >= 500
    assert (prefill.tries, decode.tries) == (1, 0)


async def test_where_prefill_is_apart_sglangs_router_tries_both_again(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    """By Services, which only this test does: there is one pod behind each."""
    roles = {"mixed": None, "prefill": RoleSpec(), "decode": RoleSpec()}
    spec = sglang_router("2s").model_copy(update=roles)
    status, prefill, decode = await apart(session, tmp_path, spec)
    assert (status, prefill.tries, decode.tries) == (200, 2, 2)


# What is rendered for a cluster, read by the programs' own parsers.

ACCOUNT = {"serviceAccountName": "finder"}
SGLANG_APART = {name: part for name, part in SGLANG.items() if name != "mixed"} | {"prefill": {}, "decode": {}}


@pytest.mark.parametrize(
    ("spec", "understood"),
    [
        pytest.param(
            vllm_router(VLLM),
            {
                "vllm_pd_disaggregation": True,
                "prefill_urls": [["http://chat-prefill.serving.svc:8000", None]],
                "decode_urls": ["http://chat-decode.serving.svc:8000"],
                "kv_connector": "nixl",
                "disable_retries": True,
            },
            id="vllm-router by Services",
        ),
        pytest.param(
            vllm_router(VLLM_MIXED, busyRetryTimeout="5s", **ACCOUNT),
            {
                "service_discovery": True,
                "selector": {"prefleet.dev/fleet": "chat", "prefleet.dev/role": "mixed"},
                "service_discovery_namespace": "serving",
                "service_discovery_port": 8000,
                "disable_retries": False,
                "retry_max_retries": 10,
                "retry_initial_backoff_ms": 500,
                "disable_circuit_breaker": False,
            },
            id="vllm-router by watching",
        ),
        pytest.param(
            parse_spec(SGLANG_APART | {"router": {"type": "SGLangRouter", "image": IMAGE} | ACCOUNT}),
            {
                "pd_disaggregation": True,
                "service_discovery": True,
                "prefill_selector": {"prefleet.dev/fleet": "chat", "prefleet.dev/role": "prefill"},
                "decode_selector": {"prefleet.dev/fleet": "chat", "prefleet.dev/role": "decode"},
                "shutdown_grace_period_secs": 300,
                "disable_retries": True,
            },
            id="sglang-router by watching",
        ),
    ],
)
def test_a_router_understands_what_is_rendered_for_a_cluster(
    spec: PrefillPolicySpec, understood: dict[str, Any]
) -> None:
    module = "sglang_router" if spec.router.type is RouterType.SGLANG_ROUTER else "vllm_router"
    program = (
        f"import json, sys; from {module}.launch_router import parse_router_args; "
        "print(json.dumps(vars(parse_router_args(sys.argv[1:])), default=str))"
    )
    python = ensure_router_env(print) / "bin" / "python"
    args = router_command("chat", "serving", spec).args
    done = subprocess.run([python, "-c", program, *args], capture_output=True, text=True, check=True, timeout=60)
    parsed = json.loads(done.stdout)
    assert {name: parsed[name] for name in understood} == understood
