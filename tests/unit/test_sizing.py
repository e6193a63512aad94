"""How many pods: what is seen, what was remembered, what is decided."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from prefleet_operator.api import Role
from prefleet_operator.core.observed import Missing, Sample, Stale
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.sizing import (
    RoleMemory,
    RoleRules,
    RoleSignals,
    SizingInputs,
    SizingMemory,
    SizingRules,
    decide_size,
)
from prefleet_operator.core.sizing.arbiter import Act, WaitSignal, WaitsMemory
from prefleet_operator.core.sizing.demand import (
    NOTHING,
    SURE_IF_LATE,
    Demand,
    answer_work,
    believe,
    glance,
    prefill_demand,
    prompt_work,
)
from prefleet_operator.core.sizing.values import Capacity, Glance, Mark, PodServed, StepCost

from tests.support.lengths import histogram

NOW = 1_800_000_000.0
P, D, M = Role.PREFILL, Role.DECODE, Role.MIXED
COST = StepCost(fixed=0.02, prefill_token=1e-4, decode_token=2e-4, attention_pair=1e-9, decode_context_token=1e-7)
SECOND = 0.9 / 1.1e-4
"""About so many tokens are a second of work, attention's tenth aside."""


# --- demand ----------------------------------------------------------------------------------------------------


def test_work_of_a_prompt_counts_tokens_the_fixed_cost_of_full_steps_and_pairs():
    assert prompt_work(2000, COST, 2000) == pytest.approx(0.2 + 0.02 + 2000 * 2001 / 2 * 1e-9)


def test_a_negative_term_of_the_fit_counts_as_nothing_and_the_decode_pair_as_one():
    fit = StepCost(fixed=-1.0, prefill_token=1e-4, decode_token=-1e-4, attention_pair=-1.0, decode_context_token=1e-7)
    assert prompt_work(1000, fit, 2048) == pytest.approx(0.1)
    assert answer_work(fit, 3000) == pytest.approx(2e-4)
    assert answer_work(fit, 500) == 0


def test_demand_is_near_that_of_the_requests_themselves():
    rng = random.Random(1)
    lengths = [max(1, round(rng.lognormvariate(8, 1))) for _ in range(3000)]
    demand = prefill_demand(histogram(lengths), 300, COST, 2048)
    works = [prompt_work(tokens, COST, 2048) for tokens in lengths]
    assert demand.per_s == pytest.approx(sum(works) / 300, rel=0.03)
    mean = sum(works) / len(works)
    variation = sum((work - mean) ** 2 for work in works) / len(works) / mean**2
    assert demand.variation == pytest.approx(variation, rel=0.1)
    assert demand.requests_per_s == 10


def test_no_requests_are_no_demand():
    assert prefill_demand(histogram([]), 300, COST, 2048) == NOTHING


def test_without_a_step_cost_work_is_tokens():
    assert prefill_demand(histogram([1024] * 300), 300, None, 2048).per_s == pytest.approx(1024, rel=0.1)


SLOW = Demand(per_s=1.0, request_s=0.5, variation=3.0, requests_per_s=2.0, deviation=0.1)


@pytest.mark.parametrize(
    ("fast", "past", "believed"),
    [
        pytest.param(None, (), 1.0, id="no fast window"),
        pytest.param((1.4, 0.2), (), 1.0, id="a rise within noise is none"),
        pytest.param((2.0, 0.2), (), 2.0, id="a sure rise is believed at once"),
        pytest.param((1.8, 0.4), (), 1.0, id="a rise that one window does not prove"),
        pytest.param((1.8, 0.4), (1.8, 1.8), 1.8, id="is proved by three"),
        pytest.param((3.0, 0.4), (1.0, 1.0, 1.0), 3.0, id="what was before does not hold a rise back"),
        pytest.param((0.9, 0.1), (), 1.0, id="a fall within noise is none"),
        pytest.param((0.1, 0.01), (), 0.1, id="a sure fall is believed at once"),
        pytest.param((0.85, 0.01), (), 1.0, id="so small a fall is the slow window's own chance"),
    ],
)
def test_which_window_is_believed(fast, past, believed):
    seen = None if fast is None else replace(SLOW, per_s=fast[0], deviation=fast[1])
    glances = tuple(Glance(int(NOW) - 60 * number, value, 0.4, 2.0) for number, value in enumerate(past, 1))[::-1]
    demand = believe(SLOW, seen, glances, 60.0, NOW)
    assert demand.per_s == pytest.approx(believed)
    assert demand.risen is (believed > SLOW.per_s)


