"""What the tests of the simulated server share: a client session, and waiting for a server to be at rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.support.sim_server import SimServer
from tests.support.waiting import eventually


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as opened:
        yield opened


async def idle(server: SimServer) -> None:
    """Until nothing waits, runs or holds KV."""

    def at_rest() -> bool:
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return not any(server.vllm(name) for name in names)

    await asyncio.to_thread(eventually, at_rest)
