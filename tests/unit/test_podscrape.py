"""What one pod may cost the operator that scrapes all: a bounded number of series, and nothing unpacked."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web
from prefleet_operator.adapters.metrics_source import FleetQuery, PodTarget
from prefleet_operator.adapters.pod_history import FORGET_AFTER_S, MAX_SERIES, PodHistory
from prefleet_operator.adapters.podscrape import MAX_ANSWER_BYTES, PodScrape, counts_up
from prefleet_operator.api import LengthMeasure, Role
from prefleet_operator.core.observed import Missing, Sample

from tests.support.plane.processes import free_ports

FLOOD = "".join(f'prefleet_queue_wait_seconds_bucket{{lane="long",le="{n}"}} 1\n' for n in range(MAX_SERIES + 1))


@asynccontextmanager
async def serving(body: Callable[[], bytes], headers: dict[str, str]) -> AsyncIterator[FleetQuery]:
    """A fleet of one pod that answers so."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body(), headers=headers)

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield FleetQuery("ns", "chat", (PodTarget("p", Role.MIXED, "127.0.0.1", port),), 300.0, LengthMeasure.PROMPT)
    await runner.cleanup()


@asynccontextmanager
async def scraping() -> AsyncIterator[PodScrape]:
    source = PodScrape()
    yield source
    await source.close()


@pytest.mark.parametrize(
    ("headers", "body", "sentence"),
    [
        pytest.param({}, FLOOD.encode(), "4,001 series", id="more series than a runtime has"),
        pytest.param({}, b"x" * (MAX_ANSWER_BYTES + 1), "more than 1,048,576 bytes", id="an answer without end"),
        pytest.param(
            {"Content-Encoding": "gzip"},
            gzip.compress(b"prefleet_policy_generation 1\n"),
            "shows no prefleet_policy_generation",
            id="a packed answer, which could unpack to any size",
        ),
    ],
)
async def test_a_pod_that_answers_too_much_is_missing(headers: dict[str, str], body: bytes, sentence: str) -> None:
    async with serving(lambda: body, headers) as fleet, scraping() as source:
        reading = (await source.read([fleet], 100.0))[fleet.key].generations["p"]
    assert isinstance(reading, Missing)
    assert sentence in reading.reason


@pytest.mark.parametrize("bound", ["NaN", "many"])
async def test_a_pod_whose_bucket_has_no_bound_keeps_nobody_elses_readings_away(bound: str) -> None:
    """Any tenant's pod may show one."""
    good = 'prefleet_policy_generation 1\nprefleet_request_prompt_tokens_bucket{le="8.0"} 1\n'
    bad = f'{good}prefleet_request_prompt_tokens_bucket{{le="{bound}"}} -3\n'
    async with serving(bad.encode, {}) as broken, serving(good.encode, {}) as fleet, scraping() as source:
        broken = replace(broken, namespace="other")
        for now in (100.0, 105.0):
            readings = await source.read([broken, fleet], now)
    assert isinstance(readings[broken.key].generations["p"], Missing)
    assert isinstance(readings[fleet.key].metrics.lengths, Sample)


async def test_however_many_pods_hang_those_that_answer_are_asked_in_every_cycle() -> None:
    held: list[asyncio.StreamWriter] = []

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    (port,) = free_ports(1)
    server = await asyncio.start_server(hang, "127.0.0.1", port)
    pods = tuple(PodTarget(f"hangs-{number}", Role.MIXED, "127.0.0.1", port) for number in range(12))
    hanging = FleetQuery("other", "hangs", pods, 300.0, LengthMeasure.PROMPT)
    source = PodScrape(timeout_s=0.1, deadline_s=0.35, concurrency=2)
    async with serving(lambda: b"prefleet_policy_generation 1\n", {}) as fleet:
        found = [(await source.read([hanging, fleet], 100.0 + 5 * cycle))[fleet.key] for cycle in range(8)]
    await source.close()
    for writer in held:
        writer.close()
    server.close()
    assert [isinstance(reading.generations["p"], Sample) for reading in found[3:]] == [True] * 5


def test_a_pod_that_ever_shows_other_series_fills_its_history() -> None:
    history, name = PodHistory(counts_up), "prefleet_request_prompt_tokens_bucket"
    for turn in range(5):
        assert not history.full
        history.add({(name, float(turn * 1000 + bound)): 1.0 for bound in range(1000)}, float(turn), 60.0)
    assert history.full


@pytest.mark.parametrize(
    ("away_s", "seen"),
    [
        pytest.param(FORGET_AFTER_S - 1, 20.0, id="a pod that is away for a moment keeps its window"),
        pytest.param(FORGET_AFTER_S + 1, None, id="a pod that stays away is forgotten"),
    ],
)
async def test_a_pod_that_no_fleet_names_for_a_while(away_s: float, seen: float | None) -> None:
    count = 0

    def body() -> bytes:
        nonlocal count
        count += 10
        return f'prefleet_policy_generation 1\nprefleet_request_prompt_tokens_bucket{{le="8.0"}} {count}\n'.encode()

    async with serving(body, {}) as fleet, scraping() as source:
        for now in (100.0, 105.0):
            await source.read([fleet], now)
        await source.read([replace(fleet, pods=())], 105.0 + away_s)
        lengths = (await source.read([fleet], 106.0 + away_s))[fleet.key].metrics.lengths
    assert (lengths.value.total if isinstance(lengths, Sample) else None) == seen