def test_requests_that_wait_for_too_long_make_a_lesser_rise_sure():
    fast = replace(SLOW, per_s=1.4, deviation=0.2)
    assert not believe(SLOW, fast, (), 60.0, NOW).risen
    assert believe(SLOW, fast, (), 60.0, NOW, SURE_IF_LATE).risen


def test_no_requests_at_all_are_a_fall():
    assert believe(replace(SLOW, requests_per_s=20.0), NOTHING, (), 60.0, NOW).per_s == 0.0
    assert believe(NOTHING, NOTHING, (), 60.0, NOW) == NOTHING


def test_a_believed_window_says_what_its_requests_are():
    longer = replace(SLOW, per_s=6.0, request_s=3.0, deviation=0.3, variation=0.2)
    demand = believe(SLOW, longer, (Glance(int(NOW) - 60, 4.0, 0.4, 2.0),), 60.0, NOW)
    assert demand == Demand(6.0, 3.0, SLOW.variation, 2.0, 0.3, risen=True)


def test_glances_are_one_to_a_fast_window_and_few():
    past: tuple[Glance, ...] = ()
    for second in range(0, 1200, 5):
        past = glance(past, replace(SLOW, per_s=float(second)), 60.0, NOW + second)
    assert [one.at_s - NOW for one in past] == [900, 960, 1020, 1080, 1140]
    assert [one.per_s for one in past] == [900, 960, 1020, 1080, 1140]
    assert glance(past, None, 60.0, NOW + 1200) == past[1:]


# --- one role --------------------------------------------------------------------------------------------------


def rules(role: Role = P, least: int = 1, most: int = 10, **given: object) -> SizingRules:
    return replace(SizingRules({role: RoleRules(least, most, accelerators=4)}), **given)


def signals(work: float, replicas: int, **given: object) -> RoleSignals:
    """Prompts of 2,048 tokens that are so much work a second, and nothing that waits."""
    requests = round(300 * work / prompt_work(2000, COST, 2048))
    usual = RoleSignals(
        replicas=replicas,
        ready=replicas,
        start_s=Sample(60.0, NOW),
        arrivals=Sample(histogram([2000] * requests), NOW),
        waiting_tokens=Sample(0.0, NOW),
        waiting=Sample(0.0, NOW),
        step_cost=Sample(COST, NOW),
        running=Sample(0.0, NOW),
        kv_usage=Sample(0.0, NOW),
        kv_tokens=Sample(400_000.0, NOW),
    )
    return replace(usual, **given)


def quiet(role: Role) -> SizingMemory:
    """A whole window in which one pod would have done."""
    return SizingMemory({role: RoleMemory(needs=(Mark(int(NOW) - 600, 1.0),))})


def size(seen: RoleSignals, role: Role = P, memory: SizingMemory | None = None, now: float = NOW, **given: object):
    limits = given.pop("rules", rules(role))
    decision, after = decide_size(SizingInputs({role: seen}, limits, **given), memory or quiet(role), now)
    return decision.roles[role], after


SIZES = [
    ("work for nearly four pods asks for four", signals(3.7, 2), 4, Reason.DEMAND),
    ("little work needs one pod", signals(0.1, 1), 1, Reason.DEMAND),
    ("a fresh zero goes to one pod, not to none", signals(0.0, 1), 1, Reason.DEMAND),
    ("and not at once", signals(0.0, 8), 6, Reason.DAMPED),
    ("missing lengths hold", signals(9, 4, arrivals=Missing("no answer.")), 4, Reason.METRICS_MISSING),
    ("an empty answer is not zero", signals(0, 4, arrivals=Missing("no series")), 4, Reason.METRICS_MISSING),
    (
        "stale lengths hold",
        signals(9, 4, arrivals=Stale(histogram([2000] * 9999), NOW - 600)),
        4,
        Reason.METRICS_STALE,
    ),
    (
        "a missing backlog holds",
        signals(9, 4, waiting_tokens=Missing("no answer")),
        4,
        Reason.METRICS_MISSING,
    ),
    (
        "a backlog of four minutes' work, to be gone in two, asks for two pods more",
        signals(2.0, 2, waiting_tokens=Sample(240 * 2000 / prompt_work(2000, COST, 2048), NOW)),
        4,
        Reason.BACKLOG,
    ),
    (
        "while pods start a backlog is theirs",
        signals(2.0, 4, ready=2, starting=2, waiting_tokens=Sample(240 * 2000 / prompt_work(2000, COST, 2048), NOW)),
        4,
        Reason.BACKLOG,
    ),
    ("more than it may have", signals(30, 9), 10, Reason.AT_MAX_REPLICAS),
]


