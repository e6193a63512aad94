"""Samples of prompt lengths, and the histograms that the runtime or a coarse engine would show of them."""

import csv
import json
import math
import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest
from prefleet_operator.core.observed import HistogramSnapshot

from tests.support.demo.workload import mix_lengths

FINE = tuple(sorted({float(round(2 ** (step / 4))) for step in range(81)}))
"""The runtime's bounds: four to the octave, 1 to 2^20."""

COARSE = tuple(float(digit * 10**decade) for decade in range(6) for digit in (1, 2, 5))
"""An engine's own bounds: 1, 2, 5, 10, ..."""

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"


def histogram(values: Iterable[float], bounds: Sequence[float] = FINE) -> HistogramSnapshot:
    """The histogram that an exporter with these bounds shows."""
    counts = [0.0] * (len(bounds) + 1)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    return HistogramSnapshot(tuple(bounds), tuple(counts))


def exact_quantile(values: Sequence[float], q: float) -> float:
    """The smallest value with at least the share `q` of all at or below it."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def demo_mix(n: int, seed: int) -> list[int]:
    """`n` lengths of the demo: a quarter around 6,000 tokens, the rest around 200."""
    return list(islice(mix_lengths(random.Random(seed)), n))


def two_kinds(rng: random.Random, long_share: float) -> Iterator[int]:
    """Lengths around 200 and around 6,000 tokens, each within a factor of about three."""
    while True:
        yield math.ceil(rng.lognormvariate(math.log(6000 if rng.random() < long_share else 200), 0.5))


def trace_lengths(name: str) -> list[int]:
    """Prompt lengths of a public trace; the test is skipped where it is absent."""
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"the public trace {name} is not on this machine")
    with path.open() as lines:
        if path.suffix == ".jsonl":
            return [json.loads(line)["input_length"] for line in lines]
        rows = list(csv.DictReader(lines))
    column = "ContextTokens" if "ContextTokens" in rows[0] else "num_prefill_tokens"
    return [int(row[column]) for row in rows]
