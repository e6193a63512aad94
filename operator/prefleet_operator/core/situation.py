"""What one decision about a fleet looks at: the spec, what the status remembers, and what was observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prefleet_operator.api import PrefillPolicySpec, PrefillPolicyStatus, Role
from prefleet_operator.core.native_policy import FleetPolicy
from prefleet_operator.core.observed import FleetMetrics, PodView, RouterView
from prefleet_operator.core.sizing.turn import SizingView


@dataclass(frozen=True, slots=True)
class LivePolicy:
    """What the ConfigMap says now. `policy` is None where its content cannot be read.

    `generation`: the highest that its content or annotation carries, so that not even garbage turns it back.
    `ours`: the operator wrote the present content, and nobody else has touched it.
    """

    policy: FleetPolicy | None
    generation: int
    ours: bool = True


@dataclass(frozen=True, slots=True)
class Situation:
    """All that one decision looks at.

    `spec`: with the live replicas of roles whose number somebody else's autoscaler sets (`sizing.others`).
    `stuck`: by role, why its rollout makes no progress; `refused`: why the cluster refuses to make its pods; `untaken`:
    since when its pods wait for a controller to take notice. `warnings`: what the engine has to say of the spec.
    `sizing`: what the sizes of a fleet that is autoscaled rest on. `missed_since_s`: when the first reading in a row
    was taken that had no lengths.
    """

    spec: PrefillPolicySpec
    generation: int
    status: PrefillPolicyStatus
    live: LivePolicy | None
    metrics: FleetMetrics
    pods: tuple[PodView, ...] = ()
    pod_generations: Mapping[str, int | None] = field(default_factory=dict)
    stuck: Mapping[Role, str] = field(default_factory=dict)
    untaken: Mapping[Role, float] = field(default_factory=dict)
    refused: Mapping[Role, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ("PodScrape",)
    warnings: tuple[str, ...] = ()
    router: RouterView | None = None
    sizing: SizingView = field(default_factory=SizingView)
    missed_since_s: float | None = None
