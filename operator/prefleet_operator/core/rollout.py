"""One step of a rollout that moves the roles of a fleet together. Pure: (pods of each role) -> what to do now.

A *new* pod is of the revision that is wanted, an *old* one of any other; so a rollback is a rollout whose new
revision is the one before. A step says, for each role, how many pods to remove and how many to make; what it removes
holds its accelerators until it has ended, and only then is there room for what it makes. The caller carries a step
out, looks again and asks for the next one; the same pods give the same step.

Bounds, for a role with W wanted pods, at every step:

    capacity  removing comes before making: pods, those that are ending included, never exceed W + max_surge by
              anything that a step makes
    serving   no step leaves fewer than W - D ready pods. D is the least of max_unavailable, of `slack` x W, and of
              1 until the first new pod of the role is ready: a revision that does not start costs at most one pod.
              Above max_surge 0, max_unavailable may be 0.
    ratio     so the ready share (at most 1) of each role lies between 1 - slack and 1, and of two roles neither falls
              further than `slack` behind the other: the ratio of their ready pods is that of their wanted ones,
              times something between 1 - slack and 1 / (1 - slack). A slack below one pod of a role could move
              nothing there, so one pod of each role is the least; it is the default, too.
    in step   a role makes new pods no further than `slack` x W ahead of the share of new pods that are ready in the
              slowest other role: half-way, each revision has both halves of the fleet

Pods that do not serve hold nothing up: old ones that are not ready are removed first and at once, whatever the other
roles do, so a broken old revision never blocks the next. New pods that are broken (they will not become ready by
themselves) stop everything: no old pod of any role is removed, and nothing is made, until they are mended or another
revision is wanted.

It follows that a rollout ends if and only if enough new pods become ready. Pods that fail by themselves may break
the bounds of serving and ratio; then no step takes further serving pods away.

Left out: how pods are told apart, made and removed, which pod of a role goes first, and how long a pod that has
served may be late before it counts as not ready. Nothing calls this yet:
today each Deployment or LeaderWorkerSet rolls its own role, by the role's `rollout`, and only that is promised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import floor


@dataclass(frozen=True, slots=True)
class RolePods:
    """The pods of one role now. `new_broken`: those of `new_unready` that will not become ready by themselves;
    `ending`: told to stop, and still holding their accelerators."""

    wanted: int
    old_ready: int = 0
    old_unready: int = 0
    new_ready: int = 0
    new_unready: int = 0
    new_broken: int = 0
    ending: int = 0
    max_surge: int = 0
    max_unavailable: int = 1

    def __post_init__(self) -> None:
        if self.max_surge == 0 and self.max_unavailable == 0:
            raise ValueError("max_surge or max_unavailable must be above 0: else nothing could be replaced")
        if self.new_broken > self.new_unready:
            raise ValueError(f"new_broken {self.new_broken} counts among new_unready {self.new_unready}")

    @property
    def old(self) -> int:
        """Pods of other revisions, that are there to stay."""
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
        """Pods that hold accelerators."""
        return self.old + self.new + self.ending

    @property
    def done(self) -> bool:
        """Whether there is what is wanted, and nothing else."""
        return self.old == 0 and self.new_ready == self.new == self.wanted and self.ending == 0

    @property
    def progress(self) -> Fraction:
        """The share of the wanted pods that are new and ready."""
        return Fraction(min(self.new_ready, self.wanted), self.wanted) if self.wanted else Fraction(1)


@dataclass(frozen=True, slots=True)
class RoleStep:
    """What to do with one role now: remove first, then make."""

    remove_old_unready: int = 0
    remove_old_ready: int = 0
    remove_new_unready: int = 0
    remove_new_ready: int = 0
    make: int = 0

    @property
    def removes(self) -> int:
        """All pods that are told to stop."""
        return self.remove_old_unready + self.remove_old_ready + self.remove_new_unready + self.remove_new_ready


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now, by role. `stopped`: why nothing is done although not all is done, "" while it goes on."""

    roles: Mapping[str, RoleStep]
    stopped: str = ""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do but to wait."""
        return all(step == RoleStep() for step in self.roles.values())


def least_slack(fleet: Mapping[str, RolePods]) -> Fraction:
    """One pod of the smallest role, as a share: the narrowest bound under which every role can move."""
    return max((Fraction(1, pods.wanted) for pods in fleet.values() if pods.wanted), default=Fraction(1))


def next_step(fleet: Mapping[str, RolePods], slack: Fraction | None = None) -> Step:
    """The next step of the rollout of a fleet; `slack` as above, `least_slack` if None or below it."""
    broken = [role for role, pods in fleet.items() if pods.new_broken]
    if broken:
        told = ", ".join(f"{fleet[role].new_broken} of {fleet[role].new} new {role} pods" for role in broken)
        return Step(
            dict.fromkeys(fleet, RoleStep()), f"{told} will not become ready by themselves: nothing is replaced"
        )
    least = least_slack(fleet)
    bound = min(Fraction(1), max(least, slack or least))
    return Step({role: _role_step(pods, _others(fleet, role), bound) for role, pods in fleet.items()})


def _others(fleet: Mapping[str, RolePods], role: str) -> Fraction:
    """How far the slowest other role is."""
    return min((pods.progress for name, pods in fleet.items() if name != role), default=Fraction(1))


def _role_step(pods: RolePods, others: Fraction, slack: Fraction) -> RoleStep:
    in_step = min(pods.wanted, floor((others + slack) * pods.wanted))
    goes = _removable(pods, in_step, slack)
    # What is removed now still holds its accelerators, so it makes no room yet.
    room = pods.wanted + pods.max_surge - pods.total
    uncovered = pods.wanted - (pods.old_ready - goes)
    make = min(room, max(in_step, uncovered) - pods.new)
    return RoleStep(pods.old_unready, goes, *_remove_new(pods), make=max(0, make))


def _remove_new(pods: RolePods) -> tuple[int, int]:
    """New pods beyond those wanted, as after a smaller `wanted`: those that are not ready, then ready ones."""
    over = max(0, pods.new - pods.wanted)
    unready = min(over, pods.new_unready)
    return unready, over - unready


def _removable(pods: RolePods, in_step: int, slack: Fraction) -> int:
    """How many serving old pods may go now: as many as the bound of serving allows, and no more than there may be new
    ones in their places."""
    limit = min(pods.max_unavailable, floor(slack * pods.wanted), pods.wanted if pods.new_ready else 1)
    serving = max(0, pods.wanted - limit)
    spare = pods.ready - serving
    replaceable = pods.old_ready + max(in_step, pods.new) - pods.wanted
    return max(0, min(pods.old_ready, spare, replaceable))
