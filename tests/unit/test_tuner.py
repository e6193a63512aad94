"""The tuner's rules as tables: what is seen, what was set, what is decided."""

import random
from dataclasses import replace
from itertools import islice

import pytest
from prefleet_operator.api import SchedulingPolicy
from prefleet_operator.core.observed import FleetMetrics, HistogramSnapshot, Missing, Reading, Sample, Stale
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.tuner import decide
from prefleet_operator.core.tuning import TunerMemory
from prefleet_operator.core.valley import find_valleys

from tests.support.lengths import demo_mix, exact_quantile, histogram, trace_lengths, two_kinds
from tests.support.policies import make_spec

FCFS, SRF = SchedulingPolicy.FCFS, SchedulingPolicy.SHORT_REQUEST_FIRST
NOW = 1_800_000_000.0
LONG_AGO = int(NOW) - 3600
JUST_NOW = int(NOW) - 60
WAIT_BOUNDS = tuple(2.0 ** (step / 4) for step in range(-40, 45))
NO_WAITS = Sample(HistogramSnapshot((), (0.0,)), NOW)

MIX = demo_mix(1000, seed=1)
ONE_KIND = [round(random.Random(seed).lognormvariate(7, 1)) for seed in range(1000)]
EQUAL = [1000 + seed % 50 for seed in range(1000)]

TUNED = TunerMemory(SRF, threshold=1448, threshold_moved_at_s=LONG_AGO)


def fresh(lengths: list[int]) -> Reading[HistogramSnapshot]:
    return Sample(histogram(lengths), NOW)


def waits(*values: float) -> Reading[HistogramSnapshot]:
    return Sample(histogram(values, WAIT_BOUNDS), NOW)


def seen(
    lengths: Reading[HistogramSnapshot] = fresh(MIX),
    long_waits: Reading[HistogramSnapshot] = NO_WAITS,
    oldest_s: Reading[float] = Sample(0.0, NOW),
) -> FleetMetrics:
    return FleetMetrics(lengths=lengths, long_waits=long_waits, oldest_long_wait_s=oldest_s)


# --- the threshold ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [300, 600, 1000, 3000])
def test_the_two_kinds_of_the_demo_are_told_apart_at_the_valley(n):
    for seed in range(20):
        lengths = demo_mix(n, seed)
        decision, memory = decide(seen(fresh(lengths)), make_spec(), TunerMemory(), NOW)
        assert (decision.policy, decision.threshold) == (SRF, decision.valley)
        assert 1000 <= decision.threshold <= 2000
        assert decision.threshold_finding.reason is Reason.VALLEY
        assert memory.threshold == decision.threshold


@pytest.mark.parametrize(
    "trace",
    [
        "AzureLLMInferenceTrace_conv_2023.csv",
        "mooncake_conversation_trace.jsonl",
        "vidur_arxiv_summarization_lengths.csv",
    ],
)
@pytest.mark.parametrize("part", [slice(0, 1000), slice(5000, 8000), slice(None)], ids=["1000", "3000", "all"])
def test_on_a_public_trace_the_threshold_lies_in_the_band_or_at_its_valley(trace, part):
    lengths = trace_lengths(trace)[part]
    decision, _ = decide(seen(fresh(lengths)), make_spec(), TunerMemory(), NOW)
    chosen = decision.threshold_finding.value
    in_band = exact_quantile(lengths, 0.70) <= chosen <= exact_quantile(lengths, 0.85)
    assert in_band or chosen == decision.valley


def test_a_valley_below_the_band_wins_where_longs_are_many():
    lengths = list(islice(two_kinds(random.Random(1), long_share=0.45), 2000))
    decision, _ = decide(seen(fresh(lengths)), make_spec(), TunerMemory(), NOW)
    assert decision.threshold == decision.valley
    assert decision.threshold < decision.band.low


