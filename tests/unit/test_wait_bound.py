"""The bound of long waits from the waits of all requests: it holds whichever waits were whose."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefleet_operator.api import SchedulingPolicy, parse_spec
from prefleet_operator.core.native_policy import as_run
from prefleet_operator.core.observed import FleetMetrics, HistogramSnapshot, Missing, Reading, Sample, Stale
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.survival import samples_needed
from prefleet_operator.core.tuner import decide
from prefleet_operator.core.tuning import TunerMemory
from prefleet_operator.core.wait_bound import bound_wait, most_short
from prefleet_runtime.sim.vllm_metrics import REQUEST_LATENCY_BUCKETS, one_two_five

from tests.support.lengths import demo_mix, exact_quantile, histogram
from tests.support.policies import make_spec

NOW = 1_800_000_000.0
LENGTH_BOUNDS = one_two_five(131072)
# A request: its length, and how long it waited. Any wait may be any request's.
REQUESTS = st.lists(st.tuples(st.integers(1, 40_000), st.floats(0.0, 9000.0)), min_size=60, max_size=400)


@given(requests=REQUESTS, threshold=st.integers(1, 40_000), q=st.sampled_from([0.5, 0.9, 0.95]))
def test_no_assignment_of_waits_exceeds_the_bound(requests, threshold, q):
    long_waits = [wait_s for length, wait_s in requests if length > threshold]
    lengths = histogram([length for length, _ in requests], LENGTH_BOUNDS)
    waits = histogram([wait_s for _, wait_s in requests], REQUEST_LATENCY_BUCKETS)
    bound = bound_wait(waits, lengths, threshold, q)
    assert bound is not None or (1 - most_short(lengths, threshold)) * len(requests) < samples_needed(q)
    if bound is not None:
        assert bound.longs <= len(long_waits) + 1e-6
        assert exact_quantile(long_waits, q) <= bound.wait_s


def test_where_every_long_waits_longer_than_every_short_the_bound_is_the_edge_of_the_true_bucket():
    # 300 shorts waited 0.1 s, 100 longs 1.1 s, ... 4.0 s: their P95 is 3.9, and (2.5, 5] is the bucket of 3.9.
    lengths = histogram([100] * 300 + [9000] * 100, LENGTH_BOUNDS)
    waits = histogram([0.1] * 300 + [1 + 0.03 * k for k in range(1, 101)], REQUEST_LATENCY_BUCKETS)
    bound = bound_wait(waits, lengths, 100, 0.95)
    assert bound is not None
    assert (bound.wait_s, round(bound.longs), bound.coarse) == (5.0, 100, False)


@pytest.mark.parametrize(
    ("lengths", "waits", "threshold"),
    [
        pytest.param([100] * 400, [1.0] * 400, 100, id="without long requests nothing is bounded"),
        pytest.param([100] * 342 + [9000] * 58, [1.0] * 400, 100, id="58 longs are too few for P95"),
        pytest.param([], [1.0] * 400, 100, id="without lengths nothing is bounded"),
        pytest.param([9000] * 400, [], 100, id="without waits nothing is bounded"),
    ],
)
def test_no_bound_from_too_little(lengths, waits, threshold):
    assert (
        bound_wait(histogram(waits, REQUEST_LATENCY_BUCKETS), histogram(lengths, LENGTH_BOUNDS), threshold, 0.95)
        is None
    )


def test_a_bucket_that_the_threshold_cuts_counts_as_short():
    # (500, 1000] may be all short at 700, so only the 90 beyond 1000 are surely long.
    lengths = histogram([100] * 100 + [900] * 50 + [5000] * 90, LENGTH_BOUNDS)
    assert most_short(lengths, 700) == pytest.approx(150 / 240)
    assert most_short(lengths, 500) == pytest.approx(100 / 240)


def test_a_quantile_beyond_the_last_bucket_has_no_bound():
    bound = bound_wait(HistogramSnapshot((1.0,), (5.0, 95.0)), histogram([9000] * 100, LENGTH_BOUNDS), 100, 0.95)
    assert bound is not None
    assert math.isinf(bound.wait_s)


# --- how it is told and what follows --------------------------------------------------------------------------

SRF = SchedulingPolicy.SHORT_REQUEST_FIRST
LENGTHS = Sample(histogram(demo_mix(1000, seed=1), LENGTH_BOUNDS), NOW)
TUNED = TunerMemory(SRF, threshold=1000, threshold_moved_at_s=int(NOW) - 3600)
NO_LANES = Missing("the engine tells no lanes apart")
ASCEND = as_run(
    parse_spec(
        {
            "model": {"source": {"hub": {"repo": "example/model"}}, "servedName": "model"},
            "engine": {"type": "VLLMAscend", "version": "0.25.1rc1"},
            "mixed": {"replicas": 2},
        }
    )
)


def waits(*values: float) -> Reading[HistogramSnapshot]:
    return Sample(histogram(values, REQUEST_LATENCY_BUCKETS), NOW)


def seen(of_all: Reading[HistogramSnapshot], lengths: Reading[HistogramSnapshot] = LENGTHS) -> FleetMetrics:
    unshown = Missing("the engine shows none")
    return FleetMetrics(lengths, long_waits=NO_LANES, oldest_long_wait_s=unshown, waits=of_all)


QUIET, BUSY = waits(*[0.1] * 800, *[2.2] * 200), waits(*[0.1] * 800, *[9.0] * 200)


def test_a_bound_is_called_one_and_tells_what_it_rests_on():
    decision, after = decide(seen(QUIET), ASCEND, TUNED, NOW)
    told = decision.wait_finding.message
    assert "P95 of long waits is at most 2.5s, an upper bound since VLLMAscend shows no lanes (of 1,000 waits " in told
    assert "its clock misses up to one step" in told
    assert decision.wait_finding.reason is Reason.WAIT_FROM_LONG_WAITS
    assert after.long_max_wait_s == decision.long_max_wait_s == 5.6  # the middle of [4, 7.2]


def test_a_bound_in_the_first_bucket_says_that_nothing_shorter_is_told_apart():
    decision, _ = decide(seen(waits(*[0.01] * 1000)), ASCEND, TUNED, NOW)
    assert "at most 300ms" in decision.wait_finding.message
    assert "its buckets tell nothing shorter apart" in decision.wait_finding.message


def test_a_bound_proves_no_want_of_capacity():
    decision, _ = decide(seen(BUSY), ASCEND, TUNED, NOW)
    assert decision.long_max_wait_s == 7.2
    assert not decision.capacity_limited
    assert decision.normal_wait_s is None, "nor may anybody add pods for it"
    assert decision.wait_finding.reason is Reason.WAIT_FROM_LONG_WAITS
    assert "is at most 10s, an upper bound" in decision.wait_finding.message


def test_a_wait_beyond_the_slo_that_may_be_a_shorts_ends_nothing_at_once():
    few = waits(*[0.1] * 50, *[60.0] * 5)
    decision, _ = decide(seen(few), ASCEND, TUNED, NOW)
    assert (decision.long_max_wait_s, decision.wait_finding.reason) == (0, Reason.LEARNING_WAITS)
    assert "of 55 waits in 5m" in decision.wait_finding.message


def test_once_promotion_runs_without_a_share_nothing_is_concluded():
    memory = replace(TUNED, long_max_wait_s=5.6)
    decision, after = decide(seen(BUSY), ASCEND, memory, NOW)
    assert after.long_max_wait_s == 5.6
    assert "promotion shortens long waits" in decision.wait_finding.message


@pytest.mark.parametrize(
    ("metrics", "memory", "told"),
    [
        pytest.param(seen(Missing("nobody asked")), TUNED, "not measured", id="missing waits"),
        pytest.param(seen(Stale(BUSY.value, NOW - 400)), TUNED, "last measured at", id="stale waits"),
        pytest.param(
            seen(BUSY, Stale(LENGTHS.value, NOW - 400)),
            TUNED,
            "without fresh lengths",
            id="waits without fresh lengths",
        ),
        pytest.param(seen(BUSY), TunerMemory(), "another setting", id="waits from before the first threshold"),
        pytest.param(
            seen(Sample(HistogramSnapshot((1.0,), (0.0, 900.0)), NOW)),
            TUNED,
            "may lie beyond 1s, the last bucket of VLLMAscend",
            id="waits beyond the last bucket",
        ),
    ],
)
def test_the_limit_holds_on(metrics, memory, told):
    decision, after = decide(metrics, ASCEND, memory, NOW)
    assert after.long_max_wait_s == 0
    assert told in decision.wait_finding.message


def test_lanes_go_before_the_waits_of_all():
    metrics = replace(seen(BUSY), long_waits=Sample(histogram([1.0] * 99, REQUEST_LATENCY_BUCKETS), NOW))
    decision, _ = decide(metrics, make_spec(), TUNED, NOW)
    assert "at most" not in decision.wait_finding.message
