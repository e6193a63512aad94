"""How far each role of a fleet may go now, while its pods are replaced. Pure: (pods of each role) -> a gate for each.

A *new* pod is of the revision that is wanted, an *old* one of any other; so a rollback is a rollout whose new
revision is the one before. Each role is rolled by the controller of its own Deployment or LeaderWorkerSet, which
takes its next step by itself once the pods of the last one serve. A gate steers that controller: by the surge and
the absence that it may use at this moment, and, closed, by pausing it. The operator looks at the pods whenever one of
them changes and sets the gates anew; the same pods give the same gates. A role without old pods has no gate: its
own `rollout` holds.

Bounds, for a role with W wanted pods, at every step that the gates let a controller take:

    serving   at least W - D pods are ready. D is the least of max_unavailable, of `slack` x W, and of 1 until the
              first new pod of the role is ready: a revision that does not start costs at most one pod. Above
              max_surge 0, max_unavailable may be 0; and surge is used before absence.
    ratio     so the ready share (at most 1) of each role lies between 1 - slack and 1, and of two roles neither falls
              further than `slack` behind the other: the ratio of their ready pods is that of their wanted ones,
              times something between 1 - slack and 1 / (1 - slack). A slack below one pod of a role could move
              nothing there, so one pod of each role is the least; it is the default, too.
    in step   a role makes new pods no further than `slack` x W ahead of the share of new pods that are ready in the
              slowest other role: half-way, each revision has both halves of the fleet

Old pods that do not serve hold nothing up: they go at once, whatever the other roles do, so a broken old revision
never blocks the next. New pods that are broken (they will not become ready by themselves) stop everything: no old pod
of any role is removed until they are mended or another revision is wanted. So do those that crashed and serve again,
until they have for `PROVEN_S`: else a revision that starts well and crashes at its work would replace all old pods, one
at each of its starts. A role that the last change left as it is
(not `changed`) and that has no old pods takes no part: nobody waits for it, and pods of it that are broken stop
nothing, since what they want may be just this change of the other role.

A gate closes only over a role that is at rest: as many pods as are wanted, and none that is yet to become ready. A
paused Deployment that is between removing an old pod and making its new one would be filled up in proportion to the
old one, and one that is paused while a new pod starts would never say that it makes no progress. A role that may
not go on but is not at rest is held open: its controller may end what it has begun, and nothing else. Pods beyond
those wanted stay until the gate opens, as far as max_surge allows; others go, by the controller's own proportions.

The bounds of a Deployment are exact as long as the gates follow before its controller takes the next step: it waits
until a new pod has been ready for minReadySeconds, and the operator has that time. Without an operator each role goes
on within the last gate, which serves no fewer pods than served when it was set, or waits; the next look brings the
roles into step again. Pods that fail by themselves may break the bounds; then no gate lets further serving pods go.

Left out: how pods are told apart, which pod of a role goes first, and that a pod that ends holds its accelerators
until it has: a scheduler makes the new one wait for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Final

PROVEN_S: Final = 300.0
"""How long a new pod that crashed has to serve before old ones may go on to go. Without a crash minReadySeconds do."""

STOPPED: Final = "The rollout has stopped"
"""How the sentence begins that says so."""

Limit = int | str
"""A number of pods, or a share of them such as "25%"."""


@dataclass(frozen=True, slots=True)
class RolePods:
    """The pods of one role now that are there to stay. `new_broken`: those of `new_unready` that will not become ready
    by themselves. `new_unproven`: those of `new_ready` that crashed before, and have not served for `PROVEN_S` since.
    `max_surge`, `max_unavailable`: what the role's own rollout allows. `changed`: the last change of the
    spec made its pods other ones."""

    wanted: int
    old_ready: int = 0
    old_unready: int = 0
    new_ready: int = 0
    new_unready: int = 0
    new_broken: int = 0
    new_unproven: int = 0
    max_surge: int = 0
    max_unavailable: int = 1
    changed: bool = True

    def __post_init__(self) -> None:
        if self.max_surge == 0 and self.max_unavailable == 0:
            raise ValueError("max_surge or max_unavailable must be above 0: else nothing could be replaced")
        if self.new_broken > self.new_unready:
            raise ValueError(f"new_broken {self.new_broken} counts among new_unready {self.new_unready}")
        if self.new_unproven > self.new_ready:
            raise ValueError(f"new_unproven {self.new_unproven} counts among new_ready {self.new_ready}")

    @property
    def suspect(self) -> int:
        """New pods that show their revision to be a bad one, as far as is known by now."""
        return self.new_broken + self.new_unproven

    @property
    def old(self) -> int:
        """Pods of other revisions."""
        return self.old_ready + self.old_unready

    @property
    def new(self) -> int:
        """Pods of the wanted revision."""
        return self.new_ready + self.new_unready

    @property
    def ready(self) -> int:
        """Pods that serve."""
        return self.old_ready + self.new_ready

    @property
    def total(self) -> int:
        """All pods that are there to stay."""
        return self.old + self.new

    @property
    def done(self) -> bool:
        """Whether there is what is wanted, and nothing else."""
        return self.old == 0 and self.new_ready == self.new == self.wanted

    @property
    def at_rest(self) -> bool:
        """Whether no step is half done."""
        return self.new_unready == 0 and self.total >= self.wanted

    @property
    def progress(self) -> Fraction:
        """The share of the wanted pods that are new and ready."""
        return Fraction(min(self.new_ready, self.wanted), self.wanted) if self.wanted else Fraction(1)


@dataclass(frozen=True, slots=True)
class Gate:
    """What the controller of one role may do now. Closed: nothing. `max_surge`, `max_unavailable`: more and fewer pods
    than wanted, not both 0; `new`: how many new pods there may be. `waits`: the role may not go on for the sake of
    others, whether or not the gate is closed."""

    open: bool
    max_surge: int
    max_unavailable: int
    new: int
    waits: bool


def resolve_limits(max_surge: Limit, max_unavailable: Limit, wanted: int) -> tuple[int, int]:
    """Both as numbers of pods, as Kubernetes counts them: a share of surge is rounded up, one of absence down, and if
    that leaves nothing at all, one pod may be absent."""
    surge, unavailable = _share(max_surge, wanted), _share(max_unavailable, wanted)
    numbers = ceil(surge), floor(unavailable)
    return numbers if any(numbers) else (0, 1)


def _share(limit: Limit, wanted: int) -> Fraction:
    return Fraction(limit) if isinstance(limit, int) else Fraction(int(limit.removesuffix("%")) * wanted, 100)


def least_slack(fleet: Mapping[str, RolePods]) -> Fraction:
    """One pod of the smallest role, as a share: the narrowest bound under which every role can move."""
    return max((Fraction(1, pods.wanted) for pods in fleet.values() if pods.wanted), default=Fraction(1))


def next_gates(fleet: Mapping[str, RolePods], slack: Fraction | None = None) -> dict[str, Gate]:
    """The gate of each role that has old pods; `slack` as above, `least_slack` if None or below it."""
    least = least_slack(fleet)
    bound = min(Fraction(1), max(least, slack or least))
    involved = _involved(fleet)
    rolling = {role: pods for role, pods in involved.items() if pods.old and pods.wanted}
    if any(pods.suspect for pods in involved.values()):
        return {role: _held(pods, waits=not pods.suspect) for role, pods in rolling.items()}
    return {role: _gate(pods, _others(involved, role), bound) for role, pods in rolling.items()}


def _involved(fleet: Mapping[str, RolePods]) -> dict[str, RolePods]:
    """The roles that take part."""
    return {role: pods for role, pods in fleet.items() if pods.changed or pods.old}


def may_leave(fleet: Mapping[str, RolePods], lacks_room: bool) -> bool:
    """Whether the pods of roles that the spec has no more may go: once those in their place serve, or as soon as these
    find no room, which then is theirs to make. `lacks_room`: no node takes one of them, or a quota forbids it."""
    return lacks_room or all(pods.ready >= pods.wanted for pods in fleet.values())


def _others(fleet: Mapping[str, RolePods], role: str) -> Fraction:
    """How far the slowest other role is."""
    return min((pods.progress for name, pods in fleet.items() if name != role), default=Fraction(1))


def _gate(pods: RolePods, others: Fraction, slack: Fraction) -> Gate:
    in_step = min(pods.wanted, floor((others + slack) * pods.wanted))
    # How many old pods that serve new ones may follow, and how many of them nobody would miss.
    replaceable = pods.old_ready + max(in_step, pods.new) - pods.wanted
    free = max(0, pods.ready - pods.wanted)
    surge = min(pods.max_surge, max(0, replaceable - free))
    limit = min(pods.max_unavailable, floor(slack * pods.wanted), pods.wanted if pods.new_ready else 1)
    spare = pods.ready - max(0, pods.wanted - limit)
    goes = max(0, min(pods.old_ready, spare, replaceable - surge))
    new = min(pods.wanted, max(in_step, pods.wanted - pods.old_ready + goes))
    # The controller counts from the pods that are wanted: it may remove what is ready beyond `wanted - unavailable`,
    # and first of all whatever is not ready.
    unavailable = max(0, pods.wanted - pods.ready + goes)
    if new == pods.wanted and not unavailable:
        # Nobody is waited for, and no more new pods can be made than are wanted.
        surge = pods.max_surge
        unavailable = 0 if surge else 1
    if surge or unavailable:
        return Gate(True, surge, unavailable, max(new, pods.new), waits=False)
    return _held(pods, waits=True)


def _held(pods: RolePods, waits: bool) -> Gate:
    """Nothing more than what has been begun. Of ready pods beyond those wanted an open controller removes old ones, and
    must have no room to make new ones for them."""
    beyond = pods.total - pods.wanted
    if not pods.at_rest:
        beyond -= max(0, pods.ready - pods.wanted)
    surge = min(pods.max_surge, max(0, beyond))
    unavailable = max(0, pods.wanted - pods.old - pods.new_ready)
    return Gate(
        open=not pods.at_rest,
        max_surge=surge,
        max_unavailable=unavailable if surge or unavailable else 1,
        new=max(pods.new, pods.wanted - pods.old),
        waits=waits,
    )


def tell_rollout(fleet: Mapping[str, RolePods], gates: Mapping[str, Gate], late: Collection[str] = ()) -> str:
    """How far the rollout is and what it waits for, in one sentence; "" if no role has old pods. `late`: roles whose
    controller says that it makes no progress, or may make no pods."""
    if not gates:
        return ""
    fleet = _involved(fleet)
    far = ", ".join(f"{fleet[role].new_ready} of {fleet[role].wanted} new {role} pods are ready" for role in gates)
    if any(pods.new_broken for pods in fleet.values()):
        broken = _each(fleet, {role: pods.new_broken for role, pods in fleet.items()})
        return (
            f"{STOPPED} ({far}): {broken} will not become ready by themselves, and old ones stay: "
            "apply a spec that mends them, or the last one that worked."
        )
    if any(pods.new_unproven for pods in fleet.values()):
        crashed = _each(fleet, {role: pods.new_unproven for role, pods in fleet.items()})
        return f"The rollout waits ({far}): {crashed} crashed, and have to serve for {PROVEN_S / 60:.0f} minutes first."
    waiting = [role for role, gate in gates.items() if gate.waits]
    told = "; ".join(f"{role} waits for {_slowest(fleet, role)}" for role in waiting)
    goes = "makes no progress" if any(role in gates for role in late) else "goes on"
    return f"The rollout {goes}: {far}{f'; {told}' if told else ''}."


def _each(fleet: Mapping[str, RolePods], counts: Mapping[str, int]) -> str:
    """Of the new pods of each role, so many."""
    return ", ".join(f"{count} of {fleet[role].new} new {role} pods" for role, count in counts.items() if count)


def _slowest(fleet: Mapping[str, RolePods], role: str) -> str:
    """The other role that is furthest behind, with its numbers."""
    name, pods = min(((name, pods) for name, pods in fleet.items() if name != role), key=lambda each: each[1].progress)
    return f"{name}, where {pods.new_ready} of {pods.wanted} new pods are ready"
