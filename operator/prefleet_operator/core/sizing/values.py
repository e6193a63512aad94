"""What sizing reads, decides and remembers. Values only.

Units: seconds, tokens, pods. Work is seconds of engine steps that are full; so work per second is a number of pods.
A role's memory is small (some two dozen pairs of numbers), and `to_record` and `from_record` write and read it
exactly, times in whole seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, TypeVar

from prefleet_operator.api import Role
from prefleet_operator.core.observed import HistogramSnapshot, Missing, Reading
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.sizing.arbiter import WaitSignal, WaitsMemory

MARKS = 12
"""A window of memory is kept in so many parts."""

_UNASKED = Missing("not asked yet")

ReplayFunction = Callable[[int], float]
"""Pods -> the wait in seconds at the quantile of the rules, over the recorded requests at their present rate."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """The fitted cost of an engine step in seconds, by the terms of `prefleet_runtime.stage.cost_model`."""

    fixed: float
    prefill_token: float
    decode_token: float = 0.0
    attention_pair: float = 0.0
    decode_context_token: float = 0.0


@dataclass(frozen=True, slots=True)
class PodServed:
    """What one pod did, per second of the slow window, and whether that was all it could.

    `busy`: the part of the time that it spent in steps. `waiting`: requests that waited at the pod, on average.
    """

    name: str
    prefill_tokens: float
    decode_tokens: float = 0.0
    busy: float = 0.0
    waiting: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleMeasures:
    """What a metrics source measures of one role, whoever asks.

    `arrivals`, `recent`: lengths of requests as they arrive, counted over `slow_s` and over `fast_s`.
    `waiting_tokens`: prompt tokens that wait. `generated`: tokens per second; `running`: sequences; `kv_usage`: 0 to 1,
    the mean of the ready pods; `kv_tokens`: what one pod's KV cache holds; `gap_s`: the mean inter-token gap.
    """

    slow_s: float = 300.0
    fast_s: float = 60.0
    arrivals: Reading[HistogramSnapshot] = _UNASKED
    recent: Reading[HistogramSnapshot] = _UNASKED
    waiting_tokens: Reading[float] = _UNASKED
    waiting: Reading[float] = _UNASKED
    step_cost: Reading[StepCost] = _UNASKED
    generated: Reading[float] = _UNASKED
    running: Reading[float] = _UNASKED
    kv_usage: Reading[float] = _UNASKED
    kv_tokens: Reading[float] = _UNASKED
    gap_s: Reading[float] = _UNASKED
    served: tuple[PodServed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSignals(RoleMeasures):
    """One role's pods as the API server and the metrics source show them.

    `replicas` wanted now, of which `ready` serve and `starting` will. `start_s`: from creation to ready, as the role's
    pods took. `step_tokens`: the engine's token budget of a step. `template`: the digest of what all ready pods were
    made of, None while they differ or none is ready; `made_of`: a digest of what the spec says of it. `other`: who else
    sets the replicas, "" if nobody does.
    """

    replicas: int
    ready: int
    starting: int = 0
    start_s: Reading[float] = _UNASKED
    step_tokens: int = 2048
    template: str | None = ""
    made_of: str = ""
    other: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleLoad(RoleMeasures):
    """What a metrics source says of one role. `step_tokens` may not be shown.

    `served` is empty unless every pod of the role was read, since what pods can do is learnt of all together.
    """

    step_tokens: Reading[int] = _UNASKED


@dataclass(frozen=True, slots=True)
class RoleRules:
    """Bounds of one role, and the accelerators of one of its pods (0: none are asked for)."""

    min_replicas: int
    max_replicas: int
    accelerators: int = 0


@dataclass(frozen=True, slots=True)
class SizingRules:
    """What the spec asks for.

    `wait_s` at `quantile`: how long a request may wait. `drain_s`: a backlog is gone after so long. `ratio`: least and
    most prefill pods per decode pod. `quota`: accelerators that the fleet may have. `down_window_s`: a fleet shrinks
    to what it needed at most in this time.
    """

    roles: Mapping[Role, RoleRules]
    wait_s: float = 8.0
    quantile: float = 0.95
    gap_s: float = 0.2
    drain_s: float = 120.0
    ratio: tuple[float, float] | None = None
    quota: int | None = None
    down_window_s: float = 300.0
    cooldown_s: float = 900.0


@dataclass(frozen=True, slots=True)
class SizingInputs:
    """One fleet. `waits`: what the tuner says of long waits. `replay`: tries a number of prefill (or mixed) pods."""

    roles: Mapping[Role, RoleSignals]
    rules: SizingRules
    waits: WaitSignal | None = None
    replay: ReplayFunction | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A value that was the highest of its part of a window, which began at `at_s` (Unix seconds)."""

    at_s: int
    value: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """Work (or tokens, where no cost is known) per second that a pod really does: mean and deviation over the pods."""

    mean: float
    spread: float = 0.0

    @property
    def low(self) -> float:
        """What one may count on: a deviation less than the mean, and half of it at least."""
        return max(self.mean / 2, self.mean - self.spread)