@pytest.mark.parametrize(("seen", "pods", "reason"), [row[1:] for row in SIZES], ids=[row[0] for row in SIZES])
def test_sizes(seen, pods, reason):
    sized, _ = size(seen)
    assert (sized.desired, sized.reason) == (pods, reason), sized.message
    assert str(pods) in sized.message


def test_a_decision_carries_its_numbers_and_says_that_it_is_an_estimate():
    sized, _ = size(signals(3.7, 2))
    assert sized.estimate
    assert sized.numbers["workPerSecond"] == pytest.approx(3.7, rel=0.1)
    assert "workPerSecond" in sized.message
    assert sized.message.endswith("; an estimate")


def test_replay_decides_where_there_is_one():
    sized, _ = size(signals(3.0, 4), replay=lambda pods: 20.0 if pods < 6 else 1.0)
    assert (sized.desired, sized.estimate) == (6, False)


def test_a_fall_is_followed_only_after_the_window_and_a_rise_at_once():
    _, memory = size(signals(4.6, 5))
    held, memory = size(signals(1.0, 5), memory=memory, now=NOW + 60)
    assert (held.desired, held.reason) == (5, Reason.STABILISING)
    for second in range(120, 720, 60):
        held, memory = size(signals(1.0, 5), memory=memory, now=NOW + second)
    assert held.desired < 5
    risen, _ = size(signals(3.7, 2), memory=memory, now=NOW + 730)
    assert risen.desired > 2


@pytest.mark.parametrize(("usage", "pods"), [(0.53, 4), (0.45, 3)])
def test_decode_pods_fall_only_where_fewer_would_hold_a_quarter_more(usage, pods):
    seen = signals(0.0, 4, kv_usage=Sample(usage, NOW), running=Sample(10.0, NOW), gap_s=Sample(0.02, NOW))
    sized, _ = size(seen, role=D)
    assert (sized.numbers["needed"], sized.desired) == (3, pods), sized.message


def test_a_slow_pod_is_worth_less():
    tokens = 2000 / prompt_work(2000, COST, 2048)
    served = tuple(PodServed(f"p{n}", 0.6 * tokens, busy=1.0, waiting=4.0) for n in range(3))
    slow, memory = size(signals(3.0, 4, served=served))
    usual, _ = size(signals(3.0, 4))
    assert slow.desired > usual.desired
    assert memory.roles[P].capacity.mean == pytest.approx(0.6, rel=0.1)


def test_without_a_step_cost_a_fleet_holds_until_a_pod_has_shown_what_it_can_do():
    blind = signals(3.0, 4, step_cost=Missing("no such series"))
    held, _ = size(blind)
    assert (held.desired, held.reason) == (4, Reason.LEARNING_CAPACITY)
    served = (PodServed("p", 8000.0, busy=1.0, waiting=2.0),)
    sized, memory = size(replace(blind, served=served))
    assert sized.reason is Reason.DEMAND
    assert sized.estimate
    again, _ = size(blind, memory=memory)
    assert again.desired == sized.desired


LEARNT = RoleMemory(
    needs=(Mark(int(NOW) - 600, 1.0),),
    demands=(Mark(int(NOW) - 300, 1.0),),
    glances=(Glance(int(NOW) - 60, 1.0, 0.1, 4.0),),
    capacity=Capacity(0.6, 0.05),
    token_capacity=Capacity(9000.0, 10.0),
    learnt_at_s=int(NOW) - 900,
    template="old",
    made_of="a",
)