def test_a_valley_that_leaves_most_work_among_the_longs_does_not_win():
    # 30% around 1,000 tokens and 70% around 10,000: the valley between them splits off 3% of the work.
    rng = random.Random(1)
    lengths = [round(rng.lognormvariate(6.9, 0.3)) for _ in range(300)]
    lengths += [round(rng.lognormvariate(9.2, 0.8)) for _ in range(700)]
    assert find_valleys(histogram(lengths))
    decision, _ = decide(seen(fresh(lengths)), make_spec(), TunerMemory(), NOW)
    assert decision.valley is None
    assert decision.threshold_finding.reason is Reason.BAND_OPTIMUM
    assert decision.band.low <= decision.threshold <= decision.band.high


THRESHOLDS = [
    # id, lengths, memory, spec.tuning, policy, threshold, reason
    ("before minSamples a fleet runs FCFS", fresh(MIX[:299]), TunerMemory(), {}, FCFS, None, Reason.LEARNING_LENGTHS),
    ("with minSamples the first setting goes to the valley", fresh(MIX), TunerMemory(), {}, SRF, 1218, Reason.VALLEY),
    ("missing lengths of a new fleet mean FCFS", Missing("x"), TunerMemory(), {}, FCFS, None, Reason.METRICS_MISSING),
    ("missing lengths hold", Missing("no answer"), TUNED, {}, SRF, 1448, Reason.METRICS_MISSING),
    ("stale lengths hold", Stale(histogram(EQUAL), NOW - 300), TUNED, {}, SRF, 1448, Reason.METRICS_STALE),
    ("a quiet night holds", fresh(MIX[:10]), TUNED, {}, SRF, 1448, Reason.LEARNING_LENGTHS),
    ("no requests at all are no zero", fresh([]), TUNED, {}, SRF, 1448, Reason.LEARNING_LENGTHS),
    (
        "a threshold on the valley's slope holds",
        fresh(MIX),
        replace(TUNED, threshold=1100),
        {},
        SRF,
        1100,
        Reason.VALLEY,
    ),
    (
        "a threshold below the valley moves by a factor of two at most",
        fresh(MIX),
        replace(TUNED, threshold=200),
        {},
        SRF,
        400,
        Reason.VALLEY,
    ),
    (
        "a threshold above the valley moves by a factor of two at most",
        fresh(MIX),
        replace(TUNED, threshold=9001),
        {},
        SRF,
        4501,
        Reason.VALLEY,
    ),
    (
        "a threshold off the valley waits for the cooldown",
        fresh(MIX),
        replace(TUNED, threshold=200, threshold_moved_at_s=JUST_NOW),
        {},
        SRF,
        200,
        Reason.COOLING_DOWN,
    ),
    (
        "the cooldown ends on the second",
        fresh(MIX),
        replace(TUNED, threshold=200, threshold_moved_at_s=JUST_NOW),
        {"cooldown": "60s"},
        SRF,
        400,
        Reason.VALLEY,
    ),
    (
        "without a valley a threshold in the band holds",
        fresh(ONE_KIND),
        replace(TUNED, threshold=2500),
        {},
        SRF,
        2500,
        Reason.WITHIN_BAND,
    ),
    (
        "without a valley a threshold outside the band moves into it",
        fresh(ONE_KIND),
        replace(TUNED, threshold=1200),
        {},
        SRF,
        2400,
        Reason.BAND_OPTIMUM,
    ),
    ("equal lengths are not worth splitting", fresh(EQUAL), TunerMemory(), {}, FCFS, None, Reason.NO_LENGTH_SPREAD),
    (
        "lengths that have become equal end the splitting",
        fresh(EQUAL),
        replace(TUNED, threshold=1024),
        {},
        FCFS,
        None,
        Reason.NO_LENGTH_SPREAD,
    ),
    (
        "the switch to FCFS waits for the cooldown",
        fresh(EQUAL),
        replace(TUNED, threshold=1024, threshold_moved_at_s=JUST_NOW),
        {},
        SRF,
        1024,
        Reason.WITHIN_BAND,
    ),
    (
        "a mix that has come apart again ends FCFS",
        fresh(MIX),
        replace(TUNED, policy=FCFS),
        {},
        SRF,
        1448,
        Reason.VALLEY,
    ),
]


