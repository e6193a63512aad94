"""What one pod may cost the operator that scrapes all: a bounded number of series, and nothing unpacked."""

from __future__ import annotations

import gzip

import pytest
from aiohttp import web
from prefleet_operator.adapters.metrics_source import FleetQuery, PodTarget
from prefleet_operator.adapters.podscrape import MAX_ANSWER_BYTES, MAX_SERIES, PodHistory, PodScrape
from prefleet_operator.api import LengthMeasure, Role
from prefleet_operator.core.observed import Missing

from tests.support.plane.processes import free_ports

FLOOD = "".join(f'prefleet_queue_wait_seconds_bucket{{lane="long",le="{n}"}} 1\n' for n in range(MAX_SERIES + 1))


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
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, headers=headers)

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    source = PodScrape()
    fleet = FleetQuery("ns", "chat", (PodTarget("p", Role.MIXED, "127.0.0.1", port),), 60.0, LengthMeasure.PROMPT)
    try:
        reading = (await source.read([fleet], 100.0))[fleet.key].generations["p"]
    finally:
        await source.close()
        await runner.cleanup()
    assert isinstance(reading, Missing)
    assert sentence in reading.reason


def test_a_pod_that_ever_shows_other_series_fills_its_history() -> None:
    history, name = PodHistory(), "prefleet_request_prompt_tokens_bucket"
    for turn in range(5):
        assert not history.full
        history.add({(name, float(turn * 1000 + bound)): 1.0 for bound in range(1000)}, float(turn), 60.0)
    assert history.full
