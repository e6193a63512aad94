"""The small steps of sizing as tables: numbers in, numbers out."""

from __future__ import annotations

import math
import random

import pytest
from prefleet_operator.api import Role
from prefleet_operator.core.sizing import steps, waits
from prefleet_operator.core.sizing.arbiter import Act, WaitSignal, WaitsMemory, arbitrate
from prefleet_operator.core.sizing.capacity import NOMINAL, capacity_of, learn, plausible
from prefleet_operator.core.sizing.values import MARKS, Capacity, Mark, PodServed, RoleRules

NOW = 1_800_000_000.0
P, D = Role.PREFILL, Role.DECODE


# --- windows ---------------------------------------------------------------------------------------------------


def test_a_window_keeps_the_highest_of_each_part_and_stays_small():
    marks: tuple[Mark, ...] = ()
    for second in range(0, 3600, 15):
        marks = steps.remember(marks, float(second % 100), 300, NOW + second)
    assert len(marks) <= MARKS + 2
    assert all(mark.at_s > NOW + 3600 - 15 - 300 - 25 for mark in marks)
    assert max(mark.value for mark in marks) == 95


def test_a_peak_counts_for_the_whole_window_and_no_longer_than_a_part_more():
    marks = steps.remember((), 9.0, 300, NOW)
    seen = []
    for second in range(15, 600, 15):
        marks = steps.remember(marks, 1.0, 300, NOW + second)
        seen += [second] if 9.0 in _values(marks) else []
    assert seen[-1] in range(285, 326)


@pytest.mark.parametrize(
    ("window_s", "turn_s"),
    [
        pytest.param(600, 15, id="many turns in a part of the window"),
        pytest.param(60, 16, id="turns longer than a part"),
        pytest.param(10, 1.7, id="a short window, and turns of a busy machine"),
        pytest.param(10, 30, id="turns longer than the window"),
    ],
)
def test_a_fall_is_let_through_a_window_after_it_and_ever_after(window_s, turn_s):
    marks = steps.remember((), 9.0, window_s, NOW)
    found = []
    for turn in range(1, 200):
        now = NOW + turn * turn_s
        marks = steps.remember(marks, 1.0, window_s, now)
        found.append((now - NOW, steps.stabilise(1, 9, marks, None, window_s, now)))
    assert {pods for at_s, pods in found if at_s < window_s} <= {9}
    assert {pods for at_s, pods in found if at_s > window_s + 2 * max(turn_s, steps.part_of(window_s))} == {1}


def _values(marks: tuple[Mark, ...]) -> list[float]:
    return [mark.value for mark in marks]


@pytest.mark.parametrize(
    ("demand", "deviation", "first", "expected"),
    [
        pytest.param(4.0, 0.0, 2.0, 6.0, id="a rise over 300 s goes on for 300 s, up to half more"),
        pytest.param(4.0, 0.0, 3.0, 5.0, id="a rise goes on as it was"),
        pytest.param(4.0, 0.0, 5.0, 4.0, id="a fall foresees nothing"),
        pytest.param(4.0, 0.5, 3.0, 4.0, id="a rise within noise foresees nothing"),
    ],
)
def test_what_is_foreseen(demand, deviation, first, expected):
    marks = (Mark(int(NOW) - 300, first),)
    assert steps.foresee(demand, deviation, marks, 300, NOW) == pytest.approx(expected)


def test_without_a_past_nothing_is_foreseen():
    assert steps.foresee(4.0, 0.0, (), 300, NOW) == 4.0


# --- from a need to replicas -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("need", "roomy", "replicas", "expected"),
    [
        pytest.param(5, 6, 4, 5, id="more is taken at once, without the margin"),
        pytest.param(3, 4, 4, 4, id="a smaller fleet that lacks the margin is not taken"),
        pytest.param(3, 3, 4, 3, id="a smaller fleet with the margin is"),
        pytest.param(4, 5, 4, 4, id="the margin alone adds no pod"),
    ],
)
def test_tolerance(need, roomy, replicas, expected):
    assert steps.tolerate(need, roomy, replicas) == expected


@pytest.mark.parametrize(
    ("wanted", "replicas", "expected"),
    [
        pytest.param(20, 8, 16, id="at most twice as many"),
        pytest.param(20, 1, 5, id="of few pods four more"),
        pytest.param(7, 6, 7, id="a small step up is taken whole"),
        pytest.param(1, 8, 6, id="a quarter fewer at once"),
        pytest.param(1, 2, 1, id="one fewer at least"),
        pytest.param(3, 3, 3, id="nothing stays nothing"),
        pytest.param(4, 0, 4, id="from none"),
    ],
)
def test_damping(wanted, replicas, expected):
    assert steps.damp(wanted, replicas) == expected


