"""The wiring of the process: what starts it anywhere, and what ends it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from prefleet_operator.app.config import OperatorConfig
from prefleet_operator.app.main import Operator, Options, Process, _first_end

OPTIONS = Options(lease="prefleet", lease_namespace="ns", identity="pod-1", host="127.0.0.1", port=0)


class Listener:
    """The one part of an operator that kopf is told of."""

    def on_policy(self, deleted: bool, found: dict[str, Any]) -> None:
        """Nothing is ever heard."""


async def test_kopf_is_given_its_name_since_it_cannot_guess_one_where_the_user_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {}

    async def spawn_tasks(**arguments: Any) -> list[asyncio.Task[None]]:
        given.update(arguments)
        return []

    async def run_tasks(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr("kopf.spawn_tasks", spawn_tasks)
    monkeypatch.setattr("kopf.run_tasks", run_tasks)
    process = Process(OperatorConfig(runtime_image="runtime:1"), OPTIONS)
    await (await process._start_kopf(cast(Operator, Listener())))
    assert given["identity"] == "pod-1"


async def forever() -> None:
    await asyncio.Event().wait()


async def broken() -> None:
    raise ValueError("a watcher fails")


async def test_a_part_that_fails_before_the_cluster_is_known_ends_the_process() -> None:
    work, synced = [asyncio.create_task(forever()), asyncio.create_task(broken())], asyncio.create_task(forever())
    with pytest.raises(ValueError, match="a watcher fails"):
        await asyncio.wait_for(_first_end(work, until=synced), 5)
    for task in (*work, synced):
        task.cancel()


async def test_what_is_waited_for_ends_the_waiting() -> None:
    work = [asyncio.create_task(forever())]
    await asyncio.wait_for(_first_end(work, until=asyncio.create_task(asyncio.sleep(0))), 5)
    work[0].cancel()
