"""The tuner's wait limit as tables: what is seen, what was set, what is decided."""

from dataclasses import replace

import pytest
from prefleet_operator.core.observed import Missing, Sample, Stale
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.tuner import decide

from tests.support.lengths import histogram
from tests.support.policies import make_spec
from tests.support.tuning import JUST_NOW, NO_WAITS, NOW, RUNNING, TUNED, seen, waits

# W_slo is 8 s: the limit lies in [max(1.5 W_normal, 4), 7.2].
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
