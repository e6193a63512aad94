"""The one interface of all metrics sources.

A source is asked once a cycle for all fleets together. It never raises for what happens on the other
side: a source that is down, slow or talks nonsense answers `Missing` with a sentence, and one whose
series have stopped moving answers `Stale`. An empty answer is Missing, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prefleet_runtime.contract import DEFAULT_EXPORTER_PORT

from prefleet_operator.api import LengthMeasure, Role
from prefleet_operator.core.engine_metrics import EngineMetrics
from prefleet_operator.core.observed import FleetMetrics, Reading
from prefleet_operator.core.sizing.values import RoleLoad


@dataclass(frozen=True, slots=True)
class PodTarget:
    """One pod. `ip` is None until it has one; `exporter_port`: of the runtime's metrics, or of the engine's own.

    `current`: it runs the policy in force, so that its waits are waits under that one. A runtime tells waits by lane,
    and swaps its policy while it serves: there it is always so.
    """

    name: str
    role: Role
    ip: str | None
    exporter_port: int = DEFAULT_EXPORTER_PORT
    current: bool = True

    @property
    def prefills(self) -> bool:
        """Whether its queue is one that the tuner looks at."""
        return self.role is not Role.DECODE


@dataclass(frozen=True, slots=True)
class FleetQuery:
    """What is asked for one fleet. `window_s`: seconds of history; `length`: which histogram of lengths.

    `engine`: how its engine names its own metrics; None where its pods run the runtime, whose exporter is read.
    `sized`: its roles are sized, so that their loads are asked for.
    """

    namespace: str
    name: str
    pods: tuple[PodTarget, ...]
    window_s: float
    length: LengthMeasure
    engine: EngineMetrics | None = None
    sized: bool = False

    @property
    def key(self) -> str:
        """The fleet's name across namespaces."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class FleetReading:
    """What a source says of one fleet.

    `generations`: by pod name, the one that its runtime reports; none of an engine without it. `pod_loads`: by pod name
    the requests in the engine, waiting, running or with KV that is kept for a decode pod; of an engine without the
    runtime where the fleet is sized. `loads`: of the roles that have pods, of a fleet that is sized. `missed_since_s`:
    when the first reading in a row was taken that had no lengths; whoever keeps readings knows it, no source does.
    """

    metrics: FleetMetrics = field(default_factory=FleetMetrics)
    generations: Mapping[str, Reading[int]] = field(default_factory=dict)
    loads: Mapping[Role, RoleLoad] = field(default_factory=dict)
    pod_loads: Mapping[str, Reading[float]] = field(default_factory=dict)
    missed_since_s: float | None = None


class MetricsSource(Protocol):
    """Where metrics come from."""

    async def read(self, fleets: Sequence[FleetQuery], now: float) -> Mapping[str, FleetReading]:
        """The readings of every fleet asked for, by `FleetQuery.key`; `now` in Unix seconds."""

    async def close(self) -> None:
        """Let go of connections."""
