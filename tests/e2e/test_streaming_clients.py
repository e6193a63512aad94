"""Clients that count see what a user would: a test that relies on them can fail."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.clients import StreamingClients
from tests.support.pod_ledger import PodCounts
from tests.support.sim_server import MODEL_NAME, SLOW, sim_server
from tests.support.vllm_server import free_port
from tests.support.waiting import eventually


def test_whole_answers_count_as_answered(tmp_path: Path) -> None:
    with (
        sim_server(tmp_path) as server,
        StreamingClients(server.url, rate=50, model=MODEL_NAME, limit=10, keep_alive=True) as clients,
    ):
        tally = clients.wait()
    assert (tally.sent, sorted(tally.answered), tally.failures) == (list(range(20, 30)), list(range(20, 30)), {})
    assert tally.open == 0


def test_refused_connections_and_errors_count_as_failed(tmp_path: Path) -> None:
    nobody = StreamingClients(f"http://127.0.0.1:{free_port()}", rate=50, limit=3).start().wait()
    assert (nobody.answered, len(nobody.failures)) == ([], 3)
    with sim_server(tmp_path) as server:
        refused = StreamingClients(server.url, rate=50, limit=2, model="another").start().wait()
    assert [text.split(": ")[:3] for text in refused.failures.values()] == [
        ["RequestFailedError", "the stream", "HTTP 404"]
    ] * 2


def test_a_stream_that_breaks_off_counts_as_failed(tmp_path: Path) -> None:
    with sim_server(tmp_path, cost_model=SLOW) as server:
        clients = StreamingClients(server.url, rate=50, limit=2, output_tokens=10_000, model=MODEL_NAME).start()
        eventually(lambda: server.vllm("num_requests_running") == 2)
        server.process.kill()
        tally = clients.stop()
    assert (tally.answered, len(tally.failures)) == ([], 2)


def test_a_pod_whose_container_starts_anew_keeps_its_account() -> None:
    pod = PodCounts("a", "prefill", "127.0.0.1")
    pod.saw(3, 60, Counter({20: 3}))
    pod.saw(1, 25, Counter({25: 1}))
    pod.saw(2, 50, Counter({25: 2}))
    assert (pod.requests, pod.tokens, pod.ended) == (5, 110, Counter({20: 3, 25: 2}))
