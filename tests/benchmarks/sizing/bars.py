"""What sizing promises, and whether the figures keep it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.benchmarks.bars import Bar
from tests.benchmarks.sizing.rows import CLAIRVOYANT, OURS, USUAL, Row

AT_MOST = {"diurnal": 1.25, "wave": 1.25, "decode-heavy": 1.25, "flash-crowd": 1.6}
CHEAPER_IN = 5
ALL = 7


def sizing_bars(rows: Iterable[Row]) -> Iterator[Bar]:
    """`rows`: of each scenario that ran one of every scaler."""
    found = {(row.scenario, row.scaler): row for row in rows}
    scenarios = list(dict.fromkeys(scenario for scenario, _ in found))
    cheaper = 0
    for scenario in scenarios:
        ours, usual = found[scenario, OURS], found[scenario, USUAL]
        cheaper += ours.accelerator_hours < usual.accelerator_hours
        claim = f"{scenario}: attainment at least the usual recipe's"
        yield Bar(claim, ours.attainment >= usual.attainment, f"{ours.attainment:.1%} to {usual.attainment:.1%}")
    if len(scenarios) == ALL:
        claim = f"fewer accelerator hours than the usual recipe in at least {CHEAPER_IN} of {ALL}"
        yield Bar(claim, cheaper >= CHEAPER_IN, f"{cheaper}")
    for scenario, most in AT_MOST.items():
        if (scenario, OURS) in found:
            ours, least = found[scenario, OURS], found[scenario, CLAIRVOYANT]
            times = ours.accelerator_hours / least.accelerator_hours
            claim = f"{scenario}: at most {most:g} times the clairvoyant minimum"
            kept = least.attainment >= ours.attainment
            told = "" if kept else f", which keeps only {least.attainment:.1%} of {ours.attainment:.1%}"
            yield Bar(claim, times <= most, f"{times:.2f} times{told}")
    for scenario in scenarios:
        flaps = found[scenario, OURS].flaps
        yield Bar(f"{scenario}: no flap", flaps == 0, f"{flaps}")
