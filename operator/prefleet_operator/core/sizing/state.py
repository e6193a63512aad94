"""What is known of a fleet's sizes between two turns, and the part of it that `.status.autoscaling` keeps.

In the process there is a `SizingState` for each fleet: the last decision, when it was taken and the whole memory. In
the status stand the numbers that matter to people and the memory as it was when they last changed. What a decision
weighs moves all the time, and near a step so does the reason for a number that stays; one scrape that fails is no news
either. So `tell` writes at once only what changes a number, who sets it or who acted on waits, and what a changed spec
brings, and that a role is measured again: to say for another minute that it is not would mislead, and since the loss
itself is said only after one, that cannot come and go. Other words stand in a status once each decision has had the
same ones for `STEADY_S`.

Anybody may write a status. A memory of another version, one that is no memory, or one that knows the future, is lost:
then it begins anew, and until a whole window has been seen nothing shrinks. Nor does it after a restart: nobody knows
what was needed since the memory was written but that the number stood, so the number counts as needed until now, and so
does the live one where that is higher: whoever set it ended before the status was written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

from pydantic import TypeAdapter, ValidationError

from prefleet_operator.api import Actuator, Role, RoleSizeStatus, SizingStatus
from prefleet_operator.core.reasons import UNMEASURED, Reason
from prefleet_operator.core.sizing.arbiter import WaitsMemory
from prefleet_operator.core.sizing.steps import remember
from prefleet_operator.core.sizing.values import MARKS, Glance, Mark, RoleMemory, RoleSize, SizingMemory
from prefleet_operator.core.status import wording
from prefleet_operator.core.tuning import format_time

STATE_VERSION = 1
MOST_MARKS = 4 * MARKS
CLOCK_SKEW_S = 60.0
"""How far the clock of an operator that led before may have been ahead."""

STEADY_S = 60.0
"""For how long a number that stays must do so for another reason before that is said."""
RECALLED = 0
"""The generation of a state that another process has left."""

_MEMORY: TypeAdapter[SizingMemory] = TypeAdapter(SizingMemory)


@dataclass(frozen=True, slots=True)
class SizingState:
    """The last decision on the sizes of one fleet.

    `sizes`: none yet, before the first decision of this process. `before`: the replicas that each was decided from.
    `wanted`: the number last decided, be it by another process. `decided_at_s`: Unix seconds; `generation`: of the spec
    that it was decided for. `unsaid`: other words about the same numbers than the status has, and since when. `apart`:
    since when a role has had other replicas than its number, 0 where this process found it so.
    """

    actuator: Actuator
    memory: SizingMemory = field(default_factory=SizingMemory)
    wanted: Mapping[Role, int] = field(default_factory=dict)
    sizes: Mapping[Role, RoleSize] = field(default_factory=dict)
    before: Mapping[Role, int] = field(default_factory=dict)
    decided_at_s: float | None = None
    generation: int = RECALLED
    unsaid: tuple[object, float] | None = None
    apart: Mapping[Role, float] = field(default_factory=dict)

    def with_waits(self, waits: WaitsMemory) -> SizingState:
        """The same with another memory of who acted on long waits."""
        return replace(self, memory=replace(self.memory, waits=waits))


def recall_state(
    status: SizingStatus | None, actuator: Actuator, window_s: float, live: Mapping[Role, int], now: float
) -> SizingState:
    """What the status knows; without one, or with one that cannot be used, the state of a new fleet. `window_s`: for
    how long a need is remembered; `live`: by role, the replicas that its workload is to have."""
    if status is None or status.state_version != STATE_VERSION:
        return SizingState(actuator)
    wanted = {size.name: size.desired for size in status.roles}
    memory = recall_memory(status.memory, now)
    roles = {
        role: replace(known, needs=remember(known.needs, float(max(wanted[role], live.get(role, 0))), window_s, now))
        for role, known in memory.roles.items()
        if role in wanted
    }
    return SizingState(status.actuator, replace(memory, roles=roles), wanted)


def recall_memory(record: Mapping[str, Any], now: float) -> SizingMemory:
    """The memory that was written there; a new one if it is none."""
    try:
        memory = _MEMORY.validate_python(asdict(SizingMemory.from_record(record)))
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError):
        return SizingMemory()
    roles = memory.roles.values()
    short = all(len(marks) <= MOST_MARKS for role in roles for marks in _windows(role))
    known = (each for role in roles for each in (role.capacity, role.token_capacity) if each is not None)
    sound = short and all(each.mean > 0 and each.spread >= 0 for each in known)
    return memory if sound and is_past(memory, now) else SizingMemory()


def is_past(memory: SizingMemory, now: float) -> bool:
    """Whether no time in it is yet to come: a clock may have been put back."""
    return all(0 <= at_s <= now + CLOCK_SKEW_S for at_s in _times(memory))


def _windows(role: RoleMemory) -> tuple[Sequence[Mark | Glance], ...]:
    return role.needs, role.demands, role.glances


def _times(memory: SizingMemory) -> Iterator[float]:
    times = [memory.waits.at_s]
    for role in memory.roles.values():
        times += [role.fell_at_s, role.rose_at_s, role.learnt_at_s]
        marks = (mark for mark in (role.base, role.raised) if mark is not None)
        times += [mark.at_s for mark in chain(marks, *_windows(role))]
    return (at_s for at_s in times if at_s is not None)


def tell(
    state: SizingState, previous: SizingStatus | None, renewed: bool, now: float
) -> tuple[SizingState, SizingStatus]:
    """`.status.autoscaling`, which is `previous` unless something is to be said, and the state with what is not said
    yet. `renewed`: the spec is another than that of the status."""
    current = to_status(state, previous, now)
    if previous is None or renewed or _numbers(previous) != _numbers(current) or _sees_again(previous, current):
        return replace(state, unsaid=None), current
    words = _words(current)
    if words == _words(previous):
        return replace(state, unsaid=None), previous
    if state.unsaid is None or state.unsaid[0] != words:
        return replace(state, unsaid=(words, now)), previous
    if now - state.unsaid[1] < STEADY_S:
        return state, previous
    return replace(state, unsaid=None), current


def to_status(state: SizingState, previous: SizingStatus | None, now: float) -> SizingStatus:
    """The state as a status; `previous` says when numbers last changed."""
    known = {} if previous is None else {size.name: size for size in previous.roles}
    return SizingStatus(
        state_version=STATE_VERSION,
        actuator=state.actuator,
        roles=[_role_status(size, state.before[role], known.get(role), now) for role, size in state.sizes.items()],
        memory=state.memory.to_record(),
    )


def _role_status(size: RoleSize, before: int, known: RoleSizeStatus | None, now: float) -> RoleSizeStatus:
    moved = size.desired != (before if known is None else known.desired)
    return RoleSizeStatus(
        name=size.role,
        desired=size.desired,
        reason=size.reason.value,
        message=size.message,
        estimate=size.estimate,
        limited=size.limited,
        # JSON knows no infinity.
        numbers={name: float(f"{value:.4g}") for name, value in size.numbers.items() if math.isfinite(value)},
        moved_at=format_time(now) if moved else None if known is None else known.moved_at,
    )


def _numbers(status: SizingStatus) -> object:
    """What is said at once: numbers, and whose they are; a reason that somebody else has written is none."""
    waits = {name: status.memory.get(name) for name in WaitsMemory().to_record()}
    another = Reason.SCALED_BY_ANOTHER
    sizes = [(size.name, size.desired, size.reason in set(Reason), size.reason == another) for size in status.roles]
    return status.state_version, status.actuator, sizes, waits


def _sees_again(previous: SizingStatus, current: SizingStatus) -> bool:
    """Whether a role is measured of which the status says that it is not."""
    blind = {size.name for size in previous.roles if size.reason in UNMEASURED}
    return any(size.name in blind and size.reason not in UNMEASURED for size in current.roles)


def _words(status: SizingStatus) -> object:
    return [(size.reason, size.estimate, size.limited, wording(size.message)) for size in status.roles]
