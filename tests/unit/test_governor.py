"""The glue of queue, policy file and metrics, as an engine drives it."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefleet_runtime.contract import InvalidPolicyError, PolicyName, RuntimePolicy, RuntimeSettings
from prefleet_runtime.exporter import serve
from prefleet_runtime.governor import Governor
from prefleet_runtime.queueing import Lane, RequestFacts
from prefleet_runtime.reload import PolicyWatcher
from prefleet_runtime.telemetry import RuntimeMetrics
from prometheus_client import CollectorRegistry

FCFS = RuntimePolicy(generation=1)
SHORT_FIRST = RuntimePolicy(
    generation=2, policy=PolicyName.SHORT_REQUEST_FIRST, threshold=100, long_max_wait_ms=5000, aged_share=1.0
)


class Engine:
    """A governor with a policy file that is looked at when the test says so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text(FCFS.to_json())
        self.registry = CollectorRegistry()
        self.watcher = PolicyWatcher(path, poll_s=3600)
        watcher = self.watcher
        metrics = RuntimeMetrics(self.registry, lambda: 100.0, lambda: watcher.current, lambda: watcher.refused)
        self.governor: Governor[str] = Governor(watcher, metrics)

    def publish(self, policy: RuntimePolicy) -> None:
        self.path.write_text(policy.to_json())
        self.watcher.check()

    def add(self, *names: str, arrival_s: float = 0.0) -> None:
        for name in names:
            self.governor.add(name, RequestFacts(name, arrival_s, 10 if name[0] == "s" else 1000))

    def step(self, now: float, count: int) -> list[str]:
        self.governor.begin_step(now)
        popped = [self.governor.queue.pop() for _ in range(count)]
        for name in popped:
            self.governor.dispatched(name, now, 10)
        self.governor.end_step(now, 0.1, 10 * count)
        return popped

    def value(self, series: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"prefleet_{series}", labels)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path / "policy.json")
    yield engine
    engine.governor.close()


def test_a_policy_published_in_mid_burst_re_orders_what_waits_at_the_next_step(engine: Engine) -> None:
    engine.add("l1", "s1", "l2", "s2")
    assert engine.step(1, 1) == ["l1"]
    engine.publish(SHORT_FIRST)
    assert engine.step(2, 3) == ["s1", "s2", "l2"]
    assert engine.governor.policy == SHORT_FIRST
    assert engine.value("dispatches_total", lane="all") == 1
    assert engine.value("dispatches_total", lane="short") == 2


def test_a_policy_published_within_a_step_waits_for_its_end(engine: Engine) -> None:
    engine.add("l1", "s1", "l2")
    engine.governor.begin_step(1)
    engine.publish(SHORT_FIRST)
    queue = engine.governor.queue
    assert queue.pop() == "l1"
    engine.governor.prepend("l1", RequestFacts("l1", 0, 1000))
    engine.governor.remove("l2")
    assert engine.governor.queue is queue
    assert list(queue) == ["l1", "s1"]
    engine.add("l3")
    assert engine.governor.queue is not queue


def test_a_switch_keeps_what_an_engine_holds(engine: Engine) -> None:
    engine.add("l1", "s1", "l2")
    engine.governor.begin_step(1)
    held = engine.governor.queue.pop()
    engine.publish(SHORT_FIRST)
    assert engine.step(2, 2) == ["s1", "l2"]
    dispatch = engine.governor.dispatched(held, 3, 1000)
    assert dispatch is not None
    assert (dispatch.lane, dispatch.wait_s) == (Lane.LONG, 3)


def test_trust_in_clients_reaches_also_what_waits_and_ends_for_it_too(engine: Engine) -> None:
    engine.add("l1", "l2")
    for name, wanted in (("favoured", -5), ("humble", 5)):
        engine.governor.add(name, RequestFacts(name, 0, 1000, client_priority=wanted))
    engine.governor.begin_step(1)
    assert list(engine.governor.queue) == ["l1", "l2", "favoured", "humble"]
    engine.publish(FCFS.model_copy(update={"generation": 2, "trust_client_priority": True}))
    assert engine.step(2, 0) == []
    assert list(engine.governor.queue) == ["favoured", "l1", "l2", "humble"]
    assert engine.value("waiting_requests", lane="immediate") == 1
    engine.publish(FCFS.model_copy(update={"generation": 3}))
    assert engine.step(3, 4) == ["l1", "l2", "favoured", "humble"]


def test_the_generation_is_reported_while_the_engine_is_idle(engine: Engine) -> None:
    engine.publish(SHORT_FIRST)
    assert engine.value("policy_generation") == 2
    engine.path.write_text("{")
    engine.watcher.check()
    assert engine.value("policy_generation") == 2
    assert engine.value("policy_refused_total") == 1


def test_an_equal_policy_switches_nothing(engine: Engine) -> None:
    queue = engine.governor.queue
    engine.publish(FCFS)
    engine.governor.begin_step(1)
    assert engine.governor.queue is queue


def test_gauges_follow_arrivals_steps_and_aborts(engine: Engine) -> None:
    engine.publish(SHORT_FIRST)
    engine.add("l1", "s1", "s2", arrival_s=90.0)
    assert engine.value("waiting_requests", lane="short") == 2
    assert engine.value("oldest_wait_seconds", lane="long") == 10
    engine.step(91, 1)
    assert engine.value("waiting_requests", lane="short") == 1
    assert engine.governor.remove("l1") == "l1"
    assert engine.governor.remove("l1") is None
    assert engine.value("waiting_requests", lane="long") == 0


