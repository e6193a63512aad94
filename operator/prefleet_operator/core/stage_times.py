"""The two times that MindIE's TPT stage policy is told, so that running answers do not stall.

The formula (published): with r requests decoding and a maximum M, each step adds d (M - r) to a credit w; while
p r > w the step is one of decode, else w returns to 0 and the step is one of prefill. So

- prefill comes at once while p r <= d (M - r), which is r <= M d / (p + d);
- above that, max(0, ceil(p r / (d (M - r))) - 1) decode steps lie between two prefills.

Each prefill adds at least one to r. So once a request decodes, at most floor(M d / (p + d)) prefills come in a row
before it gets its next token (one at least: a prefill that waits long enough does go). If a prefill takes P and a
decode step D, that token comes after n P + D at the latest. A promise of at most G between two tokens therefore
allows N = floor((G - D) / P) prefills in a row, 1 at least, and asks for

    M d / (p + d) < N + 1, which is p (N + 1) > d (M - N - 1).

Only the ratio of p and d counts; MindIE takes whole milliseconds up to 1,000. The costs themselves are told where
they keep the promise, else the pair with the least ratio that does, since decode steps between prefills are what a
larger ratio costs.

Left out: measuring P and D. MindIE's own defaults stand for them unless a spec gives the pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from prefleet_operator.api import PrefillPolicySpec, StageSpec, parse_duration

LARGEST_MS: Final = 1000
"""The most that MindIE takes for either time."""

PREFILL_COST_MS: Final = 150
DECODE_COST_MS: Final = 50
MAX_BATCH: Final = 200
"""MindIE's own defaults of what one request costs in a step of each kind, and of how many run at once."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """p and d in milliseconds, and M."""

    prefill_ms: int
    decode_ms: int
    max_batch: int

    @property
    def prefills_in_a_row(self) -> int:
        """How many steps of prefill may come before a decode step while a request decodes."""
        total = self.prefill_ms + self.decode_ms
        at_once = self.max_batch * self.decode_ms // total if total else self.max_batch
        return max(1, min(self.max_batch - 1, at_once))

    def decode_steps_between(self, running: int) -> int | None:
        """How many decode steps lie between two prefills with `running` decodes; None: prefill never comes."""
        credit = self.decode_ms * (self.max_batch - running)
        if credit <= 0:
            return None if self.prefill_ms * running else 0
        return max(0, math.ceil(self.prefill_ms * running / credit) - 1)

    def longest_gap_ms(self, prefill_cost_ms: int = PREFILL_COST_MS, decode_cost_ms: int = DECODE_COST_MS) -> int:
        """The longest time between two tokens, if steps cost that much."""
        return self.prefills_in_a_row * prefill_cost_ms + decode_cost_ms


def times_for_gap(gap_ms: float, prefill_cost_ms: int, decode_cost_ms: int, max_batch: int) -> StageTimes:
    """The pair that keeps `gap_ms` between two tokens, or comes nearest to it."""
    allowed = max(1, math.floor((gap_ms - decode_cost_ms) / prefill_cost_ms))
    costs = StageTimes(prefill_cost_ms, decode_cost_ms, max_batch)
    if costs.prefills_in_a_row <= allowed:
        return costs
    seats = max_batch - allowed - 1
    decode_ms = max(1, math.ceil((allowed + 1) * LARGEST_MS / seats) - 1)
    prefill_ms = decode_ms * seats // (allowed + 1) + 1
    return StageTimes(min(LARGEST_MS, prefill_ms), min(LARGEST_MS, decode_ms), max_batch)


def pinned_times(prefill_ms: float, decode_ms: float, max_batch: int) -> StageTimes:
    """A pair as MindIE takes it: as it is, or in whole numbers of nearly the same ratio."""
    if prefill_ms.is_integer() and decode_ms.is_integer() and max(prefill_ms, decode_ms) <= LARGEST_MS:
        return StageTimes(int(prefill_ms), int(decode_ms), max_batch)
    if prefill_ms < decode_ms:
        smaller, larger = _whole_ratio(prefill_ms, decode_ms)
        return StageTimes(smaller, larger, max_batch)
    smaller, larger = _whole_ratio(decode_ms, prefill_ms)
    return StageTimes(larger, smaller, max_batch)


def _whole_ratio(smaller: float, larger: float) -> tuple[int, int]:
    """Never 0 where there was something: 0 means that the other stage always wins."""
    ratio = Fraction(smaller / larger).limit_denominator(LARGEST_MS)
    if ratio.numerator == 0 and smaller > 0:
        return 1, LARGEST_MS
    return ratio.numerator, ratio.denominator


def stage_times(spec: PrefillPolicySpec) -> StageTimes:
    """What a fleet's TPT stage is told: the spec's pair, or the one that slo.interTokenGap asks for."""
    stage = spec.scheduling.stage
    max_batch = stage.max_batch or MAX_BATCH
    if is_pinned(stage):
        return pinned_times(_ms(stage.prefill_per_request), _ms(stage.decode_per_request), max_batch)
    return times_for_gap(spec.slo.inter_token_gap_s * 1000, PREFILL_COST_MS, DECODE_COST_MS, max_batch)


def is_pinned(stage: StageSpec) -> bool:
    """Whether the spec gives the pair."""
    return stage.prefill_per_request is not None


def _ms(duration: str | None) -> float:
    return round(parse_duration(duration or "0ms") * 1000, 6)
