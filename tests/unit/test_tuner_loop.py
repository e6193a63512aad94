"""The tuner over many cycles: it settles, it keeps its limits whatever it sees, and a restart changes nothing."""

import json
import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefleet_operator.api import PrefillPolicySpec, SchedulingPolicy, TunedValue, TuningStatus
from prefleet_operator.core.observed import FleetMetrics, HistogramSnapshot, Missing, Sample, Stale
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.threshold import study_lengths
from prefleet_operator.core.tuner import decide
from prefleet_operator.core.tuning import TunerMemory, TuningDecision, recall, settle, to_status
from prefleet_runtime.contract import PolicyName, RuntimePolicy

from tests.support.lengths import demo_mix, histogram, trace_lengths
from tests.support.policies import make_spec

START = 1_800_000_000.25
CYCLE_S = 5.0
WAIT_BOUNDS = tuple(2.0 ** (step / 4) for step in range(-40, 45))


def through_status(decision: TuningDecision, memory: TunerMemory) -> TunerMemory:
    """The memory as the API server gives it back to an operator that has restarted."""
    text = json.dumps(to_status(decision, memory).to_resource())
    return recall(TuningStatus.model_validate_json(text), None, now=START + 1e6)


def run(spec: PrefillPolicySpec, metrics: list[FleetMetrics], restarts: bool = False) -> Iterator[TuningDecision]:
    memory = TunerMemory()
    for cycle, seen in enumerate(metrics):
        decision, memory = decide(seen, spec, memory, START + cycle * CYCLE_S)
        yield decision
        if restarts:
            memory = through_status(decision, memory)


def busy(lengths: list[int], long_waits: list[float], oldest_s: float = 0.0) -> FleetMetrics:
    return FleetMetrics(
        lengths=Sample(histogram(lengths), START),
        long_waits=Sample(histogram(long_waits, WAIT_BOUNDS), START),
        oldest_long_wait_s=Sample(oldest_s, START),
    )


def test_a_steady_mix_is_set_once_and_never_moved_again():
    rng = random.Random(1)
    spec = make_spec(tuning={"cooldown": "1s"})
    steady = [busy(demo_mix(300, seed), [rng.expovariate(1) for _ in range(75)]) for seed in range(200)]
    moves = [move.name for decision in run(spec, steady) for move in decision.moves]
    assert moves == ["policy", "threshold", "longMaxWait"]


@pytest.mark.parametrize("trace", ["AzureLLMInferenceTrace_conv_2023.csv", "mooncake_conversation_trace.jsonl"])
def test_a_public_trace_moves_the_threshold_at_most_once_in_a_thousand_requests(trace):
    lengths = trace_lengths(trace)
    windows = [busy(lengths[at : at + 1000], []) for at in range(0, len(lengths) - 1000, 200)]
    decisions = list(run(make_spec(tuning={"cooldown": "1s"}), windows))
    moves = [move for decision in decisions for move in decision.moves if move.name == "threshold"]
    assert len(moves) <= len(lengths) / 1000


def test_a_mix_that_changes_is_followed_by_a_factor_of_two_for_each_cooldown():
    spec = make_spec(tuning={"cooldown": "15s"})
    longer = [8 * length for length in demo_mix(1000, seed=2)]
    decisions = list(run(spec, [busy(demo_mix(1000, seed=1), [])] + [busy(longer, [])] * 30))
    thresholds = [decision.threshold for decision in decisions]
    # The valley goes from 1,218 to 9,742 and begins at 4,871: two doublings, three cycles before each.
    assert thresholds[:7] == [1218, 1218, 1218, 2436, 2436, 2436, 4872]
    assert set(thresholds[6:]) == {4872}
    assert decisions[-1].threshold_finding.reason is Reason.VALLEY


