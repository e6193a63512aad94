"""What sizing keeps whatever is seen: bounds, a pod at least, reasons; no flap but for cause; and any rhythm of asking.

A driven fleet is one whose replicas are at once what was decided, and whose signals change each 15 s, as a scrape does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st
from prefleet_operator.api import Role
from prefleet_operator.core.observed import HistogramSnapshot, Missing, Sample
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.sizing import RoleRules, RoleSignals, SizingInputs, SizingMemory, SizingRules, decide_size
from prefleet_operator.core.sizing.arbiter import WaitSignal
from prefleet_operator.core.sizing.demand import prompt_work
from prefleet_operator.core.sizing.values import PodServed, RoleSize, StepCost

from tests.support.lengths import histogram

START = 1_800_000_000
P, D, M = Role.PREFILL, Role.DECODE, Role.MIXED
COST = StepCost(fixed=0.02, prefill_token=1e-4, decode_token=2e-4, attention_pair=1e-9, decode_context_token=1e-7)
SCRAPE_S = 15
HOLDS = {Reason.METRICS_MISSING, Reason.METRICS_STALE, Reason.LEARNING_CAPACITY}
FORCED = {Reason.AT_MAX_REPLICAS, Reason.AT_MIN_REPLICAS}
Seen = Callable[[int, int], RoleSignals]
"""(second, replicas) -> what is seen."""


def prompts(count: float) -> HistogramSnapshot:
    """So many of 2,000 tokens."""
    one = histogram([2000])
    return replace(one, counts=tuple(round(count) * part for part in one.counts))


def signals(work: float, fast: float, backlog_s: float, replicas: int, now: float) -> RoleSignals:
    """Prompts of 2,000 tokens that are so much work a second by either window, and a backlog in seconds of work."""
    each = prompt_work(2000, COST, 2048)
    return RoleSignals(
        replicas=replicas,
        ready=replicas,
        start_s=Sample(60.0, now),
        arrivals=Sample(prompts(300 * work / each), now),
        recent=Sample(prompts(60 * fast / each), now),
        waiting_tokens=Sample(backlog_s / each * 2000, now),
        waiting=Sample(0.0, now),
        step_cost=Sample(COST, now),
        running=Sample(20.0 * fast, now),
        generated=Sample(100.0 * fast, now),
        kv_usage=Sample(min(1.0, fast / 10), now),
        kv_tokens=Sample(400_000.0, now),
        gap_s=Sample(0.1 + fast / 50, now),
        served=(PodServed("pod", 5000.0 + 100 * fast, busy=1.0, waiting=2.0 * (backlog_s > 0)),),
    )


def random_load(seed: int) -> Seen:
    """Levels that jump now and then, noise, backlogs, and gaps in what is known. Pods serve from the next scrape on."""
    rng, by_scrape = random.Random(seed), {}
    ready: dict[int, int] = {}
    level = rng.uniform(0, 6)
    for scrape in range(1000):
        if rng.random() < 0.02:
            level = rng.uniform(0, 8)
        backlog_s = rng.choice((0.0, 0.0, 0.0, rng.uniform(0, 400)))
        noise = (max(0.0, level * rng.gauss(1, 0.05)), max(0.0, level * rng.gauss(1, 0.3)))
        by_scrape[scrape] = (*noise, backlog_s, rng.random() < 0.03)

    def seen(second: int, replicas: int) -> RoleSignals:
        slow, fast, backlog_s, gone = by_scrape[second // SCRAPE_S]
        serve = ready.setdefault(second // SCRAPE_S, replicas)
        present = replace(signals(slow, fast, backlog_s, replicas, START + second), ready=serve)
        return replace(present, arrivals=Missing("gone"), running=Missing("gone")) if gone else present

    return seen


def drive(seen: Seen, rules: SizingRules, seconds: Sequence[int], replicas: int) -> list[tuple[int, int, RoleSize]]:
    """(second, replicas before, what was decided) of a fleet with one role that is asked at these seconds."""
    (role,) = rules.roles
    memory, decided = SizingMemory(), []
    for second in seconds:
        inputs = SizingInputs({role: seen(second, replicas)}, rules)
        decision, memory = decide_size(inputs, memory, float(START + second))
        decided.append((second, replicas, decision.roles[role]))
        replicas = decision.roles[role].desired
    return decided


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), role=st.sampled_from([P, M]), least=st.integers(1, 3), more=st.integers(0, 8))
def test_bounds_reasons_and_no_reversal_of_a_rise(seed, role, least, more):
    rules = SizingRules({role: RoleRules(least, least + more, 4)}, down_window_s=300.0)
    rose_at = -(10**9)
    for second, before, size in drive(random_load(seed), rules, range(0, 3600, SCRAPE_S), least):
        assert least <= size.desired <= least + more
        assert size.message
        assert str(size.desired) in size.message
        if size.reason in HOLDS:
            assert size.desired == before
        if size.desired < before:
            assert second - rose_at > 300
        if size.desired > before:
            rose_at = second


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), role=st.sampled_from([P, D, M]), replicas=st.integers(1, 12))
def test_a_role_that_cannot_be_sized_keeps_its_number_and_an_empty_answer_is_never_a_zero(seed, role, replicas):
    rules, load = SizingRules({role: RoleRules(1, 12, 4)}), random_load(seed)

    def gone(second: int, present: int) -> RoleSignals:
        return replace(load(second, present), arrivals=Missing("no series"), running=Missing("no series"))

    decided = drive(gone, rules, range(0, 1800, 60), replicas)
    assert {size.desired for _, _, size in decided} == {replicas}


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), role=st.sampled_from([P, D, M]), every_s=st.sampled_from([1, 5]))
@example(seed=410, role=M, every_s=1)  # the window after a fall ends as a period begins
def test_who_asks_more_often_is_answered_alike(seed, role, every_s):
    rules = SizingRules({role: RoleRules(1, 12, 4)}, down_window_s=300.0)
    rare = drive(random_load(seed), rules, range(0, 1800, SCRAPE_S), 3)
    often = drive(random_load(seed), rules, range(0, 1800, every_s), 3)
    moves = [
        [(second, before, size.desired) for second, before, size in run if size.desired != before]
        for run in (rare, often)
    ]
    assert moves[0] == moves[1]


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_long_waits_raise_by_one_pod_a_cooldown_and_nothing_takes_it_back_within_the_window(seed):
    rng, seen = random.Random(seed), random_load(seed)
    rules = SizingRules({P: RoleRules(1, 40, 4)}, down_window_s=300.0, cooldown_s=600.0)
    memory, replicas, raised, rose_at = SizingMemory(), 4, [], -(10**9)
    for second in range(0, 3600, SCRAPE_S):
        waits = WaitSignal(rng.choice((1.0, 7.9)), 8.0)
        inputs = SizingInputs({P: seen(second, replicas)}, rules, waits=waits)
        decision, memory = decide_size(inputs, memory, float(START + second))
        size = decision.roles[P]
        if size.reason is Reason.LONG_WAITS and size.desired > replicas:
            assert size.desired == replicas + 1
            raised.append(second)
        if size.desired < replicas:
            assert second - rose_at > 300
        if size.desired > replicas:
            rose_at = second
        replicas = size.desired
    assert all(then - first >= 600 for first, then in pairwise(raised))
