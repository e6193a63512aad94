"""Fleets with windows of their own share one source: what one window costs is not taken from the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prefleet_operator.adapters.metrics_source import FleetQuery
from prefleet_operator.adapters.prometheus import PrometheusSource
from prefleet_operator.api import LengthMeasure


async def test_all_windows_are_asked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    source, together = PrometheusSource("p", "http://127.0.0.1:9"), asyncio.Barrier(3)

    async def ask_all(*_: Any) -> dict[Any, Any]:
        await together.wait()
        return {}

    monkeypatch.setattr(source, "_ask_all", ask_all)
    fleets = [FleetQuery("ns", f"f{n}", (), float(n), LengthMeasure.PROMPT) for n in (60, 300, 600)]
    readings = await asyncio.wait_for(source.read(fleets, 0.0), 10)
    assert set(readings) == {"ns/f60", "ns/f300", "ns/f600"}