def test_lengths_are_observed_once_for_each_new_request(engine: Engine) -> None:
    engine.governor.add("a", RequestFacts("a", 0, 500, cached_tokens=400))
    engine.governor.add("b", RequestFacts("b", 0, 500, started=True))
    engine.governor.prepend("c", RequestFacts("c", 0, 500, started=True))
    assert engine.value("request_prompt_tokens_sum") == 500
    assert engine.value("request_uncached_tokens_sum") == 100
    assert engine.value("requeues_total") == 0  # published when the step ends
    engine.step(1, 1)
    assert engine.value("requeues_total") == 1


def test_a_running_request_is_no_dispatch(engine: Engine) -> None:
    assert engine.governor.dispatched("running", 1, 1) is None
    assert engine.value("queue_wait_seconds_count", lane="all") == 0


def test_a_turn_that_computed_nothing_is_no_step(engine: Engine) -> None:
    engine.step(1, 0)
    assert engine.value("step_seconds_count") == 0
    engine.add("s1")
    engine.step(2, 1)
    assert engine.value("step_seconds_count") == engine.value("step_tokens_count") == 1


def test_promotions_leave_their_wait(engine: Engine) -> None:
    engine.publish(SHORT_FIRST)
    engine.add("l1", "s1")
    engine.step(6, 1)
    assert engine.value("promotion_wait_seconds_sum") == 6
    assert engine.value("promotions_total") == 1


@pytest.mark.parametrize("name", [PolicyName.FCFS, PolicyName.PROMOTE_SHORTEST, PolicyName.HRRN])
def test_put_backs_and_by_passes_count_under_every_policy_and_promotions_only_with_a_threshold(
    engine: Engine, name: PolicyName
) -> None:
    """The short goes before longs that have waited for ever: that is the policy's order, and no promotion."""
    engine.publish(FCFS.model_copy(update={"generation": 2, "policy": name}))
    engine.add("l1", "l2", "s1", arrival_s=-1000.0)
    engine.governor.begin_step(1, 0)
    popped = engine.governor.queue.pop()
    engine.governor.prepend(popped, RequestFacts(popped, -1000.0, 10 if popped[0] == "s" else 1000))
    assert engine.governor.queue.bypass_head()
    engine.governor.begin_step(2, 5000)
    for _ in range(3):
        engine.governor.dispatched(engine.governor.queue.pop(), 2, 10)
    engine.governor.end_step(2, 0.1, 30)
    assert (engine.value("requeues_total"), engine.value("bypasses_total")) == (1, 1)
    assert (engine.value("promotions_total"), engine.value("degradations_total")) == (0, 0)
    assert engine.value("dispatches_total", lane="all") == 3
    assert engine.value("queue_wait_seconds_count", lane="all") == 3
    assert engine.value("promotion_wait_seconds_count") == 0


def test_a_switch_to_response_ratio_orders_what_waits_by_the_work_done_since_it_came(engine: Engine) -> None:
    engine.add("l1", "s1")
    engine.governor.begin_step(1, 0)
    engine.governor.begin_step(2, 5000)
    engine.add("s2")
    engine.publish(FCFS.model_copy(update={"generation": 2, "policy": PolicyName.HRRN}))
    engine.governor.begin_step(3, 5020)
    # 5020/10 of the first short, 5020/1000 of the long, 20/10 of the second short.
    assert list(engine.governor.queue) == ["s1", "l1", "s2"]


def test_heads_found_cached_become_short(engine: Engine) -> None:
    engine.publish(SHORT_FIRST)
    engine.add("l1", "l2", "s1")
    engine.governor.refresh_heads({"l1": 0, "l2": 990}.__getitem__)
    assert engine.step(1, 3) == ["l2", "s1", "l1"]


def test_each_degradation_episode_warns_once_with_its_numbers(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    engine.publish(SHORT_FIRST)
    with caplog.at_level(logging.WARNING):
        for episode in range(2):
            engine.add(*(f"l{episode}{number}" for number in range(4)), f"s{episode}")
            engine.step(10, 5)
    warnings = [message for message in caplog.messages if message.startswith("degraded")]
    assert len(warnings) == 2
    assert "episode 2" in warnings[1]
    assert "5000 ms" in warnings[1]


def test_the_log_line_comes_at_most_every_five_seconds_and_when_something_happened(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.add(*(f"s{number}" for number in range(5)))
    with caplog.at_level(logging.INFO):
        for now, count in ((1, 0), (2, 1), (3, 1), (6.9, 1), (7, 1), (30, 0), (60, 1)):
            engine.step(now, count)
    lines = [message for message in caplog.messages if message.startswith("dispatched")]
    assert [line.split(";")[0] for line in lines] == ["dispatched all=1", "dispatched all=4", "dispatched all=5"]


def settings(path: Path, port: int = 0) -> RuntimeSettings:
    return RuntimeSettings(policy_file=str(path), exporter_host="127.0.0.1", exporter_port=port)


def test_a_started_governor_watches_and_exports_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(SHORT_FIRST.to_json())
    governor: Governor[str] = Governor.start(settings(path), clock=lambda: 0.0)
    url = f"http://127.0.0.1:{governor.exporter_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert b"prefleet_policy_generation 2.0" in answer.read()
    governor.close()
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=1)


def test_each_rank_has_its_own_port(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text(FCFS.to_json())
    probe = serve(CollectorRegistry(), "127.0.0.1", 0)
    probe.close()
    governor: Governor[str] = Governor.start(settings(tmp_path / "policy.json", probe.port - 3), rank=3)
    assert governor.exporter_port == probe.port
    with pytest.raises(OSError, match="set another exporter_port"):
        Governor.start(settings(tmp_path / "policy.json", probe.port))
    governor.close()


def test_a_start_without_a_policy_file_fails_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidPolicyError, match="cannot be read"):
        Governor.start(settings(tmp_path / "none.json"))
