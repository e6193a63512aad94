"""Requests whose KV cache comes from another node: they leave the queue while it is on its way."""

from __future__ import annotations

from typing import Any

import pytest
from prefleet_runtime.queueing import Lane
from vllm.v1.outputs import KVConnectorOutput

from tests.vllm.inproc.conftest import Start
from tests.vllm.inproc.engine import BLOCK, Engine, make_request


class RemotePrefill:
    """The scheduler's side of a KV connector: prompts of requests named remote-* are loaded asynchronously."""

    requires_kv_delivery = False
    supports_divergent_local_hybrid_hits = False

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        if not request.request_id.startswith("remote-") or computed:
            return 0, False
        return request.num_prompt_tokens, True

    def request_finished(self, request: Any, blocks: list[int]) -> tuple[bool, None]:
        return False, None

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        return (0,)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None  # nothing to push, to report or to publish


@pytest.fixture
def engine(start: Start) -> Engine:
    engine = start()
    engine.scheduler.connector = RemotePrefill()
    return engine


def arrive(engine: Engine, *names: str) -> None:
    """The connector says that the KV cache of these requests has arrived."""
    engine.scheduler._update_from_kv_xfer_finished(KVConnectorOutput(finished_recving=set(names)))


def test_a_request_is_dispatched_when_its_kv_cache_has_arrived(engine: Engine) -> None:
    engine.add("remote-a", 4 * BLOCK)
    engine.step()
    engine.step()
    assert engine.first_scheduled == []
    assert engine.lanes() == {}
    assert engine.holding_blocks == 1
    arrive(engine, "remote-a")
    engine.run()
    assert engine.first_scheduled == ["remote-a"]
    assert engine.lanes() == {"short": 1}


def test_local_requests_go_on_meanwhile(engine: Engine) -> None:
    engine.add("remote-a", 4 * BLOCK)
    engine.add("local long", 300)
    engine.add("local short", 40)
    for _ in range(4):
        engine.step()
    assert engine.first_scheduled == ["local short", "local long"]
    arrive(engine, "remote-a")
    engine.run()
    assert engine.lanes() == {"short": 2, "long": 1}


def test_an_abort_on_the_way_leaves_nothing_behind(engine: Engine) -> None:
    engine.add("remote-a", 4 * BLOCK)
    engine.step()
    engine.abort("remote-a")
    assert engine.queue.gauges()[Lane.SHORT].requests == 0
    arrive(engine, "remote-a")  # only now may its blocks be given to others
    engine.run()
    assert engine.lanes() == {}


def test_a_new_policy_keeps_what_is_on_its_way(engine: Engine) -> None:
    engine.add("remote-a", 4 * BLOCK)
    engine.step()
    engine.take_policy(2, policy="fcfs")
    engine.step()
    arrive(engine, "remote-a")
    engine.run()
    assert engine.lanes() == {"all": 1}


def test_a_request_that_only_frees_a_remote_kv_cache_is_not_counted_as_a_prompt(engine: Engine) -> None:
    """As the API server submits it for a client that has gone, or whose request it refuses."""
    void = make_request("cleanup", [0], max_tokens=1)
    void.abort_immediately = True
    engine.scheduler.add_request(void)
    engine.abort("cleanup")
    engine.add("asked for", 40)
    engine.run()
    assert engine.metrics()["prefleet_request_prompt_tokens_count"] == 1
    recent = engine.scheduler.prefleet.governor.recent.latest()
    assert [request.prompt_tokens for request in recent] == [40]
