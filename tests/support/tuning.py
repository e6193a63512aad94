"""What a tuner sees and remembers, for tests of its rules: lengths of three kinds, waits, and fleets that are tuned."""

from __future__ import annotations

import random
from dataclasses import replace

from prefleet_operator.api import SchedulingPolicy
from prefleet_operator.core.observed import FleetMetrics, HistogramSnapshot, Reading, Sample
from prefleet_operator.core.tuning import TunerMemory

from tests.support.lengths import demo_mix, histogram

FCFS, SRF = SchedulingPolicy.FCFS, SchedulingPolicy.SHORT_REQUEST_FIRST
NOW = 1_800_000_000.0
LONG_AGO = int(NOW) - 3600
JUST_NOW = int(NOW) - 60
WAIT_BOUNDS = tuple(2.0 ** (step / 4) for step in range(-40, 45))
NO_WAITS = Sample(HistogramSnapshot((), (0.0,)), NOW)

MIX = demo_mix(1000, seed=1)
ONE_KIND = [round(random.Random(seed).lognormvariate(7, 1)) for seed in range(1000)]
EQUAL = [1000 + seed % 50 for seed in range(1000)]

TUNED = TunerMemory(SRF, threshold=1448, threshold_moved_at_s=LONG_AGO)
"""Without promotion as yet."""
RUNNING = replace(TUNED, long_max_wait_s=5.0, wait_moved_at_s=LONG_AGO)


def fresh(lengths: list[int]) -> Reading[HistogramSnapshot]:
    """Lengths that were read now."""
    return Sample(histogram(lengths), NOW)


def waits(*values: float) -> Reading[HistogramSnapshot]:
    """Waits of long requests, in seconds, that were read now."""
    return Sample(histogram(values, WAIT_BOUNDS), NOW)


def seen(
    lengths: Reading[HistogramSnapshot] = fresh(MIX),
    long_waits: Reading[HistogramSnapshot] = NO_WAITS,
    oldest_s: Reading[float] = Sample(0.0, NOW),
) -> FleetMetrics:
    """What the metrics source tells of the fleet."""
    return FleetMetrics(lengths=lengths, long_waits=long_waits, oldest_long_wait_s=oldest_s)
