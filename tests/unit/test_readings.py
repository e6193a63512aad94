"""What is kept of readings: for how long a report stands that can no longer be read, and since when readings fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prefleet_operator.adapters.metrics_source import FleetReading
from prefleet_operator.app.readings import Readings, Report, hold_generations
from prefleet_operator.core.measured import GAP_S
from prefleet_operator.core.observed import FleetMetrics, HistogramSnapshot, Missing, Reading, Sample, Stale

NOW = 1_700_000_000.0
LENGTHS = HistogramSnapshot(bounds=(100.0,), counts=(5.0, 0.0))
FRESH = Report(Sample(3, NOW - 65), read_at_s=NOW - 5)
"""Of a Prometheus that scrapes each minute: when it was read, the report was a minute old."""


@pytest.mark.parametrize(
    ("before", "after", "held"),
    [
        pytest.param(FRESH, Missing("no answer"), FRESH.reading, id="one failed scrape proves nothing"),
        pytest.param(replace(FRESH, read_at_s=NOW - GAP_S), Missing("no"), Missing("no"), id="a long silence does"),
        pytest.param(None, Missing("no"), Missing("no"), id="what was never known is missing"),
        pytest.param(FRESH, Stale(3, NOW - 5), Sample(3, NOW - 5), id="a report just now stale stands"),
        pytest.param(FRESH, Stale(3, NOW - 99), Stale(3, NOW - 99), id="a long stale one does not"),
        pytest.param(FRESH, Sample(4, NOW), Sample(4, NOW), id="a new report replaces the old one"),
    ],
)
def test_reports_are_held_for_a_while(before: Report | None, after: Reading[int], held: Reading[int]) -> None:
    known = {} if before is None else {"pod": before}
    assert hold_generations(known, {"pod": after}, NOW) == {"pod": held}


def read(lengths: Reading[HistogramSnapshot], generation: Reading[int]) -> FleetReading:
    return FleetReading(FleetMetrics(lengths=lengths), {"pod": generation})


def test_it_is_kept_since_when_readings_fail_and_a_report_is_held_from_its_last_reading() -> None:
    readings, gone = Readings(), read(Missing("down."), Missing("down."))
    readings.put("u", read(Sample(LENGTHS, NOW - 60), Sample(3, NOW - 60)), NOW)
    assert readings.of("u").missed_since_s is None
    held = []
    for turn in range(1, 8):
        readings.put("u", gone, NOW + 10 * turn)
        assert readings.of("u").missed_since_s == NOW + 10
        held.append(isinstance(readings.of("u").generations["pod"], Sample))
    assert held == [True] * 5 + [False] * 2
    readings.put("u", read(Sample(LENGTHS, NOW), Sample(3, NOW)), NOW + 80)
    assert readings.of("u").missed_since_s is None


def test_what_one_source_read_is_no_answer_of_another() -> None:
    readings = Readings()
    readings.put("u", read(Sample(LENGTHS, NOW), Sample(3, NOW)), NOW, "PodScrape")
    assert (readings.known("u", "PodScrape"), readings.known("u", "cluster")) == (True, False)
    assert isinstance(readings.of("u", "cluster").metrics.lengths, Missing)
    readings.put("u", read(Missing("down."), Missing("down.")), NOW + 5, "cluster")
    assert readings.of("u", "cluster").generations["pod"] == Sample(3, NOW)
    assert readings.of("u", "cluster").missed_since_s == NOW + 5