def test_a_restart_in_every_cycle_changes_nothing():
    rng = random.Random(3)
    spec = make_spec(tuning={"cooldown": "17s"})
    drifting = [
        busy(
            [round(length * 1.03**cycle) for length in demo_mix(320, cycle)],
            [rng.expovariate(1 / (0.5 + cycle / 40)) for _ in range(80)],
            oldest_s=cycle / 20,
        )
        for cycle in range(120)
    ]
    straight = list(run(spec, drifting))
    assert list(run(spec, drifting, restarts=True)) == straight
    assert {move.name for decision in straight for move in decision.moves} == {"policy", "threshold", "longMaxWait"}


def found_short(*wait_s: float) -> list[bool]:
    """Whether capacity is found short, cycle by cycle, of a fleet whose long requests wait so long, after a restart in
    each; 0.6 of the SLO, 4.8 s, is the most that leaves a range for the limit."""
    lengths = demo_mix(1000, seed=1)
    windows = [busy(lengths, [])] + [busy(lengths, [each] * 80) for each in wait_s]
    return [decision.capacity_limited for decision in run(make_spec(), windows, restarts=True)][1:]


def test_a_fleet_at_the_edge_of_its_capacity_does_not_flap():
    """Each turn of it would be an Event, and a lastTransitionTime, for CapacityLimited and for Tuned."""
    assert found_short(*[5.5, 4.2] * 10) == [True] * 20


def test_capacity_suffices_again_once_a_quarter_more_would_leave_a_range():
    assert found_short(4.2, 5.5, 4.2, 3.0, 4.2) == [False, True, True, False, False]


LENGTHS = st.builds(
    lambda seed, scale, n: Sample(histogram([round(scale * length) for length in demo_mix(n, seed)]), START),
    st.integers(0, 50),
    st.sampled_from([0.1, 0.5, 1, 3, 20]),
    st.sampled_from([0, 50, 299, 300, 400]),
)
WAITS = st.builds(
    lambda wait_s, n: Sample(histogram([wait_s] * n, WAIT_BOUNDS), START),
    st.floats(0.01, 5000),
    st.sampled_from([0, 20, 80]),
)
ABSENT = st.sampled_from([Missing("no answer"), Stale(HistogramSnapshot((10.0,), (500.0, 500.0)), START)])
OLDEST = st.one_of(
    st.floats(0, 50).map(lambda wait_s: Sample(wait_s, START)),
    st.just(Missing("no answer")),
    st.just(Stale(99.0, START)),
)
METRICS = st.builds(
    lambda lengths, waits, oldest: FleetMetrics(lengths=lengths, long_waits=waits, oldest_long_wait_s=oldest),
    st.one_of(LENGTHS, ABSENT),
    st.one_of(WAITS, ABSENT),
    OLDEST,
)
STEPS = st.lists(st.tuples(st.sampled_from([1, 10, 59, 60, 200]), METRICS), min_size=1, max_size=25)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, bias=st.sampled_from([0.0, 0.5, 1.0]), pin=st.sampled_from([None, 700]))
def test_whatever_it_sees_the_tuner_keeps_its_limits(steps, bias, pin):
    spec = make_spec({"threshold": pin} if pin else {}, {"cooldown": "60s", "bias": bias})
    memory, now = TunerMemory(), START
    for seconds, metrics in steps:
        now += seconds
        decision, after = decide(metrics, spec, memory, now)
        _check_threshold(memory, after, metrics, spec, now)
        _check_wait(memory, after, metrics, now)
        assert decision.policy is SchedulingPolicy.FCFS or decision.threshold == after.threshold
        assert through_status(decision, after) == after
        memory = after


def _check_threshold(
    before: TunerMemory, after: TunerMemory, metrics: FleetMetrics, spec: PrefillPolicySpec, now: float
) -> None:
    if spec.scheduling.threshold is not None:
        assert after.threshold == spec.scheduling.threshold
        return
    if (before.threshold, before.policy) == (after.threshold, after.policy) or before.policy is None:
        return
    assert isinstance(metrics.lengths, Sample)
    assert metrics.lengths.value.total >= 300
    if before.threshold is None or after.threshold is None:
        return
    assert now - before.threshold_moved_at_s >= 60 or before.threshold_moved_at_s is None
    study = study_lengths(metrics.lengths, spec)
    assert study is not None
    if before.threshold != after.threshold:
        assert 0.5 <= after.threshold / before.threshold <= 2
        assert not study.keeps(before.threshold)
        # It moves towards the goal and never beyond it.
        assert min(before.threshold, study.goal) <= after.threshold <= max(before.threshold, study.goal)


