"""Sends the jobs of a run to a real server, each at its time however slow the server is, and notes every token.

Times are the client's own, on its monotonic clock, from the moment at which a request was due: what keeps a request
from leaving on time counts as waiting. Prompts are random and never used twice, so that no prefix cache helps the
second of two runs. A request that fails ends the run.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from tests.benchmarks.policies.cases import Job
from tests.benchmarks.policies.figures import Outcome
from tests.support.tiny_model import FIRST_WORD, VOCABULARY
from tests.support.vllm_server import VllmServer, complete

RUN_TIMEOUT_S = 300
LEAD_S = 0.1


def make_prompt(tokens: int, rng: random.Random) -> list[int]:
    return rng.choices(range(FIRST_WORD, VOCABULARY), k=tokens)


def serve(server: VllmServer, jobs: Sequence[Job], by_length: bool, rng: random.Random) -> list[Outcome]:
    """Serve all jobs to their ends; `by_length` gives each request its length as its priority."""
    prompts = [make_prompt(job.prompt_tokens, rng) for job in jobs]
    return asyncio.run(_serve(server, jobs, prompts, by_length))


async def _serve(
    server: VllmServer, jobs: Sequence[Job], prompts: Sequence[list[int]], by_length: bool
) -> list[Outcome]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=RUN_TIMEOUT_S)
    async with asyncio.timeout(RUN_TIMEOUT_S), aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        began_s = time.monotonic() + LEAD_S
        return await asyncio.gather(
            *(_one(session, server, job, prompt, began_s, by_length) for job, prompt in zip(jobs, prompts, strict=True))
        )


async def _one(
    session: aiohttp.ClientSession, server: VllmServer, job: Job, prompt: list[int], began_s: float, by_length: bool
) -> Outcome:
    await asyncio.sleep(began_s + job.at_s - time.monotonic())
    fields: dict[str, Any] = {"priority": job.prompt_tokens} if by_length else {}
    answer = await complete(session, server, prompt, job.output_tokens, **fields)
    if len(answer.tokens) != job.output_tokens:
        raise RuntimeError(f"{len(answer.tokens)} of {job.output_tokens} tokens came: the engine broke off an answer")
    return Outcome(job, [time_s - began_s for time_s in answer.times_s])
