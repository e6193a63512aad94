"""The tuner's threshold as tables: what is seen, what was set, what is decided."""

import random
from dataclasses import replace
from itertools import islice

import pytest
from prefleet_operator.core.observed import Missing, Stale
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.tuner import decide
from prefleet_operator.core.tuning import TunerMemory
from prefleet_operator.core.valley import find_valleys

from tests.support.lengths import demo_mix, exact_quantile, histogram, trace_lengths, two_kinds
from tests.support.policies import make_spec
from tests.support.tuning import (
    EQUAL,
    FCFS,
    JUST_NOW,
    MIX,
    NOW,
    ONE_KIND,
    SRF,
    TUNED,
    fresh,
    seen,
)


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