@pytest.mark.parametrize(
    ("template", "made_of", "known", "stays"),
    [
        pytest.param("new", "b", LEARNT, False, id="pods of another model have taken over"),
        pytest.param("", "b", LEARNT, False, id="and so have pods that carry no digest"),
        pytest.param("old", "b", LEARNT, True, id="those that were measured run on, whatever is asked for"),
        pytest.param(None, "b", LEARNT, True, id="some of them do"),
        pytest.param("new", "a", LEARNT, True, id="the new ones differ in the policy that they were started with"),
        pytest.param("new", "b", replace(LEARNT, template=None), True, id="an earlier release did not say which"),
    ],
)
def test_what_was_learnt_of_pods_that_run_no_more_is_forgotten(template, made_of, known, stays):
    _, after = size(signals(1.0, 2, template=template, made_of=made_of), memory=SizingMemory({P: known}))
    memory = after.roles[P]
    learnt = (LEARNT.capacity, LEARNT.token_capacity) if stays else (None, None)
    assert (memory.capacity, memory.token_capacity) == learnt
    assert (memory.demands[0] == LEARNT.demands[0], LEARNT.glances[0] in memory.glances) == (stays, stays)
    assert memory.needs[0] == LEARNT.needs[0], "what was needed of those that were there is no measure of one of them"
    running = known if template in (None, "old") else replace(known, template=template, made_of=made_of)
    assert (memory.template, memory.made_of) == (running.template, running.made_of)


def test_a_change_is_taken_up_once_its_pods_run_however_long_before_it_was_asked_for():
    """Between the two the policy that pods are started with may change, too."""
    memory = SizingMemory({P: LEARNT})
    for template, made_of in (("old", "b"), (None, "b"), ("new", "b")):
        _, memory = size(signals(1.0, 2, template=template, made_of=made_of), memory=memory)
    assert memory.roles[P].capacity is None


@pytest.mark.parametrize("cost", [Sample(COST, NOW), Missing("no such series")], ids=["by cost", "by tokens"])
def test_pods_that_do_nothing_while_requests_wait_hang_and_show_no_capacity(cost):
    served = tuple(PodServed(f"p{n}", 0.0, busy=1.0, waiting=4.0) for n in range(2))
    held, memory = size(signals(3.0, 4, served=served, step_cost=cost))
    assert (memory.roles[P].capacity, memory.roles[P].token_capacity) == (None, None)
    assert held.desired == 4


def test_pods_of_two_kinds_teach_nothing_together():
    served = tuple(PodServed(f"p{n}", 8000.0, busy=1.0, waiting=4.0) for n in range(2))
    _, memory = size(signals(3.0, 2, served=served, template=None))
    assert memory.roles[P].capacity is None


def test_capacity_that_is_short_by_the_waits_adds_a_pod_once_in_a_cooldown():
    short = WaitSignal(7.9, 8.0)
    sized, memory = size(signals(1.0, 4), waits=short)
    assert (sized.desired, sized.reason) == (5, Reason.LONG_WAITS)
    assert memory.waits.act is Act.SCALE
    again, memory = size(signals(1.0, 5), memory=memory, now=NOW + 60, waits=short)
    assert again.desired <= 5
    later, _ = size(signals(1.0, 5), memory=memory, now=NOW + 901, waits=short)
    assert later.desired == 6


def test_a_pod_that_bounds_did_not_allow_for_long_waits_is_not_owed_once_they_do():
    full, memory = size(signals(3.7, 4), rules=rules(most=4), waits=WaitSignal(7.9, 8.0))
    assert (full.desired, full.limited) == (4, True)
    later, _ = size(signals(3.7, 4), rules=rules(most=10), memory=memory, now=NOW + 60)
    assert later.desired == 4


def test_an_unfit_threshold_adds_no_pod():
    sized, memory = size(signals(1.0, 2), waits=WaitSignal(3.0, 8.0, unfit=True))
    assert sized.desired == 2
    assert memory.waits.act is Act.TUNE


# --- decode ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "pods"),
    [
        pytest.param(signals(0, 4, running=Sample(100.0, NOW), kv_usage=Sample(0.3, NOW)), 3, id="little KV in use"),
        pytest.param(signals(0, 4, running=Sample(100.0, NOW), kv_usage=Sample(0.99, NOW)), 5, id="KV is full"),
        pytest.param(
            signals(0, 4, running=Sample(400.0, NOW), kv_usage=Sample(0.3, NOW), gap_s=Sample(0.38, NOW)),
            8,
            id="gaps are too long",
        ),
        pytest.param(signals(0, 4, running=Missing("none"), kv_usage=Sample(0.1, NOW)), 4, id="nobody knows what runs"),
    ],
)
def test_decode_pods(seen, pods):
    sized, _ = size(seen, role=D)
    assert sized.desired == pods, sized.message