@pytest.mark.parametrize(
    ("lengths", "memory", "tuning", "policy", "threshold", "reason"),
    [pytest.param(*row[1:], id=row[0]) for row in THRESHOLDS],
)
def test_threshold(lengths, memory, tuning, policy, threshold, reason):
    decision, _ = decide(seen(lengths), make_spec(tuning=tuning), memory, NOW)
    assert (decision.policy, decision.threshold, decision.threshold_finding.reason) == (policy, threshold, reason)


def test_the_guard_holds_its_choice_between_its_two_limits():
    # Even between 0 and 8,000: 43% of requests with 18.5% of work, r = 0.61/0.83 = 0.73.
    lengths = [8 * step for step in range(1, 1001)]
    spec = make_spec(tuning={"band": {"low": 40, "high": 45}})
    for policy in (FCFS, SRF):
        memory = replace(TUNED, policy=policy, threshold=3444)
        decision, _ = decide(seen(fresh(lengths)), spec, memory, NOW)
        assert "r=0.73" in decision.threshold_finding.message
        assert decision.policy is policy


# --- the wait limit --------------------------------------------------------------------------------------------

# W_slo is 8 s: the limit lies in [max(1.5 W_normal, 4), 7.2].
RUNNING = replace(TUNED, long_max_wait_s=5.0, wait_moved_at_s=LONG_AGO)

