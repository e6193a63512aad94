"""What the pod scrape keeps of one pod for sizing: its series over the slow window, and what waited there meanwhile.

Between two scrapes so many requests are taken to have waited as the first of them has shown. A pod that its fleet no
longer names is kept by its caller for as long as the window reaches: what came to it still counts, less and less.
"""

from __future__ import annotations

from collections.abc import Mapping

from prefleet_operator.adapters.fleet_reading import Key
from prefleet_operator.adapters.pod_history import PodHistory
from prefleet_operator.adapters.pod_load import QUEUED, WAITED, WATCHED, counts_up, fast, waiting_of
from prefleet_operator.adapters.role_load import Windows
from prefleet_operator.core.engine_metrics import EngineMetrics

_TIMES: tuple[Key, ...] = ((WAITED, ""), (QUEUED, ""))


class LoadHistory:
    """One pod."""

    def __init__(self, engine: EngineMetrics | None, windows: Windows) -> None:
        self._engine = engine
        self._windows = windows
        self._history = PodHistory(lambda key: key in _TIMES or counts_up(key))
        self._waiting: float | None = None
        self._waited_s = self._queued_s = 0.0

    @property
    def at_s(self) -> float | None:
        """When it was last scraped."""
        return self._history.at_s

    @property
    def full(self) -> bool:
        """Whether too many series have been shown."""
        return self._history.full

    def add(self, series: Mapping[Key, float], now: float) -> None:
        """Take in a scrape."""
        if self.at_s is not None and self._waiting is not None:
            elapsed_s = max(0.0, now - self.at_s)
            self._waited_s += elapsed_s * self._waiting
            self._queued_s += elapsed_s if self._waiting >= 1 else 0.0
        self._waiting = waiting_of(series, self._engine)
        times = dict(zip(_TIMES, (self._waited_s, self._queued_s), strict=True))
        self._history.add({**series, **times}, now, self._windows.slow_s)

    def series(self, now: float) -> dict[Key, float]:
        """Gauges as last shown, and increases over the windows that end `now`; see `pod_load`."""
        since_s = now - self._windows.slow_s
        grown, watched_s = self._history.growth(since_s), self._history.watched_s(since_s)
        series = self._history.gauges() | grown
        if watched_s:
            series |= {key: grown[key] / watched_s for key in _TIMES if key in grown}
            series[WATCHED, ""] = watched_s
        recent = self._history.growth(now - self._windows.fast_s)
        return series | {(fast(name), label): value for (name, label), value in recent.items()}