@pytest.mark.parametrize(
    ("wanted", "replicas", "needs", "expected"),
    [
        pytest.param(5, 4, (2.0,), 5, id="up at once, whatever was needed before"),
        pytest.param(2, 4, (2.0, 3.0), 3, id="down to the highest of the window"),
        pytest.param(2, 4, (6.0, 2.0), 4, id="a high need of before does not raise"),
        pytest.param(2, 4, (), 4, id="without a past not down"),
    ],
)
def test_stabilising(wanted, replicas, needs, expected):
    marks = tuple(Mark(int(NOW) - 300 + 10 * number, need) for number, need in enumerate(needs))
    assert steps.stabilise(wanted, replicas, marks, None, 300, NOW) == expected


def test_a_window_that_is_not_yet_known_is_no_reason_to_fall():
    marks = (Mark(int(NOW) - 290, 1.0), Mark(int(NOW) - 10, 1.0))
    assert steps.stabilise(1, 4, marks, None, 300, NOW) == 4
    assert steps.stabilise(1, 4, marks, None, 300, NOW + 10) == 1


def test_no_fall_within_the_window_after_a_rise_whatever_it_came_of():
    marks = (Mark(int(NOW) - 330, 1.0), Mark(int(NOW) - 10, 1.0))
    assert steps.stabilise(1, 4, marks, int(NOW) - 300, 300, NOW) == 4
    assert steps.stabilise(1, 4, marks, int(NOW) - 301, 300, NOW) == 1
    assert steps.stabilise(5, 4, marks, int(NOW) - 10, 300, NOW) == 5


def test_damping_counts_from_where_its_period_began_however_often_one_asks():
    assert NOW % steps.PERIOD_S == 0
    base = steps.base(None, 4, NOW + 1)
    assert base == Mark(int(NOW), 4)
    assert steps.base(base, 8, NOW + 14) == base
    assert steps.base(base, 8, NOW + 15) == Mark(int(NOW) + 15, 8)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        pytest.param(None, 0, id="long waits raised nothing"),
        pytest.param(Mark(int(NOW) - 300, 5), 5, id="what they raised stays for a while"),
        pytest.param(Mark(int(NOW) - 301, 5), 0, id="and no longer"),
    ],
)
def test_the_floor_of_long_waits(raised, expected):
    assert steps.floor(raised, 300, NOW) == expected


def test_parts_of_windows_are_whole_periods():
    assert [steps.part_of(window_s) for window_s in (60, 300, 600, 3600)] == [15, 30, 60, 300]
    assert steps.began(NOW + 59.9, 60) == steps.began(NOW, 60) == NOW


@pytest.mark.parametrize(
    ("prefill", "decode", "bounds", "expected"),
    [
        pytest.param(4, 2, None, (4, 2), id="no bounds"),
        pytest.param(4, 2, (1.0, 2.0), (4, 2), id="within"),
        pytest.param(1, 4, (0.5, 2.0), (2, 4), id="too few prefill pods are raised"),
        pytest.param(5, 2, (0.5, 2.0), (5, 3), id="too few decode pods are raised"),
        pytest.param(6, 2, (3.0, 3.0), (6, 2), id="a fixed ratio that is kept"),
    ],
)
def test_the_ratio(prefill, decode, bounds, expected):
    assert steps.keep_ratio(prefill, decode, bounds) == expected


def test_the_ratio_is_kept_whatever_was_wanted():
    rng = random.Random(1)
    for _ in range(500):
        low = rng.uniform(0.2, 3)
        bounds = (low, low * rng.uniform(2, 4))
        before = rng.randint(1, 30), rng.randint(1, 30)
        prefill, decode = steps.keep_ratio(*before, bounds)
        assert bounds[0] - 1e-9 <= prefill / decode <= bounds[1] + 1e-9
        assert (prefill >= before[0], decode >= before[1]) == (True, True)


@pytest.mark.parametrize(("wanted", "expected"), [(0, 2), (2, 2), (5, 5), (9, 8)])
def test_bounds(wanted, expected):
    assert steps.bound(wanted, RoleRules(2, 8)) == expected


