"""What the threshold study makes of the wide buckets that engines of their own show."""

import random
from dataclasses import replace

import pytest
from prefleet_operator.api import SchedulingPolicy, parse_spec
from prefleet_operator.core.histogram import share_span
from prefleet_operator.core.native_policy import as_run
from prefleet_operator.core.observed import FleetMetrics, HistogramSnapshot, Sample
from prefleet_operator.core.threshold import study_lengths
from prefleet_operator.core.tuner import decide
from prefleet_operator.core.tuning import TunerMemory
from prefleet_operator.core.valley import find_valleys
from prefleet_runtime.sim.vllm_metrics import one_two_five

from tests.support.lengths import demo_mix, exact_quantile, histogram
from tests.support.native.series import LIGHTLLM_LENGTHS, MINDIE_LENGTHS, SGLANG_LENGTHS

NOW = 1_800_000_000.0
BOUNDS = {
    "VLLMAscend": one_two_five(131072),
    "LightLLM": LIGHTLLM_LENGTHS[1:],
    "SGLang": tuple(float(bound) for bound in SGLANG_LENGTHS),
    "MindIE": tuple(float(bound) for bound in MINDIE_LENGTHS),
}
ENGINES = pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
ONE_KIND = {
    "lognormal": lambda rng: rng.lognormvariate(7, 1),
    "exponential": lambda rng: rng.expovariate(1 / 2000),
    "even in the logarithm": lambda rng: 2 ** rng.uniform(4, 13),
    "constant": lambda rng: 1000,
}
SPEC = as_run(
    parse_spec(
        {
            "model": {"source": {"hub": {"repo": "example/model"}}, "servedName": "model"},
            "engine": {"type": "VLLMAscend", "version": "0.25.1rc1"},
            "mixed": {"replicas": 1},
        }
    )
)


def seen(lengths: HistogramSnapshot) -> FleetMetrics:
    return FleetMetrics(lengths=Sample(lengths, NOW))


@ENGINES
@pytest.mark.parametrize("kind", ONE_KIND)
def test_one_kind_of_requests_has_no_valley(kind, bounds):
    for seed in range(10):
        rng = random.Random(seed)
        lengths = [max(1, round(ONE_KIND[kind](rng))) for _ in range(1000)]
        assert find_valleys(histogram(lengths, bounds)) == ()


@ENGINES
def test_two_kinds_fall_apart_at_a_bound_between_them(bounds):
    for seed in range(10):
        lengths = demo_mix(1000, seed)
        (valley,) = find_valleys(histogram(lengths, bounds))
        assert 1000 <= valley.floor <= 3000
        # Around 200 and around 6,000 tokens, three to one.
        assert sum(length <= valley.floor for length in lengths) / 1000 == pytest.approx(0.75, abs=0.06)


@ENGINES
def test_the_intervals_hold_the_true_quantiles(bounds):
    for seed in range(10):
        rng = random.Random(seed)
        lengths = [max(1, round(rng.lognormvariate(7, 1))) for _ in range(1000)]
        study = study_lengths(Sample(histogram(lengths, bounds), NOW), SPEC)
        assert study.low.low <= exact_quantile(lengths, 0.70) <= study.low.high
        assert study.high.low <= exact_quantile(lengths, 0.85) <= study.high.high


@pytest.mark.parametrize("spread", [0.5, 1.0, 1.5])
def test_a_threshold_set_on_coarse_buckets_stays_where_it_was_set(spread):
    memory, thresholds = TunerMemory(), set()
    for seed in range(20):
        rng = random.Random(seed)
        lengths = [max(1, round(rng.lognormvariate(7, spread))) for _ in range(600)]
        _, memory = decide(seen(histogram(lengths, BOUNDS["VLLMAscend"])), SPEC, memory, NOW + 3600 * seed)
        thresholds.add(memory.threshold)
    assert len(thresholds) == 1


def test_a_split_inside_a_bucket_is_called_a_guess_with_its_span():
    lengths = histogram([700] * 300 + [9000] * 100, BOUNDS["VLLMAscend"])
    memory = TunerMemory(SchedulingPolicy.SHORT_REQUEST_FIRST, threshold=700)
    pinned = SPEC.model_copy(update={"scheduling": SPEC.scheduling.model_copy(update={"threshold": 700})})
    decision, _ = decide(seen(lengths), pinned, memory, NOW)
    assert "of requests (a guess inside a bucket: 0% to 75%) with" in decision.threshold_finding.message


def test_a_split_at_a_bound_is_no_guess():
    lengths = histogram(demo_mix(1000, seed=1), BOUNDS["VLLMAscend"])
    decision, _ = decide(seen(lengths), SPEC, TunerMemory(), NOW)
    assert decision.threshold == 1000
    assert "guess" not in decision.threshold_finding.message


def test_the_span_of_a_share_is_that_of_its_bucket():
    lengths = HistogramSnapshot((1.0, 2.0, 5.0), (1.0, 2.0, 3.0, 4.0))
    assert share_span(lengths, 2.0) == (0.3, 0.3)
    assert share_span(lengths, 3.0) == (0.3, 0.6)
    assert share_span(lengths, 9.0) == (0.6, 1.0)


def test_a_waits_histogram_alone_tunes_nothing():
    metrics = replace(seen(histogram([100] * 10)), waits=Sample(histogram([1.0] * 500), NOW))
    decision, memory = decide(metrics, SPEC, TunerMemory(), NOW)
    assert (decision.policy, memory.long_max_wait_s) == (SchedulingPolicy.FCFS, 0)
