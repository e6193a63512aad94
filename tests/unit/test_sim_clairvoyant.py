"""The bound: shortest remaining first, at chunk ends, and never behind a policy in the mean."""

from __future__ import annotations

from statistics import fmean

import pytest
from prefleet_runtime.contract import RuntimePolicy
from prefleet_runtime.sim.clairvoyant import ClairvoyantEngine
from prefleet_runtime.sim.cost_model import DEFAULT_PROFILE
from prefleet_runtime.sim.fleet import FleetShape, VirtualFleet
from prefleet_runtime.sim.state import Limits, SimRequest

from tests.unit.test_sim_fleet import FCFS, SHORT_FIRST, Log, check_idle, mix


def tokens_by_step(*prompts: int, arrivals: tuple[int, ...] = (), budget: int = 1000) -> list[dict[str, int]]:
    """What each step computes; request n of `prompts` comes before step `arrivals[n]` (0 by default)."""
    engine = ClairvoyantEngine(DEFAULT_PROFILE, Limits(max_num_batched_tokens=budget))
    steps: list[dict[str, int]] = []
    while True:
        for number, prompt in enumerate(prompts):
            if (arrivals[number] if arrivals else 0) == len(steps):
                engine.submit(SimRequest(str(number), prompt, 1, 0.0))
        plan = engine.schedule(float(len(steps)))
        if plan is None:
            return steps
        steps.append({request.request_id: tokens for request, tokens in plan.items})
        engine.finish(plan, float(len(steps)))
        engine.kv.check(engine._live.values(), [])


def test_the_prefill_with_least_left_goes_first_and_the_next_has_the_rest() -> None:
    assert tokens_by_step(3000, 400) == [{"1": 400, "0": 600}, {"0": 1000}, {"0": 1000}, {"0": 400}]


def test_one_that_came_later_passes_one_that_has_more_left() -> None:
    steps = tokens_by_step(2500, 900, arrivals=(0, 1))
    assert steps == [{"0": 1000}, {"1": 900, "0": 100}, {"0": 1000}, {"0": 400}]


def test_what_is_left_counts_and_not_the_length() -> None:
    assert tokens_by_step(1600, 900, arrivals=(0, 1))[1] == {"0": 600, "1": 400}


@pytest.mark.parametrize("policy", [FCFS, SHORT_FIRST], ids=["fcfs", "short_request_first"])
@pytest.mark.parametrize("seed", range(4))
def test_no_policy_has_a_better_mean_ttft(policy: RuntimePolicy, seed: int) -> None:
    """Of prefills alone: where decodes run beside them, whom they slow down is chance."""
    means = {}
    for each in (policy, None):
        log = Log()
        fleet = VirtualFleet(FleetShape(limits=Limits(kv_cache_tokens=10**7)), each, log)
        fleet.run(mix(400, rate=8.0, seed=seed, output=1))
        check_idle(fleet.prefill)
        means[each] = fmean((r.first_token_s or 0) - r.arrival_s for r in log.answers.values())
    assert means[None] < means[policy]


def test_decode_pods_go_on_behind_it() -> None:
    log = Log()
    fleet = VirtualFleet(FleetShape(2, 1), None, log)
    fleet.run(mix(200, rate=20.0))
    assert len(log.answers) == 200
    check_idle(fleet.prefill + fleet.decode)
