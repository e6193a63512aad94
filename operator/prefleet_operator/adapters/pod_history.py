"""What a pod has shown over a window of scrapes: gauges as they are, counters by how much they have grown.

Between two scrapes each counter has grown by a step (a counter that has fallen was reset, and has grown by what it
shows); the steps of the window, in a bounded number of slots, add up to its increases. Nothing is known of the time
before the first scrape, so that gives no increase; gauges it does give.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prefleet_operator.adapters.fleet_reading import Key

MAX_SERIES = 4000
"""Of one pod and of the names that are kept; the runtime shows some 600. More are not the runtime's doing, and would
take the memory that the operator has for all fleets."""
SLOTS = 60
FORGET_AFTER_S = 60.0


@dataclass(slots=True)
class _Slot:
    """Growth of counters between `start_s` and `end_s`, by their place in the history's index."""

    start_s: float
    end_s: float
    growth: array[float]


class PodHistory:
    """What one pod showed: its last scrape, and the growth of its counters over the window.

    A counter that one scrape leaves out, or shows as no number, is compared with its last number later on.
    """

    def __init__(self, counts_up: Callable[[Key], bool]) -> None:
        self.at_s: float | None = None
        self._counts_up = counts_up
        self._shown: Mapping[Key, float] = {}
        self._index: dict[Key, int] = {}
        self._last: array[float] = array("d")
        self._slots: deque[_Slot] = deque()

    @property
    def full(self) -> bool:
        """Whether too many series have been shown: each has a place for good, and a pod could ever show others."""
        return len(self._index) > MAX_SERIES

    def is_young(self, now: float) -> bool:
        """Whether the last scrape is so recent that the pod may well be asked for again."""
        return self.at_s is not None and now - self.at_s < FORGET_AFTER_S

    def add(self, series: Mapping[Key, float], now: float, window_s: float) -> None:
        """Take in a scrape. A gap longer than the window begins anew, and so does a clock that was put back, since its
        growth is of no known time."""
        growth = self._compare(series)
        if self.at_s is None or not 0 <= now - self.at_s <= window_s:
            self._slots.clear()
        else:
            self._note(_Slot(self.at_s, now, growth), window_s / SLOTS)
        self.at_s, self._shown = now, series
        while self._slots and self._slots[0].end_s <= now - window_s:
            self._slots.popleft()

    def series(self) -> dict[Key, float]:
        """Gauges as last shown, and the increases of the counters shown, if two scrapes lie in the window."""
        return self.gauges() | self.growth(-math.inf)

    def gauges(self) -> dict[Key, float]:
        """Gauges as last shown, and counters that are no number."""
        return {k: value for k, value in self._shown.items() if not self._counts_up(k) or not math.isfinite(value)}

    def growth(self, since_s: float) -> dict[Key, float]:
        """How much the counters shown have grown since; of a slot that reaches farther back, its part since then."""
        slots = [slot for slot in self._slots if slot.end_s > since_s]
        totals = [0.0] * len(self._index)
        for slot in slots:
            part = 1.0
            if slot.start_s < since_s:
                part = (slot.end_s - since_s) / (slot.end_s - slot.start_s)
            for place, value in enumerate(slot.growth):
                totals[place] += part * value
        counters = [k for k, value in self._shown.items() if self._counts_up(k) and math.isfinite(value)]
        return {key: totals[self._index[key]] for key in counters} if slots else {}

    def watched_s(self, since_s: float) -> float | None:
        """Of how many seconds that growth is, if of any."""
        if self.at_s is None or not self._slots or self.at_s <= since_s:
            return None
        return self.at_s - max(since_s, self._slots[0].start_s)

    def _compare(self, series: Mapping[Key, float]) -> array[float]:
        """How much each counter has grown since its last number; a new one by all it shows."""
        growth = array("d", bytes(8 * len(self._index)))
        for key, value in series.items():
            if not self._counts_up(key) or not math.isfinite(value):
                continue
            place = self._index.setdefault(key, len(self._index))
            if place == len(growth):
                growth.append(0.0)
                self._last.append(0.0)
            growth[place] = value - self._last[place] if value >= self._last[place] else value
            self._last[place] = value
        return growth

    def _note(self, slot: _Slot, width_s: float) -> None:
        """Append a slot, or add it to the newest while that is narrower than `width_s`."""
        newest = self._slots[-1] if self._slots else None
        if newest is None or slot.end_s - newest.start_s > width_s:
            self._slots.append(slot)
            return
        newest.end_s = slot.end_s
        newest.growth.extend([0.0] * (len(slot.growth) - len(newest.growth)))
        for place, value in enumerate(slot.growth):
            newest.growth[place] += value
