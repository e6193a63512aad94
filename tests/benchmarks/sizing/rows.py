"""One run as a row, what counts as a flap, and which target of a grid is the best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from prefleet_operator.core.sizing import SizingRules

from tests.benchmarks.sizing.fleet import Outcome
from tests.benchmarks.sizing.scalers import DOWN_WINDOW_S

OURS, USUAL, KEDA, CLAIRVOYANT = "prefleet", "hpa-waiting", "keda-kv", "clairvoyant"
OUR_WINDOW_S = SizingRules({}).down_window_s
GOAL = 0.95
"""The attainment that a target of a grid is looked for."""

Move = tuple[float, int, int]
"""Seconds, replicas before, replicas after."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run, or several of as many seeds (`pooled`): hours and flaps are those of all.

    `target`: of the metric, where the scaler has one. `moves`: of the first seed.
    """

    scenario: str
    scaler: str
    attainment: float
    accelerator_hours: float
    flaps: int
    target: float | None
    requests: int
    seeds: tuple[int, ...]
    moves: tuple[Move, ...]

    @classmethod
    def of(cls, scenario: str, scaler: str, seed: int, target: float | None, outcome: Outcome) -> Row:
        hours, moves = round(outcome.accelerator_hours, 3), outcome.moves
        share = round(outcome.attainment, 5)
        return cls(
            scenario,
            scaler,
            share,
            hours,
            count_flaps(moves, OUR_WINDOW_S if scaler == OURS else DOWN_WINDOW_S),
            target,
            outcome.requests,
            (seed,),
            moves,
        )


def pooled(rows: Sequence[Row]) -> Row:
    """The runs of one scaler in one scenario as one row."""
    total = sum(row.requests for row in rows)
    return replace(
        rows[0],
        attainment=round(sum(row.attainment * row.requests for row in rows) / total, 5),
        accelerator_hours=round(sum(row.accelerator_hours for row in rows), 3),
        flaps=sum(row.flaps for row in rows),
        requests=total,
        seeds=tuple(seed for row in rows for seed in row.seeds),
    )


def count_flaps(moves: Sequence[Move], window_s: float = DOWN_WINDOW_S) -> int:
    """Moves that reverse the one before within the down window: ours is by default as long as Kubernetes'."""
    return sum(
        then[0] - first[0] <= window_s and (first[2] > first[1]) != (then[2] > then[1])
        for first, then in pairwise(moves)
    )


def best(rows: Iterable[Row]) -> Row:
    """The cheapest that reaches the goal, in hindsight; where none does, the one that attains most."""

    def rank(row: Row) -> tuple[bool, float]:
        reaches = row.attainment >= GOAL
        return not reaches, row.accelerator_hours if reaches else -row.attainment

    return min(rows, key=rank)