WAITS = [
    # id, long waits, oldest, memory, spec (tuning, slo, scheduling), limit, reason, capacity limited
    ("a new fleet starts without promotion", waits(*[1.0] * 58), 0, TUNED, {}, 0.0, Reason.LEARNING_WAITS, False),
    (
        "59 long waits are enough for P95",
        waits(*[1.0] * 59),
        0,
        TUNED,
        {},
        5.6,  # the middle of [4, 7.2]
        Reason.WAIT_FROM_LONG_WAITS,
        False,
    ),
    (
        "29 long waits are enough for P90",
        waits(*[1.0] * 29),
        0,
        TUNED,
        {"tuning": {"waitQuantile": "P90"}},
        5.6,
        Reason.WAIT_FROM_LONG_WAITS,
        False,
    ),
    (
        "bias 0 favours long requests and names the low end",
        waits(*[1.0] * 59),
        0,
        TUNED,
        {"tuning": {"bias": 0.0}},
        4.0,
        Reason.WAIT_FROM_LONG_WAITS,
        False,
    ),
    (
        "bias 1 favours short requests and names the high end",
        waits(*[1.0] * 59),
        0,
        TUNED,
        {"tuning": {"bias": 1.0}},
        7.2,
        Reason.WAIT_FROM_LONG_WAITS,
        False,
    ),
    (
        "the low end is one and a half times W_normal",
        # All in (3.36, 4]: P95 is 3.36 x (4/3.36)^0.95 = 3.966, and the low end 5.948.
        waits(*[4.0] * 100),
        0,
        TUNED,
        {"tuning": {"bias": 0.0}},
        5.948,
        Reason.WAIT_FROM_LONG_WAITS,
        False,
    ),
    (
        "an empty range means the ceiling, and that capacity is short",
        waits(*[6.0] * 100),
        0,
        TUNED,
        {},
        7.2,
        Reason.CAPACITY_LIMITED,
        True,
    ),
    (
        "a long request that waits beyond the SLO begins promotion at once",
        NO_WAITS,
        8.1,
        TUNED,
        {},
        7.2,
        Reason.LONG_WAIT_BEYOND_SLO,
        False,
    ),
    (
        "so does one that has waited beyond the SLO",
        waits(1.0, 11.0),
        0,
        TUNED,
        {},
        7.2,
        Reason.LONG_WAIT_BEYOND_SLO,
        False,
    ),
    (
        "a wait beyond the SLO moves nothing once promotion runs",
        waits(1.0, 11.0),
        9.0,
        RUNNING,
        {},
        5.0,
        Reason.LEARNING_WAITS,
        False,
    ),
    ("missing waits hold", Missing("no answer"), 0, RUNNING, {}, 5.0, Reason.METRICS_MISSING, False),
    ("stale waits hold", Stale(histogram([9.0] * 99), NOW - 300), 0, RUNNING, {}, 5.0, Reason.METRICS_STALE, False),
    (
        "a difference of a quarter holds",
        waits(*[1.0] * 59),
        0,
        RUNNING,
        {},
        5.0,
        Reason.WITHIN_HYSTERESIS,
        False,
    ),
    (
        "a larger difference moves",
        waits(*[1.0] * 59),
        0,
        replace(RUNNING, long_max_wait_s=4.0),
        {},
        5.6,
        Reason.WAIT_FROM_LONG_WAITS,
        False,
    ),
    (
        "within the cooldown nothing moves",
        waits(*[1.0] * 59),
        0,
        replace(RUNNING, long_max_wait_s=4.0, wait_moved_at_s=JUST_NOW),
        {},
        4.0,
        Reason.COOLING_DOWN,
        False,
    ),
    (
        "waits from under another threshold move nothing",
        waits(*[1.0] * 59),
        0,
        replace(RUNNING, long_max_wait_s=4.0, threshold_moved_at_s=int(NOW) - 299),
        {},
        4.0,
        Reason.COOLING_DOWN,
        False,
    ),
    (
        "once the window holds none of them it moves",
        waits(*[1.0] * 59),
        0,
        replace(RUNNING, long_max_wait_s=4.0, threshold_moved_at_s=int(NOW) - 300),
        {},
        5.6,
        Reason.WAIT_FROM_LONG_WAITS,
        False,
    ),
    (
        "the first limit waits for no window",
        waits(*[1.0] * 59),
        0,
        replace(TUNED, threshold_moved_at_s=JUST_NOW),
        {},
        5.6,
        Reason.WAIT_FROM_LONG_WAITS,
        False,
    ),
    (
        "an SLO that the user has lowered cuts the limit at once",
        Missing("no answer"),
        0,
        replace(RUNNING, wait_moved_at_s=JUST_NOW),
        {"slo": {"longQueueWait": "4s"}},
        3.6,
        Reason.SLO_LOWERED,
        False,
    ),
    (
        "above a share of 0.25 promoted waits tell nothing of W_normal",
        waits(*[1.0] * 99),
        0,
        RUNNING,
        {"scheduling": {"agedShare": 0.5}},
        5.0,
        Reason.LEARNING_WAITS,
        False,
    ),
    (
        "without promotion the share does not matter",
        waits(*[1.0] * 99),
        0,
        TUNED,
        {"scheduling": {"agedShare": 0.5}},
        5.6,
        Reason.WAIT_FROM_LONG_WAITS,
        False,
    ),
]


@pytest.mark.parametrize(
    ("long_waits", "oldest_s", "memory", "spec", "limit_s", "reason", "capacity_limited"),
    [pytest.param(*row[1:], id=row[0]) for row in WAITS],
)
def test_wait_limit(long_waits, oldest_s, memory, spec, limit_s, reason, capacity_limited):
    metrics = seen(long_waits=long_waits, oldest_s=Sample(oldest_s, NOW))
    decision, after = decide(metrics, make_spec(**spec), memory, NOW)
    assert (decision.long_max_wait_s, decision.wait_finding.reason) == (limit_s, reason)
    assert decision.capacity_limited is capacity_limited
    assert after.long_max_wait_s == limit_s
    measured = reason in (Reason.WAIT_FROM_LONG_WAITS, Reason.WITHIN_HYSTERESIS, Reason.CAPACITY_LIMITED)
    assert (decision.normal_wait_s is not None) == (measured or reason is Reason.COOLING_DOWN)