def _check_wait(before: TunerMemory, after: TunerMemory, metrics: FleetMetrics, now: float) -> None:
    assert after.long_max_wait_s == 0 or 4.0 <= after.long_max_wait_s <= 7.2
    if before.long_max_wait_s == after.long_max_wait_s:
        return
    if isinstance(metrics.long_waits, Sample):
        first = before.wait_moved_at_s is None
        assert first or now - before.wait_moved_at_s >= 60
    else:
        oldest = metrics.oldest_long_wait_s
        assert before.long_max_wait_s == 0
        assert isinstance(oldest, Sample)
        assert oldest.value > 8


# --- what stands in status ---------------------------------------------------------------------------------------


def _decided(n: int, seed: int, memory: TunerMemory) -> tuple[TuningStatus, TunerMemory]:
    decision, memory = decide(busy(demo_mix(n, seed), []), make_spec(), memory, START)
    return to_status(decision, memory), memory


def test_numbers_that_only_tremble_are_not_written_again():
    first, memory = _decided(1000, 1, TunerMemory())
    second, memory = _decided(1000, 1, memory)
    third, _ = _decided(1010, 1, memory)
    settled = settle(first, second)
    assert settle(settled, third) is settled


def test_a_move_is_always_written():
    learning, memory = _decided(10, 1, TunerMemory())
    tuned, _ = _decided(1000, 1, memory)
    assert settle(learning, tuned) is tuned


def test_a_band_that_has_shifted_is_written():
    first, memory = _decided(1000, 1, TunerMemory())
    more, _ = _decided(2000, 1, memory)
    assert settle(first, more).band.samples == 2000


def test_a_band_that_cannot_be_measured_stays_as_last_known():
    known, memory = _decided(1000, 1, TunerMemory())
    decision, memory = decide(FleetMetrics(), make_spec(), memory, START)
    settled = settle(known, to_status(decision, memory))
    assert settled.band == known.band
    assert settled.threshold.reason == Reason.METRICS_MISSING


LIVE = RuntimePolicy(generation=7, policy=PolicyName.SHORT_REQUEST_FIRST, threshold=900, long_max_wait_ms=4500)


@pytest.mark.parametrize(
    ("status", "live", "memory"),
    [
        pytest.param(None, None, TunerMemory(), id="a new fleet remembers nothing"),
        pytest.param(
            None,
            LIVE,
            TunerMemory(SchedulingPolicy.SHORT_REQUEST_FIRST, 900, int(START), 4.5, int(START)),
            id="lost status adopts what is live, as if set just now",
        ),
        pytest.param(
            TuningStatus(state_version=99),
            RuntimePolicy(generation=3),
            TunerMemory(SchedulingPolicy.FCFS),
            id="a memory of another version is not understood, and what is live is adopted",
        ),
        pytest.param(TuningStatus(), LIVE, TunerMemory(), id="an empty status is a memory too"),
        *(
            pytest.param(
                TuningStatus(**{name: TunedValue(value=value, reason="", message="")}), None, TunerMemory(), id=why
            )
            for name, value, why in (
                ("threshold", 0, "a threshold of no token is lost"),
                ("threshold", 1e300, "nor is one remembered that no engine could be told"),
                ("threshold", math.nan, "or one that is no number"),
                ("long_max_wait", -5, "or a limit below 0"),
                ("long_max_wait", math.inf, "or one without end"),
            )
        ),
        pytest.param(
            TuningStatus(threshold=TunedValue(value=9, reason="", message="", moved_at="9999-01-01T00:00:00Z")),
            None,
            TunerMemory(threshold=9, threshold_moved_at_s=int(START)),
            id="what will have moved has moved now, so that its cooldown ends",
        ),
    ],
)
def test_recall(status, live, memory):
    assert recall(status, live, START) == memory
