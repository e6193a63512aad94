"""The last thing that metrics sources said of each fleet, by the uid of its policy.

A policy that is deleted and made again under the same name is another one: what was read of the old one's pods
must not tune the new one.

A pod's report of its generation stands for `HOLD_S` after it can no longer be read: one scrape that fails
proves nothing about the policy that the pod runs. Readings of load are not held: the tuner holds by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping
from dataclasses import replace

from prefleet_operator.adapters.metrics_source import FleetReading
from prefleet_operator.core.observed import Missing, Reading, Sample, Stale

HOLD_S = 30.0


class Readings:
    """Readings by the policy's uid. `asked` is set when somebody needs one that is not there yet."""

    def __init__(self) -> None:
        self._by_uid: dict[str, FleetReading] = {}
        self.asked = asyncio.Event()

    def known(self, uid: str) -> bool:
        """Whether any source has been asked about the fleet."""
        return uid in self._by_uid

    def of(self, uid: str) -> FleetReading:
        """The last reading, or one in which everything is missing."""
        return self._by_uid.get(uid, FleetReading())

    def put(self, uid: str, reading: FleetReading, now: float) -> None:
        """Keep a new reading."""
        held = hold_generations(self.of(uid).generations, reading.generations, now)
        self._by_uid[uid] = replace(reading, generations=held)

    def keep(self, uids: Container[str]) -> None:
        """Drop the readings of all fleets but these."""
        self._by_uid = {uid: reading for uid, reading in self._by_uid.items() if uid in uids}

    def ask(self) -> None:
        """Have the sources asked soon."""
        self.asked.set()


def hold_generations(
    before: Mapping[str, Reading[int]], after: Mapping[str, Reading[int]], now: float
) -> dict[str, Reading[int]]:
    """`after`, in which a report that is younger than `HOLD_S` stands as fresh."""
    return {pod: _held(before.get(pod), reading, now) for pod, reading in after.items()}


def _held(before: Reading[int] | None, after: Reading[int], now: float) -> Reading[int]:
    last = before if isinstance(after, Missing) else after
    if isinstance(last, Sample | Stale) and now - last.at_s < HOLD_S:
        return Sample(last.value, last.at_s)
    return after
