"""The simulated engine on a virtual clock: order, room, aborts, hand-over, and conservation on random histories."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefleet_runtime.contract import PolicyName, RuntimePolicy
from prefleet_runtime.queueing import PolicyQueue, make_queue
from prefleet_runtime.sim.cost_model import DEFAULT_PROFILE, EngineProfile, StepCost
from prefleet_runtime.sim.engine import Engine, PlainQueue
from prefleet_runtime.sim.state import Limits, RequestState, SimRequest

FCFS = RuntimePolicy(generation=1)
SHORT_FIRST = RuntimePolicy(generation=1, policy=PolicyName.SHORT_REQUEST_FIRST, threshold=1000)
SHORTEST = RuntimePolicy(generation=1, policy=PolicyName.PROMOTE_SHORTEST)
RATIO = RuntimePolicy(generation=1, policy=PolicyName.HRRN)

# One millisecond a token: expected times can be derived by hand.
SIMPLE = EngineProfile("simple", StepCost(0.001, 0.001, 0.001), kv_cache_tokens=0, kv_transfer_token_s=0.01)


@dataclass
class World:
    """An engine, its clock, and what came out of it."""

    engine: Engine
    now: float = 0.0
    steps: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    def submit(self, name: str, prompt: int, output: int = 1, **more: Any) -> SimRequest:
        request = SimRequest(name, prompt, output, self.now, **more)
        self.engine.submit(request)
        return request

    def step(self) -> bool:
        plan = self.engine.schedule(self.now)
        self.engine.check_integrity()
        if plan is None:
            return False
        assert plan.prefill_tokens + plan.decode_tokens <= self.engine.limits.max_num_batched_tokens
        assert len(self.engine.running) <= self.engine.limits.max_num_seqs
        self.now += plan.cost_s
        outcome = self.engine.finish(plan, self.now)
        self.steps += 1
        for request in outcome.emitted:
            self.tokens[request.request_id] = self.tokens.get(request.request_id, 0) + 1
        self.done += [request.request_id for request in outcome.finished]
        self.engine.check_integrity()
        return True

    def run(self) -> None:
        """Until nothing is left, jumping over idle times."""
        for _ in range(100_000):
            if self.step():
                continue
            due = self.engine.next_event_s()
            if due is None:
                return
            self.now = max(self.now, due)
        raise AssertionError("the engine does not come to rest")


def world(policy: RuntimePolicy = FCFS, profile: EngineProfile = SIMPLE, **limits: Any) -> World:
    sizes: dict[str, Any] = {"max_num_batched_tokens": 100, "max_num_seqs": 8, "kv_cache_tokens": 160_000} | limits
    queue: PolicyQueue[SimRequest] = make_queue(policy)
    return World(Engine(profile, Limits(**sizes), PlainQueue(queue)))


def assert_empty(engine: Engine) -> None:
    engine.check_integrity()
    assert engine.kv.free == engine.kv.total
    assert not engine.running
    assert not engine.unfinished
    assert not engine.held
    assert len(engine.waiting.queue) == 0


def test_a_prompt_is_computed_in_chunks_and_then_decoded_token_by_token() -> None:
    w = world()
    request = w.submit("a", prompt=250, output=3)
    w.run()
    # 100 + 100 + 50 tokens of prefill, then two decodes: 5 steps of 1 ms, 252 tokens of 1 ms.
    assert w.steps == 5
    assert w.now == pytest.approx(0.257)
    assert request.first_token_s == pytest.approx(0.253)
    assert w.tokens == {"a": 3}
    assert_empty(w.engine)


def test_running_requests_are_served_before_waiting_ones() -> None:
    w = world()
    w.submit("decoding", prompt=10, output=50)
    w.step()
    w.submit("late", prompt=500, output=1)
    plan = w.engine.schedule(w.now)
    assert plan is not None
    assert [(r.request_id, n) for r, n in plan.items] == [("decoding", 1), ("late", 99)]


@pytest.mark.parametrize(
    ("policy", "first_done"),
    [
        pytest.param(FCFS, ["long-0", "long-1"], id="first come first served ends the longs first"),
        pytest.param(SHORT_FIRST, ["short-0", "short-1"], id="short requests first ends the shorts first"),
        pytest.param(SHORTEST, ["short-0", "long-0"], id="the shortest is promoted once a step that admits"),
        pytest.param(RATIO, ["long-0", "short-0"], id="by ratio the first goes before there is work, then the shorts"),
    ],
)
def test_a_burst_of_longs_and_then_shorts(policy: RuntimePolicy, first_done: list[str]) -> None:
    w = world(policy)
    longs = [w.submit(f"long-{i}", 2000) for i in range(6)]
    shorts = [w.submit(f"short-{i}", 60) for i in range(20)]
    w.run()
    assert w.done[:2] == first_done
    assert sorted(w.done) == sorted(r.request_id for r in longs + shorts)
    assert_empty(w.engine)


def test_short_first_and_hrrn_cut_short_waits_and_cost_no_throughput() -> None:
    ends = {}
    waits = {}
    for policy in (FCFS, SHORT_FIRST, RATIO):
        w = world(policy, profile=DEFAULT_PROFILE, max_num_batched_tokens=2048)
        for i in range(24):
            w.submit(f"long-{i}", 6000)
        shorts = [w.submit(f"short-{i}", 200) for i in range(60)]
        w.run()
        ends[policy.policy] = w.now
        waits[policy.policy] = sorted(r.first_token_s for r in shorts if r.first_token_s is not None)[57]
    for name in (PolicyName.SHORT_REQUEST_FIRST, PolicyName.HRRN):
        assert waits[name] < 0.2 * waits[PolicyName.FCFS]
        assert ends[name] == pytest.approx(ends[PolicyName.FCFS], rel=0.03)


def test_a_head_that_does_not_fit_lets_smaller_ones_pass() -> None:
    w = world(kv_cache_tokens=1600)
    w.submit("runs", prompt=1000, output=200)
    w.step()
    w.submit("too big for now", prompt=800, output=1)
    w.submit("small", prompt=50, output=1)
    w.run()
    assert w.done == ["small", "runs", "too big for now"]
    assert_empty(w.engine)


def test_a_full_cache_preempts_the_youngest_which_is_computed_again() -> None:
    w = world(kv_cache_tokens=320)
    w.submit("old", prompt=100, output=120)
    young = w.submit("young", prompt=100, output=100)
    w.run()
    assert young.preemptions > 0
    assert w.tokens == {"old": 120, "young": 100}
    assert w.done == ["old", "young"]
    assert_empty(w.engine)


@pytest.mark.parametrize(
    ("trusted", "done"),
    [
        pytest.param(False, ["first", "favoured"], id="a client's priority is ignored"),
        pytest.param(True, ["favoured", "first"], id="a client's priority counts where clients are trusted"),
    ],
)
def test_the_priority_of_a_client(trusted: bool, done: list[str]) -> None:
    w = world(FCFS.model_copy(update={"trust_client_priority": trusted}), max_num_seqs=1)
    w.submit("first", prompt=50)
    w.submit("favoured", prompt=50, client_priority=-1)
    w.run()
    assert w.done == done


def test_the_queue_is_told_all_tokens_of_the_steps_so_far_that_carried_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    w = world()
    told: list[int] = []
    begin_step = w.engine.waiting.begin_step

    def told_step(now: float, processed_prefill_tokens: int = 0) -> None:
        told.append(processed_prefill_tokens)
        begin_step(now, processed_prefill_tokens)

    monkeypatch.setattr(w.engine.waiting, "begin_step", told_step)
    w.submit("a", prompt=250, output=4)
    for _ in range(4):
        w.step()
    w.submit("b", prompt=30)
    w.run()
    # a: 100, 100, 50 of prefill, then a decode alone that does not count; b's 30 come with one decode of a.
    assert told == [0, 100, 200, 250, 250, 281, 281]


def test_a_request_larger_than_the_cache_is_refused_at_once() -> None:
    w = world(kv_cache_tokens=160)
    with pytest.raises(ValueError, match="need 176 KV-cache tokens and the cache holds 160"):
        w.submit("huge", prompt=100, output=61)
    assert_empty(w.engine)


def test_an_id_may_not_be_used_twice() -> None:
    w = world()
    w.submit("a", 10)
    with pytest.raises(ValueError, match="already here"):
        w.submit("a", 10)


def test_no_more_requests_run_than_there_are_seats() -> None:
    w = world(max_num_seqs=2)
    for i in range(5):
        w.submit(str(i), prompt=3, output=10)
    w.run()
    assert sorted(w.done) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("steps", range(0, 12, 2), ids=lambda n: f"aborted after {n} steps")
def test_an_abort_at_any_moment_leaves_nothing_behind(steps: int) -> None:
    w = world()
    w.submit("other", prompt=150, output=2)
    w.submit("a", prompt=350, output=5)
    for _ in range(steps):
        w.step()
    w.engine.abort("a")
    assert not w.engine.abort("a")
    w.run()
    assert w.done.count("other") == 1
    assert_empty(w.engine)


def test_an_abort_in_the_middle_of_a_step_is_passed_over_at_its_end() -> None:
    w = world()
    gone = w.submit("gone", prompt=50, output=2)
    w.submit("stays", prompt=20, output=1)
    plan = w.engine.schedule(0.0)
    assert plan is not None
    w.engine.abort("gone")
    outcome = w.engine.finish(plan, 0.1)
    assert [r.request_id for r in outcome.emitted] == ["stays"]
    assert gone.generated == 0
    assert gone.state is RequestState.ABORTED
    assert_empty(w.engine)


def test_kept_kv_is_freed_when_it_is_fetched() -> None:
    w = world()
    w.submit("a", prompt=160, output=1, keep_kv=True)
    while w.step():
        pass
    assert w.engine.held == 1
    assert w.engine.used_fraction == pytest.approx(10 / 10_000)
    assert w.engine.release("a")
    assert not w.engine.release("a")
    assert_empty(w.engine)


def test_kept_kv_that_nobody_fetches_is_freed_when_its_lease_ends() -> None:
    w = world(kv_lease_s=5.0)
    w.submit("a", prompt=16, output=1, keep_kv=True)
    w.step()
    assert w.engine.next_event_s() == pytest.approx(w.now + 5)
    w.engine.schedule(w.now + 4.9)
    assert w.engine.held == 1
    w.engine.schedule(w.now + 5.0)
    assert w.engine.expired_leases == 1
    assert_empty(w.engine)


def test_a_request_waits_for_room_that_kept_kv_takes() -> None:
    w = world(kv_cache_tokens=160, kv_lease_s=5.0)
    w.submit("kept", prompt=150, output=1, keep_kv=True)
    w.submit("next", prompt=100, output=1)
    w.run()
    assert w.done == ["kept", "next"]
    assert w.now > 5.0
    assert_empty(w.engine)


def test_remote_kv_costs_its_transfer_and_one_token_of_prefill() -> None:
    w = world()
    request = w.submit("a", prompt=200, output=2, remote_kv=True)
    assert not w.step()
    assert w.engine.loading == 1
    assert w.engine.next_event_s() == pytest.approx(200 * 0.01)
    w.run()
    # 2 s of transfer, then two steps of one token each.
    assert request.first_token_s == pytest.approx(2.002)
    assert w.now == pytest.approx(2.004)
    assert_empty(w.engine)


def test_an_abort_while_kv_is_on_its_way_leaves_nothing_behind() -> None:
    w = world()
    w.submit("a", prompt=200, remote_kv=True)
    w.submit("b", prompt=100, remote_kv=True)
    w.step()
    assert w.engine.abort("a")
    w.run()
    assert w.done == ["b"]
    assert_empty(w.engine)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        pytest.param({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0", id="no budget"),
        pytest.param({"max_num_seqs": 0}, "max_num_seqs is 0", id="no seats"),
        pytest.param({"kv_cache_tokens": 15}, "kv_cache_tokens is 15", id="less cache than a block"),
    ],
)
def test_impossible_limits_are_refused(limits: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        world(**limits)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 400), st.integers(1, 40), st.sampled_from(["", "keep", "remote"])),
        st.tuples(st.just("step")),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("pass"), st.floats(0, 10)),
    ),
    max_size=80,
)


@settings(deadline=None, max_examples=150)
@given(
    actions=ACTIONS,
    policy=st.sampled_from([FCFS, SHORT_FIRST, SHORTEST, RATIO]),
    cache=st.sampled_from([448, 800, 16_000]),
)
def test_nothing_is_lost_on_random_histories(
    actions: list[tuple[object, ...]], policy: RuntimePolicy, cache: int
) -> None:
    w = world(policy, kv_cache_tokens=cache, max_num_seqs=4, kv_lease_s=3.0)
    submitted: dict[str, SimRequest] = {}
    for action in actions:
        match action:
            case ("submit", int(prompt), int(output), kind):
                name = str(len(submitted))
                keep, remote = kind == "keep", kind == "remote"
                submitted[name] = w.submit(name, prompt, output, keep_kv=keep, remote_kv=remote)
            case ("step",):
                w.step()
            case ("abort", int(which)):
                w.engine.abort(str(which))
            case ("release", int(which)):
                w.engine.release(str(which))
            case ("pass", float(seconds)):
                w.now += seconds
        w.engine.check_integrity()
    w.run()
    assert_empty(w.engine)
    for name, request in submitted.items():
        finished = request.state is RequestState.FINISHED
        assert finished or request.state is RequestState.ABORTED
        assert not finished or w.tokens[name] == request.max_tokens


def test_a_chunk_that_does_not_fit_whole_is_passed_over_and_not_shrunk() -> None:
    """1,000 tokens a step in chunks of 400: two whole ones, and of the 200 left a prompt of 150 that fits."""
    queue = PlainQueue(make_queue(RuntimePolicy(generation=1)))
    engine = Engine(DEFAULT_PROFILE, Limits(max_num_batched_tokens=1000, whole_chunks=400), queue)
    for name, tokens in (("a", 900), ("b", 900), ("c", 900), ("d", 150)):
        engine.submit(SimRequest(name, tokens, 1, 0.0))
    plan = engine.schedule(0.0)
    assert plan is not None
    assert {request.request_id: tokens for request, tokens in plan.items} == {"a": 400, "b": 400, "d": 150}


@pytest.mark.parametrize("tokens", [0, -1, 5000])
def test_whole_chunks_fit_into_a_step(tokens: int) -> None:
    with pytest.raises(ValueError, match="whole_chunks"):
        Limits(max_num_batched_tokens=1000, whole_chunks=tokens)