def test_mixed_pods_count_the_answers():
    alone, _ = size(signals(2.0, 3), role=M)
    both, _ = size(signals(2.0, 3, generated=Sample(6000.0, NOW), running=Sample(60.0, NOW)), role=M)
    assert both.desired > alone.desired
    assert both.numbers["answers"] == pytest.approx(6000 * 2e-4)


def test_mixed_pods_grow_when_kv_is_full_though_there_is_little_work():
    full = signals(0.5, 3, running=Sample(60.0, NOW), kv_usage=Sample(0.99, NOW), waiting_tokens=Sample(300_000.0, NOW))
    sized, _ = size(full, role=M, rules=rules(M, drain_s=1e9))
    assert (sized.desired, sized.reason) == (5, Reason.DECODE_LOAD)


# --- roles together --------------------------------------------------------------------------------------------


def together(prefill: RoleSignals, decode: RoleSignals, **given: object):
    limits = SizingRules({P: RoleRules(1, 10, 4), D: RoleRules(1, 10, 4)})
    decision, _ = decide_size(SizingInputs({P: prefill, D: decode}, replace(limits, **given)), SizingMemory(), NOW)
    return decision.roles[P], decision.roles[D]


IDLE_DECODE = signals(0, 2, running=Sample(10.0, NOW), kv_usage=Sample(0.2, NOW))


def test_the_ratio_raises_the_smaller_side_and_says_so():
    prefill, decode = together(signals(5.5, 6), IDLE_DECODE, ratio=(0.5, 2.0))
    assert decode.desired == -(-prefill.desired // 2)
    assert decode.reason is Reason.RATIO_KEPT


def test_a_role_that_holds_is_not_moved_by_the_ratio():
    _, decode = together(signals(5.5, 6), replace(IDLE_DECODE, running=Missing("x")), ratio=(0.5, 2.0))
    assert (decode.desired, decode.reason) == (2, Reason.METRICS_MISSING)


def test_the_quota_is_the_last_word_on_growth():
    prefill, decode = together(signals(8.0, 4), IDLE_DECODE, quota=24)
    assert 4 * (prefill.desired + decode.desired) <= 24
    assert (prefill.reason, prefill.limited) == (Reason.QUOTA_EXHAUSTED, True)
    assert "quota of 24" in prefill.message


# --- memory ----------------------------------------------------------------------------------------------------


def test_memory_travels_in_json_and_decides_the_same():
    memory = SizingMemory(
        {
            P: RoleMemory(
                needs=(Mark(1, 3),),
                demands=(Mark(2, 2.5),),
                glances=(Glance(3, 2.5, 0.1, 4.0),),
                in_tokens=True,
                capacity=Capacity(0.9, 0.1),
                token_capacity=Capacity(8000.0, 10.0),
                learnt_at_s=int(NOW) - 15,
                fell_at_s=int(NOW) - 5,
                rose_at_s=int(NOW) - 6,
                base=Mark(int(NOW), 4),
                raised=Mark(int(NOW), 5),
                template="0a1b",
                made_of="2c3d",
            )
        },
        WaitsMemory(Act.SCALE, int(NOW)),
    )
    assert SizingMemory.from_record(json.loads(json.dumps(memory.to_record()))) == memory
    assert SizingMemory.from_record({}) == SizingMemory()
    assert SizingMemory.from_record({"roles": {P.value: {}}}) == SizingMemory({P: RoleMemory()})


def test_memory_stays_small_and_a_restart_at_any_moment_changes_nothing():
    rng, memory, replicas = random.Random(3), SizingMemory(), 3
    for second in range(0, 7200, 15):
        seen = signals(rng.uniform(1, 5), replicas)
        sized, after = size(seen, memory=memory, now=NOW + second)
        recalled = SizingMemory.from_record(json.loads(json.dumps(memory.to_record())))
        assert size(seen, memory=recalled, now=NOW + second) == (sized, after)
        memory, replicas = after, sized.desired
    assert len(json.dumps(memory.to_record())) < 2000


def test_no_move_is_reversed_within_the_down_window_on_a_load_that_only_makes_noise():
    rng, memory, replicas, moves = random.Random(5), SizingMemory(), 4, []
    for second in range(0, 4 * 3600, 15):
        sized, memory = size(signals(3.0 + rng.gauss(0, 0.15), replicas), memory=memory, now=NOW + second)
        if sized.desired != replicas:
            moves.append((second, sized.desired - replicas))
        replicas = sized.desired
    assert len(moves) <= 2