@pytest.mark.parametrize(
    "oldest_s",
    [Missing("no answer"), Stale(99.0, NOW - 300)],
    ids=["a missing oldest wait ends nothing", "a stale oldest wait ends nothing"],
)
def test_no_promotion_goes_on(oldest_s):
    decision, _ = decide(seen(oldest_s=oldest_s), make_spec(), TUNED, NOW)
    assert decision.long_max_wait_s == 0


def test_an_unknown_tail_is_said():
    decision, _ = decide(seen(long_waits=waits(*[1.0] * 99), oldest_s=Sample(5.0, NOW)), make_spec(), TUNED, NOW)
    assert "its tail is unknown" in decision.wait_finding.message


# --- pins and modes --------------------------------------------------------------------------------------------

PINS = {"threshold": 700, "longMaxWait": "3s"}
PROMOTE = {"policy": "PromoteShortest"}
ADVISE = {"mode": "Advise"}
HRRN, PROMOTE_SHORTEST = SchedulingPolicy.HRRN, SchedulingPolicy.PROMOTE_SHORTEST
UNTUNED = Reason.NOTHING_TO_TUNE
BUSY = seen(long_waits=waits(*[1.0] * 99), oldest_s=Sample(20.0, NOW))

MODES = [
    # id, scheduling, tuning, effective policy, threshold, limit, reasons
    ("pinned values never move", PINS, {}, SRF, 700, 3.0, Reason.PINNED, Reason.PINNED),
    ("a pinned threshold leaves the wait tuned", {"threshold": 700}, {}, SRF, 700, 7.2, Reason.PINNED, None),
    ("a pinned wait leaves the threshold tuned", {"longMaxWait": "3s"}, {}, SRF, 1218, 3.0, None, Reason.PINNED),
    ("a pin of 0s means no promotion", {"longMaxWait": "0s"}, {}, SRF, 1218, 0.0, None, Reason.PINNED),
    ("Off runs the pins", PINS, {"mode": "Off"}, SRF, 700, 3.0, Reason.TUNING_OFF, Reason.TUNING_OFF),
    ("Advise runs the pins", PINS, {"mode": "Advise"}, SRF, 700, 3.0, Reason.VALLEY, None),
    ("Advise without pins runs FCFS", {}, {"mode": "Advise"}, FCFS, None, 0.0, Reason.VALLEY, Reason.LEARNING_WAITS),
    ("FCFS has nothing to tune", {"policy": "FCFS"}, {}, FCFS, None, 0.0, UNTUNED, UNTUNED),
    ("HRRN has nothing to tune", {"policy": "HRRN"}, {}, HRRN, None, 0.0, UNTUNED, UNTUNED),
    ("PromoteShortest keeps pins unused", PROMOTE | PINS, {}, PROMOTE_SHORTEST, None, 0.0, UNTUNED, UNTUNED),
    ("Off runs HRRN", {"policy": "HRRN"}, {"mode": "Off"}, HRRN, None, 0.0, Reason.TUNING_OFF, Reason.TUNING_OFF),
    ("Advise may advise against FCFS", {"policy": "FCFS"}, {"mode": "Advise"}, FCFS, None, 0.0, Reason.VALLEY, None),
    ("Advise runs HRRN", {"policy": "HRRN"}, ADVISE, HRRN, None, 0.0, Reason.VALLEY, Reason.LEARNING_WAITS),
    ("Advise runs PromoteShortest", PROMOTE | PINS, ADVISE, PROMOTE_SHORTEST, None, 0.0, Reason.VALLEY, None),
]


@pytest.mark.parametrize(
    ("scheduling", "tuning", "policy", "threshold", "limit_s", "threshold_reason", "wait_reason"),
    [pytest.param(*row[1:], id=row[0]) for row in MODES],
)
def test_pins_and_modes(scheduling, tuning, policy, threshold, limit_s, threshold_reason, wait_reason):
    decision, _ = decide(BUSY, make_spec(scheduling, tuning), TunerMemory(), NOW)
    assert (decision.policy, decision.threshold, decision.long_max_wait_s) == (policy, threshold, limit_s)
    assert threshold_reason in (None, decision.threshold_finding.reason)
    assert wait_reason in (None, decision.wait_finding.reason)