@pytest.mark.parametrize(
    ("wanted", "present", "quota", "expected"),
    [
        pytest.param((8, 8), (2, 2), None, (8, 8), id="no quota"),
        pytest.param((4, 2), (2, 2), 24, (4, 2), id="enough"),
        pytest.param((8, 8), (2, 2), 24, (3, 3), id="what is left goes to both alike"),
        pytest.param((8, 2), (4, 4), 24, (4, 2), id="one that falls frees for the other"),
        pytest.param((6, 4), (4, 4), 8, (4, 4), id="what there is stays above a quota that was cut"),
        pytest.param((6, 4), (0, 0), 0, (0, 0), id="no accelerators at all"),
    ],
)
def test_the_budget_of_accelerators(wanted, present, quota, expected):
    rules = {P: RoleRules(1, 8, accelerators=4), D: RoleRules(1, 8, accelerators=4)}
    given = steps.budget(dict(zip((P, D), wanted, strict=True)), dict(zip((P, D), present, strict=True)), rules, quota)
    assert (given[P], given[D]) == expected


def test_a_role_without_accelerators_is_not_held_back_by_a_quota():
    assert steps.budget({P: 9}, {P: 1}, {P: RoleRules(1, 9)}, 0) == {P: 9}


def test_nor_by_what_another_role_has_beyond_a_quota_that_was_lowered():
    rules = {P: RoleRules(1, 9, accelerators=4), D: RoleRules(1, 9)}
    assert steps.budget({P: 5, D: 3}, {P: 4, D: 1}, rules, 8) == {P: 4, D: 3}


@pytest.mark.parametrize(
    ("need", "sure", "fell_at_s", "expected"),
    [
        pytest.param(5, 4, None, 5, id="no fall"),
        pytest.param(5, 4, int(NOW) - 301, 5, id="a fall of long ago"),
        pytest.param(5, 4, int(NOW) - 60, 4, id="what may be noise waits"),
        pytest.param(9, 7, int(NOW) - 60, 7, id="what is sure does not"),
        pytest.param(3, 2, int(NOW) - 60, 3, id="a further fall is none of its matter"),
    ],
)
def test_calm_after_a_fall(need, sure, fell_at_s, expected):
    assert steps.calm(need, sure, 4, fell_at_s, 300, NOW) == expected


def test_a_backlog_is_left_to_pods_that_start():
    assert steps.drain_time(120, 0, 300) == 120
    assert steps.drain_time(120, 2, 300) == 420


# --- waits, gaps, memory ---------------------------------------------------------------------------------------


def test_waits_grow_with_load_and_fall_with_pods():
    by_load = [waits.wait_at(0.95, 4, load / 10, 1.0, 1.0) for load in range(1, 10)]
    assert by_load == sorted(by_load)
    assert by_load[0] == 0
    by_pods = [waits.wait_at(0.95, pods, 0.9, 1.0, 1.0) for pods in range(1, 20)]
    assert by_pods == sorted(by_pods, reverse=True)
    assert waits.wait_at(0.95, 4, 1.0, 1.0, 1.0) == math.inf


def test_one_server_waits_as_the_exact_formula_of_exponential_work_says():
    # M/M/1: P(wait > t) = rho e^(-(1 - rho) t / S), so the P95 at rho 0.8, S 1 is ln(0.8 / 0.05) / 0.2.
    assert waits.wait_at(0.95, 1, 0.8, 1.0, 1.0) == pytest.approx(math.log(0.8 / 0.05) / 0.2)


@pytest.mark.parametrize(
    ("gap_s", "full_s", "decode_s", "expected"),
    [
        pytest.param(0.2, 0.1, 0.02, 1.0, id="full steps keep the gap by themselves"),
        pytest.param(0.2, 0.4, 0.05, (20 - 5) / (20 - 2.5), id="decode steps between full ones keep it"),
        pytest.param(0.04, 0.4, 0.05, 0.0, id="decode alone takes longer"),
        pytest.param(0.2, 0.4, 0.4, 0.0, id="a full step takes no longer than one of decodes"),
        pytest.param(0.2, 0.4, 0.0, 1.0, id="nothing is known of decode steps"),
    ],
)
def test_the_load_that_a_gap_allows(gap_s, full_s, decode_s, expected):
    assert waits.load_by_gap(gap_s, full_s, decode_s) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("seen_s", "running", "fixed_s", "expected"),
    [
        pytest.param(0.1, 40, 0.02, 0.0, id="the gap is kept"),
        pytest.param(0.38, 40, 0.02, 4 * 0.36 / 0.18, id="what grows with the sequences is shared by more pods"),
        pytest.param(0.38, 0, 0.02, 0.0, id="nothing runs"),
        pytest.param(0.38, 40, 0.25, math.inf, id="no number of pods keeps a gap below a step's fixed part"),
    ],
)
def test_decode_pods_by_gap(seen_s, running, fixed_s, expected):
    assert waits.pods_by_gap(0.2, seen_s, running, 4, fixed_s) == pytest.approx(expected)


