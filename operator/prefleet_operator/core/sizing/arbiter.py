"""Tune or scale: who acts on the waits of long requests, never both within one cooldown.

W_normal is what long requests wait under strict short-first. Where it is at least 0.9 of what they may wait, no
threshold and no wait limit helps: capacity is short, and the fleet grows. Below that waits that are too long come of an
unfit setting, and the tuner acts. Whoever acted has the cooldown to show what it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

CAPACITY_SHARE = 0.9


class Act(StrEnum):
    """Who may act."""

    TUNE = "Tune"
    SCALE = "Scale"
    WAIT = "Wait"
    NOTHING = "Nothing"


@dataclass(frozen=True, slots=True)
class WaitSignal:
    """W_normal in seconds (None: not known), what a long request may wait, and whether the threshold is unfit."""

    normal_s: float | None
    slo_s: float
    unfit: bool = False


@dataclass(frozen=True, slots=True)
class WaitsMemory:
    """Who acted last on long waits, and when."""

    act: Act | None = None
    at_s: int | None = None

    def to_record(self) -> dict[str, Any]:
        return {"waitsAct": self.act and self.act.value, "waitsActAt": self.at_s}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> WaitsMemory:
        act = record.get("waitsAct")
        return cls(None if act is None else Act(act), record.get("waitsActAt"))


def arbitrate(
    signal: WaitSignal | None, memory: WaitsMemory, cooldown_s: float, now: float
) -> tuple[Act, WaitsMemory, str]:
    """Who may act now, the memory of it, and a clause with the numbers."""
    wanted, told = _wanted(signal)
    if wanted is Act.NOTHING:
        return wanted, memory, told
    if memory.at_s is not None and now - memory.at_s < cooldown_s:
        left = f"{told}; {memory.act} acted on it {now - memory.at_s:.0f} s ago, within the cooldown {cooldown_s:.0f} s"
        return Act.WAIT, memory, left
    return wanted, WaitsMemory(wanted, int(now)), told


def _wanted(signal: WaitSignal | None) -> tuple[Act, str]:
    if signal is None or signal.normal_s is None:
        return Act.NOTHING, "the waits of long requests under strict short-first are not known"
    told = f"long requests wait {signal.normal_s:.1f} s under strict short-first, of {signal.slo_s:.1f} s that they may"
    if signal.normal_s >= CAPACITY_SHARE * signal.slo_s:
        return Act.SCALE, told
    return (Act.TUNE if signal.unfit else Act.NOTHING), told
