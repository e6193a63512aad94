"""The last thing that metrics sources said of each fleet, by the uid of its policy.

A policy that is deleted and made again under the same name is another one: what was read of the old one's pods
must not tune the new one. Nor is what one source read an answer of another: a policy that names another one now is as
unknown to it as a new policy is.

A pod's report of its generation stands for `GAP_S` after the last reading that had it: one scrape that fails
proves nothing about the policy that the pod runs. Readings of load are not held: the tuner holds by itself. Of them
it is only kept since when they fail: `core.measured` passes over a gap of the same length, so that of two conditions
none speaks of it before the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

from prefleet_operator.adapters.metrics_source import FleetReading
from prefleet_operator.api import POD_SCRAPE
from prefleet_operator.core.measured import GAP_S
from prefleet_operator.core.observed import Missing, Reading, Sample, Stale


@dataclass(frozen=True, slots=True)
class Report:
    """The last generation that a pod reported freshly, and when that was read: its own time may be a scrape older."""

    reading: Sample[int]
    read_at_s: float


@dataclass(frozen=True, slots=True)
class _Kept:
    """A reading of one source as it is handed out, and the reports that may stand for later ones."""

    source: str
    reading: FleetReading = field(default_factory=FleetReading)
    reports: Mapping[str, Report] = field(default_factory=dict)


class Readings:
    """Readings by the policy's uid. `asked` is set when somebody needs one that is not there yet."""

    def __init__(self) -> None:
        self._by_uid: dict[str, _Kept] = {}
        self.asked = asyncio.Event()

    def known(self, uid: str, source: str = POD_SCRAPE) -> bool:
        """Whether that source has been asked about the fleet, and no other since."""
        kept = self._by_uid.get(uid)
        return kept is not None and kept.source == source

    def of(self, uid: str, source: str = POD_SCRAPE) -> FleetReading:
        """The last reading of that source, or one in which everything is missing."""
        return self._by_uid[uid].reading if self.known(uid, source) else FleetReading()

    def put(self, uid: str, reading: FleetReading, now: float, source: str = POD_SCRAPE) -> None:
        """Keep a new reading. What pods run is the same whoever reads it, so reports outlast a change of the source."""
        before = self._by_uid.get(uid, _Kept(source))
        reports = last_reports(before.reports, reading.generations, now)
        held = hold_generations(reports, reading.generations, now)
        since_s = missed_since(self.of(uid, source), reading, now)
        self._by_uid[uid] = _Kept(source, replace(reading, generations=held, missed_since_s=since_s), reports)

    def keep(self, uids: Container[str]) -> None:
        """Drop the readings of all fleets but these."""
        self._by_uid = {uid: kept for uid, kept in self._by_uid.items() if uid in uids}

    def ask(self) -> None:
        """Have the sources asked soon."""
        self.asked.set()


def missed_since(before: FleetReading, after: FleetReading, now: float) -> float | None:
    """When the first reading in a row was taken that had no lengths; None if this one has."""
    if isinstance(after.metrics.lengths, Sample):
        return None
    return now if before.missed_since_s is None else before.missed_since_s


def last_reports(before: Mapping[str, Report], after: Mapping[str, Reading[int]], now: float) -> dict[str, Report]:
    """The last fresh report of each pod that is asked for, if it has made one."""
    known = {pod: Report(read, now) if isinstance(read, Sample) else before.get(pod) for pod, read in after.items()}
    return {pod: report for pod, report in known.items() if report is not None}


def hold_generations(
    reports: Mapping[str, Report], after: Mapping[str, Reading[int]], now: float
) -> dict[str, Reading[int]]:
    """`after`, in which a report that was read less than `GAP_S` ago stands as fresh."""
    return {pod: _held(reports.get(pod), reading, now) for pod, reading in after.items()}


def _held(report: Report | None, after: Reading[int], now: float) -> Reading[int]:
    match after:
        case Stale(value=value, at_s=at_s):
            return Sample(value, at_s) if now - at_s < GAP_S else after
        case Missing():
            return report.reading if report is not None and now - report.read_at_s < GAP_S else after
    return after