def test_pods_by_kv_count_what_waits_where_caches_are_full():
    assert waits.pods_by_kv(0.85, 4, 0, 100_000) == pytest.approx(4)
    assert waits.pods_by_kv(0.85, 4, 85_000, 100_000) == pytest.approx(5)
    assert waits.pods_by_kv(0.85, 4, 85_000, 0) == pytest.approx(4)
    assert waits.pods_by_kv(0.425, 4, 85_000, 100_000) == pytest.approx(2)


@pytest.mark.parametrize(
    ("least", "most", "wall", "expected"), [(1, 8, 5, 5), (1, 8, 1, 1), (1, 8, 9, None), (3, 2, 1, None)]
)
def test_the_smallest_that_keeps(least, most, wall, expected):
    assert waits.smallest(lambda pods: pods >= wall, least, most) == expected


# --- what pods are worth ---------------------------------------------------------------------------------------


def _pod(tokens: float, busy: float = 1.0, waiting: float = 3.0) -> PodServed:
    return PodServed("p", tokens, busy=busy, waiting=waiting)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([_pod(80), _pod(120)], Capacity(1.0, 0.2), id="mean and spread of the pods"),
        pytest.param([_pod(90, busy=0.9)], Capacity(1.0, 0.0), id="time outside steps does not count"),
        pytest.param([_pod(50, busy=0.5), _pod(50, waiting=0.0)], None, id="idle pods say nothing"),
        pytest.param([_pod(50), _pod(90, waiting=0.0)], None, id="the few that are busy say nothing of all"),
        pytest.param([], None, id="no pods say nothing"),
    ],
)
def test_capacity(pods, expected):
    seen = capacity_of(pods, lambda pod: pod.prefill_tokens / 100)
    assert (seen is None) == (expected is None)
    if seen is not None and expected is not None:
        assert (seen.mean, seen.spread) == pytest.approx((expected.mean, expected.spread))


def test_capacity_is_learnt_slowly_and_kept_within_reason():
    assert learn(None, Capacity(0.8)) == Capacity(0.8)
    assert learn(Capacity(0.8), Capacity(1.0)).mean == pytest.approx(0.81)
    assert plausible(None) == NOMINAL
    assert plausible(Capacity(0.01)).mean == 0.5
    assert Capacity(1.0, 0.1).low == 0.9
    assert Capacity(1.0, 2.0).low == 0.5


# --- tune or scale ---------------------------------------------------------------------------------------------

LONG_AGO, JUST_NOW = int(NOW) - 1000, int(NOW) - 100


@pytest.mark.parametrize(
    ("signal", "memory", "expected"),
    [
        pytest.param(None, WaitsMemory(), Act.NOTHING, id="nothing is known"),
        pytest.param(WaitSignal(None, 8.0), WaitsMemory(), Act.NOTHING, id="unknown is no zero"),
        pytest.param(WaitSignal(7.2, 8.0), WaitsMemory(), Act.SCALE, id="capacity is short: the fleet grows"),
        pytest.param(WaitSignal(7.2, 8.0, unfit=True), WaitsMemory(), Act.SCALE, id="also under an unfit threshold"),
        pytest.param(WaitSignal(7.1, 8.0, unfit=True), WaitsMemory(), Act.TUNE, id="an unfit threshold is tuned"),
        pytest.param(WaitSignal(7.1, 8.0), WaitsMemory(), Act.NOTHING, id="all is well"),
        pytest.param(
            WaitSignal(7.2, 8.0), WaitsMemory(Act.TUNE, JUST_NOW), Act.WAIT, id="no scaling while tuning cools down"
        ),
        pytest.param(
            WaitSignal(7.1, 8.0, unfit=True),
            WaitsMemory(Act.SCALE, JUST_NOW),
            Act.WAIT,
            id="no tuning while scaling cools down",
        ),
        pytest.param(WaitSignal(7.2, 8.0), WaitsMemory(Act.TUNE, LONG_AGO), Act.SCALE, id="after the cooldown"),
    ],
)
def test_tune_or_scale(signal, memory, expected):
    act, after, _ = arbitrate(signal, memory, 900, NOW)
    assert act is expected
    assert after == (WaitsMemory(act, int(NOW)) if act in (Act.TUNE, Act.SCALE) else memory)
