"""The stand-ins order their queue as they were told, so that what is measured on them follows from a policy."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from prefleet_operator.api import SchedulingPolicy
from prefleet_operator.core.native_policy import NativePolicy

from tests.support.native.cases import CASES, MODEL
from tests.support.native.running import NativeProcess, native_server

LONGS = 20
# Without promotion, so that it does not matter how fast this machine is.
SHORT_FIRST = NativePolicy(generation=1, policy=SchedulingPolicy.SHORT_REQUEST_FIRST, threshold=900)
FCFS = NativePolicy(generation=1, policy=SchedulingPolicy.FCFS)


async def finished_before_the_short(server: NativeProcess) -> int:
    """How many of 20 long requests, 60 ms each, are answered before a short one that came after all of them."""
    done: list[int] = []
    async with aiohttp.ClientSession() as session:

        async def ask(length: int) -> None:
            body = {"model": MODEL, "prompt": [1] * length, "max_tokens": 1}
            async with session.post(f"{server.url}/v1/completions", json=body) as answer:
                assert answer.status == 200
                await answer.read()
            done.append(length)

        longs = [asyncio.ensure_future(ask(6000)) for _ in range(LONGS)]
        await asyncio.wait(longs, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(ask(100), *longs)
    return done.index(100)


@pytest.mark.parametrize(
    ("policy", "least", "most"),
    [
        pytest.param(SHORT_FIRST, 0, LONGS // 2, id="short first, it passes those that wait"),
        pytest.param(FCFS, LONGS - 2, LONGS, id="first come first served, it is among the last"),
    ],
)
async def test_a_short_request_behind_long_ones(tmp_path: Path, policy: NativePolicy, least: int, most: int) -> None:
    with native_server(tmp_path, CASES["VLLMAscend"].spec, policy) as server:
        assert least <= await finished_before_the_short(server) <= most
