"""What was measured, and how sure of it one may be.

Missing data never looks like zero: every reading is a `Sample` (fresh), `Stale` (known, but older than it
should be) or `Missing` (with the reason), and every decision holds on the last two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from prefleet_operator.api import Role
from prefleet_operator.core.reasons import Reason

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample(Generic[T]):
    """A fresh reading, taken at `at_s` (Unix seconds)."""

    value: T
    at_s: float


@dataclass(frozen=True, slots=True)
class Stale(Generic[T]):
    """The last reading of a series that has stopped moving forward in time; `why`: in a sentence, if it is known."""

    value: T
    at_s: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """No reading; `reason` is a sentence for the condition's message."""

    reason: str

    @property
    def clause(self) -> str:
        """The reason without its full stop, for the middle of a sentence."""
        return self.reason.removesuffix(".")


Reading = Sample[T] | Stale[T] | Missing


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """Counts of one window by bucket.

    `bounds`: finite upper bounds, rising. `counts`: one per bound plus one for +Inf, not cumulative;
    floats, since a rate over a window extrapolates.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1:
            raise ValueError(f"{len(self.bounds)} bounds need {len(self.bounds) + 1} counts, not {len(self.counts)}")

    @property
    def total(self) -> float:
        """All observations of the window."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class FleetMetrics:
    """One fleet's readings over the tuning window, all of its prefill (or mixed) pods together.

    `lengths`: prompt lengths in tokens, as the spec's `length` measures them. `long_waits`: queue waits of
    the lane long, in seconds, from arrival to dispatch (promoted ones included). `promotion_waits`: waits of
    long requests at their promotion. `promotions`, `degradations`: counts over the window.
    `oldest_long_wait_s`: the oldest long request that waits now, over all pods. `waits`: queue waits of all requests
    together, in seconds, of an engine that knows no lanes.
    """

    lengths: Reading[HistogramSnapshot] = Missing("not asked yet")
    long_waits: Reading[HistogramSnapshot] = Missing("not asked yet")
    promotion_waits: Reading[HistogramSnapshot] = Missing("not asked yet")
    promotions: Reading[float] = Missing("not asked yet")
    degradations: Reading[float] = Missing("not asked yet")
    oldest_long_wait_s: Reading[float] = Missing("not asked yet")
    waits: Reading[HistogramSnapshot] = Missing("the fleet's pods tell waits by lane")


@dataclass(frozen=True, slots=True)
class PodTrouble:
    """Why a pod will not serve by waiting alone; `told` goes on after "pod NAME: ", without a full stop."""

    reason: Reason
    told: str


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of the fleet, as the API server and its exporter show it.

    `created_s`, `ready_since_s`: Unix times of its creation and of its turning ready, the last time that it did;
    `restarted`: a container of it has been started again. `reported_generation`: the policy generation that its
    runtime says it runs. `trouble`: why a pod that is not ready will not become so by itself. `template`: the digest of
    the template that it was made of; "" of an earlier release.
    """

    name: str
    role: Role
    ip: str | None
    ready: bool
    terminating: bool = False
    ready_since_s: float | None = None
    reported_generation: Reading[int] = Missing("not asked yet")
    trouble: PodTrouble | None = None
    created_s: float | None = None
    restarted: bool = False
    template: str = ""


@dataclass(frozen=True, slots=True)
class RouterView:
    """The router's Deployment: how many of its pods are ready and wanted, and why its rollout makes no progress, or its
    pods are refused, if so; `trouble`: why one of them will not become ready by itself."""

    ready: int = 0
    stuck: str | None = None
    wanted: int = 0
    refused: str | None = None
    trouble: PodTrouble | None = None
