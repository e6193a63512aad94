"""The benchmark of the queues, at a depth that takes a moment: it must run, not be fast."""

from __future__ import annotations

import pytest

from tests.benchmarks.measure import measure
from tests.benchmarks.subjects import Entrant, Work, entrants


@pytest.mark.parametrize("entrant", list(entrants(threshold=100)), ids=lambda entrant: entrant.name)
def test_every_subject_can_be_timed(entrant: Entrant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.benchmarks.measure.REPEATS", 50)
    works = [Work(number, 1 + number * 37 % 300) for number in range(80)]
    samples = measure(entrant, works, waiting=20, seed=1)
    assert {operation: len(times) for operation, times in samples.items()} == {
        "step": 50,
        "commit": 50,
        "add": 50,
        "remove": 50,
    }
