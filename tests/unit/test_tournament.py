"""The tournament, against a look at every line."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from prefleet_runtime.queueing.tournament import Line, Tournament


def highest(lines: dict[int, Line[int]], x: int) -> int | None:
    """By the sentence: the greatest (x - start) / cost, of equals the smallest number."""
    return min(lines.values(), key=lambda line: (-Fraction(x - line[0], line[1]), line[2]), default=(0, 0, 0, None))[3]


@pytest.mark.parametrize("costs", [3, 12, 60, 2000])
@pytest.mark.parametrize("seed", range(20))
def test_the_highest_line_wins_at_every_x(costs: int, seed: int) -> None:
    rng = random.Random(seed)
    tournament: Tournament[int] = Tournament()
    lines: dict[int, Line[int]] = {}
    x = 0
    for number in range(400):
        cost = rng.randint(1, costs)
        if rng.random() < 0.7:
            lines[cost] = (rng.randint(max(0, x - 300), x), cost, rng.randint(0, 10_000), number)
            tournament.set(lines[cost])
        elif lines:
            gone = rng.choice(sorted(lines))
            del lines[gone]
            tournament.remove(gone)
        x += rng.choice([0, 0, 1, 2, 7, 100, 10**9 if number == 300 else 0])
        tournament._check()
        assert tournament.ahead(x) == highest(lines, x)


@pytest.mark.parametrize(
    ("numbers", "winners"),
    [
        pytest.param((1, 2), "aab", id="at the crossing the earlier one is ahead: the one that was"),
        pytest.param((2, 1), "abb", id="at the crossing the earlier one is ahead: the one that comes"),
    ],
)
def test_a_tie_at_the_crossing_goes_to_the_smaller_number(numbers: tuple[int, int], winners: str) -> None:
    """x / 4 and (x - 6) / 1 meet at 8, both at 2."""
    tournament: Tournament[str] = Tournament()
    tournament.set((0, 4, numbers[0], "a"))
    tournament.set((6, 1, numbers[1], "b"))
    assert "".join(str(tournament.ahead(x)) for x in (7, 8, 9)) == winners


def test_the_tree_shrinks_with_its_lines() -> None:
    tournament: Tournament[int] = Tournament()
    for cost in range(1, 5001):
        tournament.set((0, cost, cost, cost))
    for cost in range(1, 4998):
        tournament.remove(cost)
    tournament._check()
    assert tournament._capacity == 8
    assert tournament.ahead(10) == 4998
