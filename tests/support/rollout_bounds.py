"""The bounds of a rollout, held against all its steps (tests/support/rollout_simulator.py)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor

from prefleet_operator.core.rollout import least_slack

from tests.support.rollout_simulator import Row, Simulator, as_table


def _slack_of(simulator: Simulator, row: Row) -> Fraction:
    """How far the roles' shares may be apart."""
    least = least_slack(row.seen)
    return min(Fraction(1), max(least, simulator.slack or least))


def check_bounds(simulator: Simulator) -> None:
    """Every bound of the planner's page, at every tick, in a fleet of which nothing fails by itself."""
    rows = simulator.rows
    begun = next(number for number, row in enumerate(rows) if row.looked)
    for row in rows[begun + 1 :]:
        slack = _slack_of(simulator, row)
        for pods in row.seen.values():
            assert pods.total <= pods.wanted + pods.max_surge, as_table(rows)
            lost = min(pods.max_unavailable, floor(slack * pods.wanted))
            assert pods.ready >= pods.wanted - lost, as_table(rows)
            if not pods.new_ready:
                assert pods.ready >= pods.wanted - 1, as_table(rows)
        shares = [min(Fraction(1), Fraction(pods.ready, pods.wanted)) for pods in row.seen.values()]
        assert max(shares) - min(shares) <= slack, as_table(rows)
        _check_in_step(row, slack, rows)


def _check_in_step(row: Row, slack: Fraction, rows: Sequence[Row]) -> None:
    """No role is further than the slack ahead of what the others have reached."""
    for name, pods in row.seen.items():
        others = [each.progress for other, each in row.seen.items() if other != name]
        if others:
            assert Fraction(pods.new, pods.wanted) <= min(others) + slack, as_table(rows)
