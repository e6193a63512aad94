"""What the runtime exports: names, labels, bounds, and a scrape that never touches the queue."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from prefleet_runtime import exporter as exporting
from prefleet_runtime.contract import PolicyName, RuntimePolicy
from prefleet_runtime.device import Device, DeviceKind
from prefleet_runtime.exporter import serve
from prefleet_runtime.queueing import Counters, Dispatch, Lane, LaneGauge, PolicyQueue, RequestFacts, make_queue
from prefleet_runtime.stage import StepWork
from prefleet_runtime.telemetry import SECOND_BOUNDS, TOKEN_BOUNDS, EngineLoad, QueueSnapshot, RuntimeMetrics
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

SHORT_FIRST = RuntimePolicy(generation=7, policy=PolicyName.SHORT_REQUEST_FIRST, threshold=2048, long_max_wait_ms=5500)


SERIES = {
    *("request_prompt_tokens", "request_uncached_tokens", "queue_wait_seconds", "promotion_wait_seconds"),
    *("dispatches", "promotions", "degradations", "requeues", "bypasses", "step_seconds", "step_tokens"),
    *("waiting_requests", "waiting_tokens", "oldest_wait_seconds", "policy_generation", "policy_info"),
    *("policy_threshold_tokens", "policy_long_max_wait_seconds", "policy_refused"),
    *("held_longs", "decode_only_steps", "starvation_bounds", "stall_limited_steps", "stall_unsure_steps"),
    *("step_cost_seconds", "step_cost_error_seconds", "step_cost_noise_seconds", "step_cost_samples"),
    *("prefill_tokens", "decode_tokens", "decode_gap_seconds", "uptime_seconds"),
    *("running_requests", "unfinished_requests", "kv_usage_ratio", "kv_capacity_tokens", "step_token_budget"),
    *("device_info", "faults"),
}


class Scraped:
    """Metrics with a clock and a policy that the test sets."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now, self.policy, self.refused = 100.0, RuntimePolicy(generation=1), 0
        self.metrics = RuntimeMetrics(self.registry, lambda: self.now, lambda: self.policy, lambda: self.refused)

    def value(self, series: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"prefleet_{series}", labels)


@pytest.fixture
def scraped() -> Scraped:
    return Scraped()


@pytest.mark.parametrize(("bounds", "low", "high"), [(TOKEN_BOUNDS, 1, 2**20), (SECOND_BOUNDS, 2**-10, 2**11)])
def test_bounds_are_distinct_and_four_to_the_octave(bounds: list[float], low: float, high: float) -> None:
    assert (bounds[0], bounds[-1]) == (low, high)
    assert bounds == sorted(set(bounds))
    coarse = [above / below for below, above in pairwise(bounds) if below >= 16 or low < 1]
    assert max(coarse) < 2**0.25 * 1.03  # whole numbers round by up to 3% from 16 on


def test_every_series_of_the_agreement_is_there_from_the_start(scraped: Scraped) -> None:
    scraped.metrics.publish(QueueSnapshot.of(make_queue(SHORT_FIRST)))
    scraped.metrics.show_load(lambda: EngineLoad(0, 0, 0.0, 1000, 512))
    families = {family.name for family in text_string_to_metric_families(generate_latest(scraped.registry).decode())}
    assert families == {f"prefleet_{name}" for name in SERIES}


def test_lengths_waits_and_steps_are_observed(scraped: Scraped) -> None:
    scraped.metrics.observe_request(RequestFacts("a", 0, 1000, 900))
    scraped.metrics.observe_dispatch(Dispatch("a", Lane.SHORT, 0.5, 100))
    scraped.metrics.observe_dispatch(Dispatch("b", Lane.LONG, 7.5, 9000, promoted=True))
    scraped.metrics.observe_step(0.25, 512)
    assert scraped.value("request_prompt_tokens_sum") == 1000
    assert scraped.value("request_uncached_tokens_sum") == 100
    assert scraped.value("queue_wait_seconds_sum", lane="short") == 0.5
    assert scraped.value("queue_wait_seconds_sum", lane="long") == 7.5
    assert scraped.value("queue_wait_seconds_count", lane="all") == 0
    assert scraped.value("promotion_wait_seconds_sum") == 7.5
    assert scraped.value("step_seconds_sum") == 0.25
    assert scraped.value("step_tokens_sum") == 512


