"""Quantiles in bounded memory: within their error of the exact ones, whatever the numbers."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefleet_runtime.sim.sketch import LEAST, RELATIVE_ERROR, Sketch

VALUES = st.lists(st.floats(0, 1e7), min_size=1, max_size=200)


def sketch_of(values: list[float]) -> Sketch:
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    return sketch


@given(VALUES, st.floats(0, 1))
def test_a_quantile_is_within_the_error_of_the_exact_one(values: list[float], q: float) -> None:
    exact = sorted(values)[max(1, math.ceil(q * len(values))) - 1]
    assert sketch_of(values).quantile(q) == pytest.approx(exact, rel=1.0001 * RELATIVE_ERROR, abs=LEAST)


@given(VALUES, VALUES)
def test_merged_sketches_are_the_sketch_of_all(left: list[float], right: list[float]) -> None:
    merged = sketch_of(left)
    merged.merge(sketch_of(right))
    whole = sketch_of(left + right)
    assert list(merged.cumulative()) == list(whole.cumulative())
    assert (merged.count, merged.greatest) == (whole.count, whole.greatest)
    assert merged.mean == pytest.approx(whole.mean)


def test_memory_is_bounded_by_the_range_and_not_by_the_count() -> None:
    rng, sketch = random.Random(1), Sketch()
    for _ in range(50_000):
        sketch.add(rng.expovariate(1))
    assert len(list(sketch.cumulative())) < 1000
    assert sketch.quantile(0.5) == pytest.approx(math.log(2), rel=0.03)


def test_nothing_has_no_quantile() -> None:
    assert math.isnan(Sketch().quantile(0.5))
    assert math.isnan(Sketch().mean)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match="below 0"):
        Sketch().add(-1)