@pytest.mark.parametrize("scheduling", [{}, {"policy": "HRRN"}], ids=["a fleet without pins", "a fleet under HRRN"])
def test_advice_is_reported_and_moves_nothing(scheduling):
    decision, memory = decide(BUSY, make_spec(scheduling, ADVISE), TunerMemory(), NOW)
    assert (decision.advised_policy, decision.threshold_finding.value, memory.threshold) == (SRF, 1218, 1218)
    assert not decision.moved


def test_what_a_fleet_under_fcfs_would_run_is_remembered_and_is_no_move():
    longer = [8 * length for length in EQUAL]
    decision, memory = decide(seen(fresh(longer)), make_spec(), replace(TUNED, policy=FCFS), NOW)
    assert (decision.policy, memory.threshold) == (FCFS, 2 * TUNED.threshold)
    assert decision.moves == ()


@pytest.mark.parametrize("policy", ["FCFS", "HRRN", "PromoteShortest"])
def test_a_policy_without_values_says_so_and_the_memory_stays_for_the_way_back(policy):
    decision, memory = decide(BUSY, make_spec({"policy": policy}), RUNNING, NOW)
    assert memory == RUNNING
    assert not decision.settled
    assert decision.leading.message.startswith(f"spec.scheduling.policy is {policy}, which has nothing to tune; P70 is")
    assert decision.wait_finding.message == f"spec.scheduling.policy is {policy}, which has nothing to tune"
    assert not decision.moved


def test_advice_does_not_claim_that_fcfs_runs():
    decision, _ = decide(seen(fresh([])), make_spec({"policy": "HRRN"}, ADVISE), TunerMemory(), NOW)
    assert "nothing is advised until a threshold is known" in decision.threshold_finding.message
    assert "while no threshold is in force" in decision.wait_finding.message


def test_the_first_setting_is_a_move_with_its_numbers():
    decision, _ = decide(seen(), make_spec(), TunerMemory(policy=FCFS), NOW)
    moves = {move.name: (move.before, move.after) for move in decision.moves}
    assert moves == {"policy": ("FCFS", "ShortRequestFirst"), "threshold": ("none", "1218")}
    message = decision.moves[0].message
    for part in ("P70 is", "P85 is", "(n=1,000)", "a valley at 1,218", "% of the lower peak", "r=0."):
        assert part in message


def test_what_is_pinned_is_no_move_of_the_tuner():
    decision, _ = decide(BUSY, make_spec(PINS), TUNED, NOW)
    assert decision.moves == ()


def test_a_threshold_that_is_no_longer_pinned_moves_from_where_it_was():
    _, memory = decide(seen(), make_spec({"threshold": 200}), TunerMemory(), NOW)
    decision, _ = decide(seen(), make_spec(), memory, NOW)
    assert decision.threshold == 400


@pytest.mark.parametrize(
    ("memory", "metrics", "settled", "reason"),
    [
        pytest.param(TunerMemory(), seen(fresh([])), False, Reason.LEARNING_LENGTHS, id="a new fleet is not tuned"),
        pytest.param(TUNED, seen(), False, Reason.LEARNING_WAITS, id="without a wait limit it is not tuned yet"),
        pytest.param(RUNNING, seen(), True, Reason.VALLEY, id="with both values it is tuned"),
        pytest.param(RUNNING, seen(fresh([])), True, Reason.LEARNING_LENGTHS, id="a quiet night does not untune it"),
        pytest.param(RUNNING, seen(Missing("x")), False, Reason.METRICS_MISSING, id="missing metrics are named"),
        pytest.param(
            TunerMemory(), seen(fresh(EQUAL)), True, Reason.NO_LENGTH_SPREAD, id="FCFS on evidence is tuned too"
        ),
    ],
)
def test_the_tuned_condition(memory, metrics, settled, reason):
    decision, _ = decide(metrics, make_spec(), memory, NOW)
    assert (decision.settled, decision.leading.reason) == (settled, reason)