def test_the_work_of_steps_adds_up_and_their_gaps_count_once_for_each_decode(scraped: Scraped) -> None:
    scraped.metrics.observe_work(StepWork(prefill_tokens=100, decode_tokens=4), 0.5)
    scraped.metrics.observe_work(StepWork(decode_tokens=2), 0.25)
    assert scraped.value("prefill_tokens_total") == 100
    assert scraped.value("decode_tokens_total") == 6
    assert scraped.value("decode_gap_seconds_total") == 4 * 0.5 + 2 * 0.25


def test_the_time_counts_on_while_the_engine_says_nothing(scraped: Scraped, monkeypatch: pytest.MonkeyPatch) -> None:
    began = scraped.value("uptime_seconds_total")
    assert began is not None
    later = time.monotonic() + 30
    monkeypatch.setattr("prefleet_runtime.telemetry.time.monotonic", lambda: later)
    assert (scraped.value("uptime_seconds_total") or 0) >= began + 29


def test_what_the_engine_holds_is_read_at_the_scrape_and_not_shown_before_it_is_known(scraped: Scraped) -> None:
    assert scraped.value("running_requests") is None
    held = [EngineLoad(running=3, unfinished=5, kv_usage=0.5, kv_tokens=1000, step_tokens=512)]
    scraped.metrics.show_load(lambda: held[-1])
    assert scraped.value("running_requests") == 3
    assert scraped.value("unfinished_requests") == 5
    assert scraped.value("kv_capacity_tokens") == 1000
    assert scraped.value("step_token_budget") == 512
    held.append(EngineLoad(running=1, unfinished=2, kv_usage=0.25, kv_tokens=1000, step_tokens=512))
    assert scraped.value("running_requests") == 1
    assert scraped.value("kv_usage_ratio") == 0.25


@pytest.mark.parametrize(
    ("tokens", "buckets"),
    [
        pytest.param(16, {"13.0": 0, "16.0": 1, "+Inf": 1}, id="a length at a bound is in its bucket"),
        pytest.param(17, {"16.0": 0, "19.0": 1, "+Inf": 1}, id="one above it is in the next"),
        pytest.param(2**20 + 1, {"1.048576e+06": 0, "+Inf": 1}, id="one beyond all bounds is in the last"),
    ],
)
def test_buckets_are_cumulative_and_hold_their_upper_bound(
    scraped: Scraped, tokens: int, buckets: dict[str, float]
) -> None:
    scraped.metrics.observe_request(RequestFacts("a", 0, tokens))
    assert {le: scraped.value("request_prompt_tokens_bucket", le=le) for le in buckets} == buckets
    assert scraped.value("request_prompt_tokens_count") == 1


def test_nothing_is_written_where_an_engine_collects_the_metrics_of_its_processes(tmp_path: Path) -> None:
    program = (
        "from prometheus_client import CollectorRegistry; from prefleet_runtime.contract import RuntimePolicy;"
        "from prefleet_runtime.telemetry import RuntimeMetrics; registry = CollectorRegistry();"
        "RuntimeMetrics(registry, lambda: 0, lambda: RuntimePolicy(generation=1), lambda: 0).observe_step(1, 1);"
        "print(registry.get_sample_value('prefleet_step_seconds_count'))"
    )
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == "1\n"
    assert list(tmp_path.iterdir()) == []


def test_a_scrape_ages_what_waits_though_the_engine_says_nothing(scraped: Scraped) -> None:
    lanes = {Lane.SHORT: LaneGauge(), Lane.LONG: LaneGauge(2, 9000, oldest_arrival_s=90.0)}
    scraped.metrics.publish(QueueSnapshot(Counters(promotions=3), lanes))
    assert scraped.value("waiting_requests", lane="long") == 2
    assert scraped.value("waiting_tokens", lane="long") == 9000
    assert scraped.value("promotions_total") == 3
    assert scraped.value("oldest_wait_seconds", lane="short") == 0
    assert scraped.value("oldest_wait_seconds", lane="long") == 10
    scraped.now = 130.0
    assert scraped.value("oldest_wait_seconds", lane="long") == 40


def test_the_step_cost_stands_beside_what_it_was_fitted_on(scraped: Scraped) -> None:
    assert scraped.value("device_info", kind="unknown", name="") == 1
    registry = CollectorRegistry()
    device = Device(DeviceKind.CUDA, "NVIDIA H200", count=8)
    RuntimeMetrics(registry, lambda: 0.0, lambda: SHORT_FIRST, lambda: 0, device)
    assert registry.get_sample_value("prefleet_device_info", {"kind": "cuda", "name": "NVIDIA H200"}) == 1


