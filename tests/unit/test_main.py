"""The wiring of the process: what starts it anywhere, and what ends it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from kubernetes.aio.client import ApiClient, Configuration
from prefleet_operator.adapters.kube import GoneError, Kube, Object, Resource
from prefleet_operator.app.config import OperatorConfig
from prefleet_operator.app.main import Operator, Options, Process, _first_end
from prefleet_operator.app.telemetry import Telemetry
from prefleet_operator.app.workqueue import Key, Workqueue
from prometheus_client import CollectorRegistry

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


class Listing:
    """An API that lists two pages of policies, fails once between them, and has nothing else."""

    def __init__(self) -> None:
        self.failed = False

    async def list_page(
        self, resource: Resource, namespace: str | None, selector: str, token: str = ""
    ) -> tuple[list[Object], str, str]:
        if token and not self.failed:
            self.failed = True
            raise GoneError("the continue token has expired")
        return [policy("second" if token else "first")], "5", "" if token else "more"


def policy(name: str) -> Object:
    metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "5", "generation": 1}
    attach = {"mixed": {"podSelector": {"matchLabels": {"app": name}}}}
    spec = {"model": {"servedName": "m"}, "engine": {"type": "Simulator"}, "attach": attach}
    return {"metadata": metadata, "spec": spec}


async def test_all_policies_and_their_pods_are_looked_for_before_the_first_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("prefleet_operator.app.main.LIST_PAUSE_S", 0.0)
    config = OperatorConfig(runtime_image="runtime:1")
    operator = Operator(cast(Kube, Listing()), config, {}, Telemetry(CollectorRegistry()), "pod-1")
    await operator.read_policies()
    assert sorted(known.name for known in operator.policies) == ["first", "second"]
    assert sorted(name for _, name in operator._cluster.attached) == ["first", "second"]
    operator.attachments.keep(())


async def test_a_turn_that_takes_too_long_ends_between_two_writes_and_the_one_it_is_at_has_its_time() -> None:
    """Cut off in the middle, that write could come to pass after another operator has begun to lead."""
    config = OperatorConfig(runtime_image="runtime:1")
    kube = Kube(ApiClient(Configuration()), "prefleet")
    operator = Operator(kube, config, {}, Telemetry(CollectorRegistry()), "pod-1")
    begun, ended = 0, 0

    async def turn(_: Key) -> None:
        nonlocal begun, ended
        while True:
            kube.fence()
            begun += 1
            await asyncio.sleep(0.05)
            ended += 1

    operator.queue = Workqueue(turn)
    running = asyncio.create_task(operator.queue.run())
    operator.queue.mark(("ns", "many-pods"))
    await asyncio.sleep(0.02)
    await operator.finish(0.1)
    running.cancel()
    await asyncio.wait([running])
    await kube.close()
    assert begun == ended > 0


async def test_an_operator_that_took_long_to_read_the_cluster_is_not_taken_to_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where an API server is slow, a restart would only have it read anew."""
    config = OperatorConfig(runtime_image="runtime:1")
    operator = Operator(cast(Kube, Listing()), config, {}, Telemetry(CollectorRegistry()), "pod-1")
    monkeypatch.setattr("prefleet_operator.app.main.LIST_PAUSE_S", 0.0)
    monkeypatch.setattr(operator.watchers, "synced", lambda: asyncio.sleep(0))
    operator.turned_at -= 300
    await operator.synced()
    process = Process(config, OPTIONS)
    process._operator, process._synced = operator, True
    assert process._fault() is None
    operator.turned_at -= 300
    assert "has not turned for 300 seconds" in str(process._fault())
    operator.attachments.keep(())
