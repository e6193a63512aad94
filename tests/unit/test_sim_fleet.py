"""A fleet under a virtual clock: nobody is lost, time goes forward, and one pod is the engine driven by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from prefleet_runtime.contract import RuntimePolicy, StallBudgetStage
from prefleet_runtime.queueing import Dispatch, make_queue
from prefleet_runtime.sim.cost_model import DEFAULT_PROFILE
from prefleet_runtime.sim.engine import Engine, PlainQueue
from prefleet_runtime.sim.fleet import FleetShape, Pod, VirtualFleet
from prefleet_runtime.sim.router import MOST_BEHIND, RouterKind, make_router
from prefleet_runtime.sim.state import Limits, SimRequest
from prefleet_runtime.stage import Arbiter

FCFS = RuntimePolicy(generation=1)
SHORT_FIRST = RuntimePolicy(generation=1, policy="short_request_first", threshold=500, long_max_wait_ms=3000)
PREFIX_BLOCK = 64


class Log:
    """Everything that a fleet tells."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.dispatched_names: list[str] = []
        self.answers: dict[str, SimRequest] = {}

    def dispatched(self, request: SimRequest, dispatch: Dispatch, now: float) -> None:
        self.times.append(now)
        self.dispatched_names.append(request.request_id)

    def answered(self, request: SimRequest, now: float) -> None:
        self.times.append(now)
        assert request.request_id not in self.answers
        self.answers[request.request_id] = request


def mix(count: int, rate: float, seed: int = 1, output: int = 20) -> Iterator[SimRequest]:
    rng, now = Random(seed), 0.0
    for number in range(count):
        chain = [rng.randrange(4) * 1000 + depth for depth in range(rng.choice([1, 2, 60]))]
        prompt = len(chain) * PREFIX_BLOCK + rng.randrange(1, PREFIX_BLOCK)
        yield SimRequest(str(number), prompt, rng.randrange(1, output + 1), now, prefix=chain)
        now += rng.expovariate(rate)


def check_idle(pods: list[Pod]) -> None:
    for pod in pods:
        pod.engine.check_integrity()
        assert pod.plan is None
        assert pod.pending_tokens == 0
        assert pod.engine.unfinished == pod.engine.held == 0
        assert pod.engine.kv.free == pod.engine.kv.total


@pytest.mark.parametrize("policy", [FCFS, SHORT_FIRST], ids=["fcfs", "short_request_first"])
@pytest.mark.parametrize("router", RouterKind)
@pytest.mark.parametrize(("prefill", "decode"), [(1, 0), (3, 0), (1, 1), (3, 2)])
def test_every_request_is_answered_once_and_time_goes_forward(
    policy: RuntimePolicy, router: RouterKind, prefill: int, decode: int
) -> None:
    log = Log()
    limits = Limits(kv_cache_tokens=20_000, prefix_block_tokens=PREFIX_BLOCK)
    fleet = VirtualFleet(FleetShape(prefill, decode, router, limits=limits), policy, log)
    ended = fleet.run(mix(400, rate=15.0 * prefill))
    assert set(log.answers) == {str(number) for number in range(400)}
    assert log.times == sorted(log.times)
    assert ended >= log.times[-1]
    for request in log.answers.values():
        assert request.first_token_s is not None
        assert request.first_token_s > request.arrival_s
        assert request.generated == request.max_tokens
    check_idle(fleet.prefill + fleet.decode)


def test_kv_that_a_decode_pod_has_fetched_wakes_the_pod_that_waits_for_it() -> None:
    log = Log()
    limits = Limits(kv_cache_tokens=3_000, kv_lease_s=1000.0)
    fleet = VirtualFleet(FleetShape(1, 1, limits=limits), FCFS, log)
    ended = fleet.run(SimRequest(str(number), 2_000, 5, 0.0) for number in range(3))
    assert set(log.answers) == {"0", "1", "2"}
    assert log.times[-1] == ended < 10, "a request waited for a lease to end"
    check_idle(fleet.prefill + fleet.decode)


def test_one_pod_is_the_engine_driven_by_hand() -> None:
    log = Log()
    VirtualFleet(FleetShape(), SHORT_FIRST, log).run(mix(300, rate=12.0))
    engine = Engine(DEFAULT_PROFILE, Limits(), PlainQueue(make_queue(SHORT_FIRST), Arbiter(SHORT_FIRST)))
    requests, now = list(mix(300, rate=12.0)), 0.0
    coming = requests[::-1]
    while coming or engine.unfinished:
        while coming and coming[-1].arrival_s <= now:
            engine.submit(coming.pop())
        plan = engine.schedule(now)
        if plan is None:
            now = coming[-1].arrival_s
            continue
        now += plan.cost_s
        engine.finish(plan, now)
    for request in requests:
        assert log.answers[request.request_id].first_token_s == pytest.approx(request.first_token_s, abs=1e-9)


