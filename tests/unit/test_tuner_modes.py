"""Pins and modes of the tuner, and what it says of itself: what is told to be tuned, and what is then reported."""

from dataclasses import replace

import pytest
from prefleet_operator.api import SchedulingPolicy
from prefleet_operator.core.observed import Missing, Sample
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.tuner import decide
from prefleet_operator.core.tuning import TunerMemory

from tests.support.policies import make_spec
from tests.support.tuning import EQUAL, FCFS, NOW, RUNNING, SRF, TUNED, fresh, seen, waits

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