def test_the_policy_is_read_at_the_scrape(scraped: Scraped) -> None:
    assert scraped.value("policy_threshold_tokens") == 0
    scraped.policy, scraped.refused = SHORT_FIRST, 2
    assert scraped.value("policy_generation") == 7
    assert scraped.value("policy_threshold_tokens") == 2048
    assert scraped.value("policy_long_max_wait_seconds") == 5.5
    assert scraped.value("policy_info", policy="short_request_first", generation="7") == 1
    assert scraped.value("policy_info", policy="fcfs", generation="0") is None
    assert scraped.value("policy_refused_total") == 2


WITHOUT_THRESHOLD = [PolicyName.FCFS, PolicyName.PROMOTE_SHORTEST, PolicyName.HRRN]


@pytest.mark.parametrize("name", WITHOUT_THRESHOLD)
def test_a_policy_without_a_threshold_shows_none_though_its_file_may_name_one(
    scraped: Scraped, name: PolicyName
) -> None:
    scraped.policy = SHORT_FIRST.model_copy(update={"policy": name})
    assert scraped.value("policy_threshold_tokens") == 0
    assert scraped.value("policy_long_max_wait_seconds") == 0
    assert scraped.value("policy_info", policy=name.value, generation="7") == 1


@pytest.mark.parametrize(
    ("name", "lanes"),
    [(name, {"immediate", "all"}) for name in WITHOUT_THRESHOLD]
    + [(PolicyName.SHORT_REQUEST_FIRST, {"immediate", "short", "long"})],
)
def test_what_waits_is_labelled_with_the_lanes_of_the_policy(
    scraped: Scraped, name: PolicyName, lanes: set[str]
) -> None:
    scraped.metrics.publish(QueueSnapshot.of(make_queue(SHORT_FIRST.model_copy(update={"policy": name}))))
    labels = {
        family.name: {sample.labels["lane"] for sample in family.samples if "lane" in sample.labels}
        for family in scraped.registry.collect()
    }
    for gauge in ("waiting_requests", "waiting_tokens", "oldest_wait_seconds"):
        assert labels[f"prefleet_{gauge}"] == lanes
    for of_all_policies in ("queue_wait_seconds", "dispatches"):
        assert labels[f"prefleet_{of_all_policies}"] == {lane.value for lane in Lane}


def test_a_snapshot_does_not_follow_the_queue() -> None:
    queue: PolicyQueue[str] = make_queue(RuntimePolicy(generation=1))
    snapshot = QueueSnapshot.of(queue)
    queue.add("a", RequestFacts("a", 0, 10))
    queue.begin_step(0)
    queue.commit(queue.pop(), 1, 10)
    assert sum(snapshot.counters.dispatches.values()) == 0


def test_the_exporter_serves_on_a_free_port_and_frees_it(scraped: Scraped) -> None:
    exporter = serve(scraped.registry, "127.0.0.1", 0)
    with closing(exporter), urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=10) as answer:
        assert b"prefleet_policy_generation 1.0" in answer.read()
    exporter.close()
    serve(scraped.registry, "127.0.0.1", exporter.port).close()


def test_who_asks_for_nothing_is_let_go(
    scraped: Scraped, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A peer that died without a word would hold a thread of the engine's process for ever."""
    assert exporting._QuietHandler.timeout
    monkeypatch.setattr(exporting._QuietHandler, "timeout", 0.1)
    with closing(serve(scraped.registry, "127.0.0.1", 0)) as exporter:
        address = ("127.0.0.1", exporter.port)
        with socket.create_connection(address, 10) as mute, socket.create_connection(address, 10) as halfway:
            halfway.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
            assert (mute.recv(1), halfway.recv(1)) == (b"", b"")
        with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=10) as answer:
            assert answer.status == 200
    assert capfd.readouterr().err == ""


def test_a_taken_port_is_named_with_what_to_do(scraped: Scraped) -> None:
    exporter = serve(scraped.registry, "127.0.0.1", 0)
    said = f"^metrics cannot be served on 127.0.0.1:{exporter.port} .*set another exporter_port"
    with closing(exporter), pytest.raises(OSError, match=said):
        serve(scraped.registry, "127.0.0.1", exporter.port)


def test_a_port_beyond_the_last_one_is_refused_like_a_taken_one(scraped: Scraped) -> None:
    with pytest.raises(OSError, match=r"127\.0\.0\.1:65537 .*set another exporter_port"):
        serve(scraped.registry, "127.0.0.1", 65537)