def test_step_costs_are_learnt_where_the_policy_reads_them() -> None:
    stage = StallBudgetStage(type="stall_budget", max_stall_ms=60.0)
    fleet = VirtualFleet(FleetShape(1, 1), SHORT_FIRST.model_copy(update={"stage": stage}), Log())
    fleet.run(mix(50, rate=12.0))
    learnt = [pod.learner.cost.samples if pod.learner else 0 for pod in fleet.prefill + fleet.decode]
    assert learnt[0] > 0
    assert learnt[1] == 0
    assert VirtualFleet(FleetShape(), SHORT_FIRST, Log()).prefill[0].learner is None


def test_the_same_requests_meet_the_same_fate() -> None:
    first, second = Log(), Log()
    for log in (first, second):
        VirtualFleet(FleetShape(2, 1, RouterKind.LEAST_TOKENS), SHORT_FIRST, log).run(mix(200, rate=20.0))
    assert first.times == second.times
    assert first.dispatched_names == second.dispatched_names


def test_what_no_pod_could_hold_is_refused_and_counted() -> None:
    log = Log()
    fleet = VirtualFleet(FleetShape(1, 1, limits=Limits(kv_cache_tokens=1600)), FCFS, log)
    fleet.run(iter([SimRequest("huge", 5000, 10, 0.0), SimRequest("fits", 500, 10, 0.0)]))
    assert list(log.answers) == ["fits"]
    assert fleet.refused == 1
    check_idle(fleet.prefill + fleet.decode)


def test_a_hand_over_costs_the_transfer_of_its_kv() -> None:
    together, apart = Log(), Log()
    VirtualFleet(FleetShape(1, 0), FCFS, together).run(iter([SimRequest("a", 8000, 5, 0.0)]))
    VirtualFleet(FleetShape(1, 1), FCFS, apart).run(iter([SimRequest("a", 8000, 5, 0.0)]))
    alone, handed = together.answers["a"].first_token_s, apart.answers["a"].first_token_s
    assert alone is not None
    assert handed is not None
    transfer_s = 8000 * DEFAULT_PROFILE.kv_transfer_token_s
    assert handed - alone == pytest.approx(transfer_s + DEFAULT_PROFILE.cost.fixed_s, rel=0.2)


class Stand:
    """A pod as a router sees it."""

    def __init__(self, pending_tokens: int, cached: int = 0) -> None:
        self.pending_tokens = pending_tokens
        self._cached = cached

    def cached_tokens(self, request: SimRequest) -> int:
        return self._cached


REQUEST = SimRequest("r", 1000, 1, 0.0)


@pytest.mark.parametrize(
    ("kind", "pods", "expected"),
    [
        (RouterKind.LEAST_TOKENS, [Stand(9), Stand(3), Stand(3)], 1),
        (RouterKind.PREFIX_AWARE, [Stand(9), Stand(3), Stand(500, cached=640)], 2),
        (RouterKind.PREFIX_AWARE, [Stand(9), Stand(3), Stand(4)], 1),
        (RouterKind.PREFIX_AWARE, [Stand(9), Stand(3), Stand(4 + MOST_BEHIND, cached=640)], 1),
        (RouterKind.PREFIX_AWARE, [Stand(9, cached=640), Stand(3), Stand(4, cached=640)], 2),
    ],
)
def test_where_a_request_goes(kind: RouterKind, pods: list[Stand], expected: int) -> None:
    assert make_router(kind, pods)(REQUEST) == expected


def test_round_robin_goes_round() -> None:
    route = make_router(RouterKind.ROUND_ROBIN, [Stand(0), Stand(0), Stand(0)])
    assert Counter(route(REQUEST) for _ in range(9)) == {0: 3, 1: 3, 2: 3}


def test_a_prefix_aware_router_finds_more_cached_than_turns_do() -> None:
    cached = {}
    for kind in (RouterKind.ROUND_ROBIN, RouterKind.PREFIX_AWARE):
        log = Log()
        limits = Limits(kv_cache_tokens=10_000, prefix_block_tokens=PREFIX_BLOCK)
        VirtualFleet(FleetShape(4, 0, kind, limits=limits), FCFS, log).run(mix(600, rate=20.0))
        cached[kind] = sum(request.cached_tokens for request in log.answers.values())
    assert cached[RouterKind.PREFIX_AWARE] > 1.2 * cached[RouterKind.ROUND_ROBIN]


def test_a_fleet_has_pods() -> None:
    with pytest.raises(ValueError, match="at least 1 and 0"):
        FleetShape(prefill=0)
