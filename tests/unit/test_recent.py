"""The ring of the last requests: what it says, what it forgets, what it takes, and who may read it."""

from __future__ import annotations

import json
import threading
import tracemalloc
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prefleet_runtime.contract import RuntimePolicy, RuntimeSettings
from prefleet_runtime.governor import RECENT_PATH, Governor
from prefleet_runtime.queueing import Dispatch, Lane, RequestFacts
from prefleet_runtime.recent import LIMIT, RECORD_BYTES, RecentRequests


def ring(limit: int = LIMIT) -> RecentRequests:
    return RecentRequests(lambda: 12.5, limit)


def serve_one(recent: RecentRequests, name: str, number: int = 0, lanes: tuple[Lane, ...] = (Lane.LONG,)) -> None:
    """A request of 100 prompt tokens, 30 of them cached, from its dispatches to its end."""
    for position, lane in enumerate(lanes):
        recent.dispatched(Dispatch(name, lane, 1.5 + position, 70), 70 if position == 0 else 105)
    recent.ended(name, arrival_s=float(number), prompt_tokens=100, output_tokens=7)


def answered(recent: RecentRequests) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(recent.to_json())
    return answer


def test_a_request_is_numbers_without_its_id() -> None:
    recent = ring()
    serve_one(recent, "secret-id", number=3)
    assert "secret" not in recent.to_json().decode()
    assert answered(recent) == {
        "now_s": 12.5,
        "limit": LIMIT,
        "ended_total": 1,
        "requests": [
            {
                "arrival_s": 3.0,
                "prompt_tokens": 100,
                "cached_tokens": 30,
                "output_tokens": 7,
                "waits_s": {"long": 1.5},
            }
        ],
    }


def test_an_empty_ring_is_an_empty_list() -> None:
    assert answered(ring())["requests"] == []


def test_a_preempted_request_has_a_wait_for_each_lane_and_the_cached_tokens_of_its_first_dispatch() -> None:
    recent = ring()
    serve_one(recent, "a", lanes=(Lane.SHORT, Lane.IMMEDIATE, Lane.IMMEDIATE))
    (request,) = answered(recent)["requests"]
    assert request["waits_s"] == {"short": 1.5, "immediate": 2.5}
    assert request["cached_tokens"] == 30


def test_a_request_aborted_while_it_waited_has_no_wait() -> None:
    recent = ring()
    recent.ended("a", 1.0, prompt_tokens=100, output_tokens=0)
    (request,) = answered(recent)["requests"]
    assert (request["waits_s"], request["cached_tokens"]) == ({}, 0)


def test_the_oldest_are_dropped_and_counted() -> None:
    recent = ring(limit=3)
    for number in range(5):
        serve_one(recent, f"r{number}", number)
    answer = answered(recent)
    assert [request["arrival_s"] for request in answer["requests"]] == [2.0, 3.0, 4.0]
    assert (answer["limit"], answer["ended_total"]) == (3, 5)


def test_memory_is_bounded_by_what_is_stated() -> None:
    tracemalloc.start()
    try:
        recent = ring()
        for number in range(2 * LIMIT):
            name = f"request-{number}"
            for position, lane in enumerate((Lane.LONG, Lane.SHORT, Lane.IMMEDIATE)):
                recent.dispatched(Dispatch(name, lane, number + position / 7, 10**6), 10**6)
            recent.ended(name, number / 3, prompt_tokens=2 * 10**6 + number, output_tokens=10**5 + number)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < LIMIT * RECORD_BYTES <= 5 * 2**20


def test_readers_in_other_threads_never_see_half_of_it() -> None:
    """The writer does not wait for them: every answer is whole, in order, and no older than the one before."""
    recent, done = ring(limit=200), threading.Event()
    seen: list[list[float]] = []

    def read() -> None:
        while not done.is_set():
            seen.append([request.arrival_s for request in recent.latest()])

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(30_000):
        serve_one(recent, "r", number)
    done.set()
    for reader in readers:
        reader.join()
    assert all(arrivals == sorted(arrivals) and len(arrivals) <= 200 for arrivals in seen)
    assert [request.arrival_s for request in recent.latest()] == [float(number) for number in range(29_800, 30_000)]


@pytest.fixture
def settings(tmp_path: Path) -> RuntimeSettings:
    file = tmp_path / "policy.json"
    file.write_text(RuntimePolicy(generation=1).to_json())
    return RuntimeSettings(policy_file=str(file), exporter_host="127.0.0.1", exporter_port=0)


def test_the_exporter_serves_what_the_governor_was_told(settings: RuntimeSettings) -> None:
    governor: Governor[str] = Governor.start(settings, clock=lambda: 20.0)
    with closing(governor):
        governor.add("a", RequestFacts("a", arrival_s=4.0, prompt_tokens=100, cached_tokens=20))
        governor.begin_step(10.0)
        governor.dispatched(governor.queue.pop(), 10.0, tokens=80)
        governor.ended("a", 4.0, prompt_tokens=100, output_tokens=5)
        base = f"http://127.0.0.1:{governor.exporter_port}"
        with urllib.request.urlopen(base + RECENT_PATH, timeout=10) as response:
            assert response.headers["Content-Type"] == "application/json"
            answer = json.loads(response.read())
        with urllib.request.urlopen(f"{base}/metrics", timeout=10) as response:
            assert b"prefleet_dispatches_total" in response.read()
    assert (answer["now_s"], answer["ended_total"]) == (20.0, 1)
    assert answer["requests"][0]["waits_s"] == {"all": 6.0}
    assert answer["requests"][0]["cached_tokens"] == 20
