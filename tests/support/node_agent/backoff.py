"""How long a kubelet waits before it starts a container that ended. Pure: the time is an argument.

The first restart is immediate; then the delay is `base_s`, doubled each time up to `cap_s`, and counted from the
moment the container ended. A container whose last restart lies more than two caps back begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class BackOff:
    """Immutable: `after_restart` gives the value to use from then on. Seconds throughout."""

    base_s: float = 10.0
    cap_s: float = 300.0
    delay_s: float = 0.0
    restarted_at: float | None = None

    def wait_s(self, ended_at: float, now: float) -> float:
        """What is left to wait at `now` for a container that ended at `ended_at`."""
        if self._expired(ended_at):
            return 0.0
        return max(0.0, ended_at + self.delay_s - now)

    def current_delay_s(self, ended_at: float) -> float:
        """The whole delay that applies to a container that ended at `ended_at`."""
        return 0.0 if self._expired(ended_at) else self.delay_s

    def after_restart(self, ended_at: float, now: float) -> BackOff:
        grown = self.base_s if self._expired(ended_at) or not self.delay_s else self.delay_s * 2
        return replace(self, delay_s=min(grown, self.cap_s), restarted_at=now)

    def _expired(self, ended_at: float) -> bool:
        return self.restarted_at is not None and ended_at - self.restarted_at > 2 * self.cap_s