@dataclass(frozen=True, slots=True)
class Glance:
    """What the fast window saw at `at_s`: work per second, its standard deviation, requests per second."""

    at_s: int
    per_s: float
    deviation: float
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class RoleMemory:
    """What a decision takes from the past.

    `in_tokens`: demands and glances count tokens, not work.
    Needs and demands of the windows; what the fast window saw lately; capacity as learnt, and when; the last fall and
    the last rise; the replicas as the present period of damping began; what long waits raised the role to.
    `template`, `made_of`: of the pods that all this was measured of, as in `RoleSignals`; None where nobody said.
    """

    needs: tuple[Mark, ...] = ()
    demands: tuple[Mark, ...] = ()
    glances: tuple[Glance, ...] = ()
    in_tokens: bool = False
    capacity: Capacity | None = None
    token_capacity: Capacity | None = None
    learnt_at_s: int | None = None
    fell_at_s: int | None = None
    rose_at_s: int | None = None
    base: Mark | None = None
    raised: Mark | None = None
    template: str | None = None
    made_of: str = ""


@dataclass(frozen=True, slots=True)
class SizingMemory:
    """Memory of all roles, and who acted last on the long waits."""

    roles: Mapping[Role, RoleMemory] = field(default_factory=dict)
    waits: WaitsMemory = field(default_factory=WaitsMemory)

    def to_record(self) -> dict[str, Any]:
        """For `.status`: JSON values only."""
        return {"roles": {role.value: _role_record(one) for role, one in self.roles.items()}, **self.waits.to_record()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> SizingMemory:
        """What `to_record` wrote; an empty record is the memory of a new fleet."""
        roles = {Role(name): _role_memory(one) for name, one in record.get("roles", {}).items()}
        return cls(roles, WaitsMemory.from_record(record))


Known = TypeVar("Known")


def _role_record(memory: RoleMemory) -> dict[str, Any]:
    def numbers(value: Mark | Capacity | None) -> list[float] | None:
        return None if value is None else list(astuple(value))

    return {
        "needs": [numbers(mark) for mark in memory.needs],
        "demands": [numbers(mark) for mark in memory.demands],
        "glances": [list(astuple(glance)) for glance in memory.glances],
        "inTokens": memory.in_tokens,
        "capacity": numbers(memory.capacity),
        "tokenCapacity": numbers(memory.token_capacity),
        "learntAt": memory.learnt_at_s,
        "fellAt": memory.fell_at_s,
        "roseAt": memory.rose_at_s,
        "base": numbers(memory.base),
        "raised": numbers(memory.raised),
        "template": memory.template,
        "madeOf": memory.made_of,
    }


def _role_memory(record: Mapping[str, Any]) -> RoleMemory:
    def known(name: str, kind: Callable[..., Known]) -> Known | None:
        found = record.get(name)
        return None if found is None else kind(*found)

    return RoleMemory(
        needs=tuple(Mark(*pair) for pair in record.get("needs", ())),
        demands=tuple(Mark(*pair) for pair in record.get("demands", ())),
        glances=tuple(Glance(*numbers) for numbers in record.get("glances", ())),
        in_tokens=record.get("inTokens", False),
        capacity=known("capacity", Capacity),
        token_capacity=known("tokenCapacity", Capacity),
        learnt_at_s=record.get("learntAt"),
        fell_at_s=record.get("fellAt"),
        rose_at_s=record.get("roseAt"),
        base=known("base", Mark),
        raised=known("raised", Mark),
        template=record.get("template"),
        made_of=record.get("madeOf", ""),
    )


@dataclass(frozen=True, slots=True)
class RoleSize:
    """How many pods of one role, why, and the numbers that decided.

    `estimate`: a formula stood for a replay, or lengths for work. `limited`: it needs more than it may have.
    """

    role: Role
    desired: int
    reason: Reason
    message: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    estimate: bool = False
    limited: bool = False


@dataclass(frozen=True, slots=True)
class SizingDecision:
    """All roles."""

    roles: Mapping[Role, RoleSize]
