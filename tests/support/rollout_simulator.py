"""All steps of a rollout: the planner's gates, and the controllers that they steer, on pods that take their time.

`Deployment` is the Deployment controller of Kubernetes as far as replicas go: one step a tick (a new scale is spread
over the ReplicaSets in proportion; then the new one grows into the room that there is; then old pods that do not
serve go, then old ones that do, as far as enough are available), and paused the spreading alone. `Groups` is what the
LeaderWorkerSet controller does with a partition: groups are replaced from the last one down to it, whether they serve
or not, and no more at once than may be absent.

One tick is the time in which a controller takes a step. The operator looks every `look_every` ticks, if it lives; a
new pod is available, and its Deployment goes on, `MIN_READY` ticks after it has become ready.
`python -m tests.support.rollout_simulator` prints a rollout as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from prefleet_operator.core.rollout import Gate, RolePods, next_gates, tell_rollout

NEVER = 1_000_000
"""A delay that no run outlasts."""
PROVEN_AFTER = 25
"""Ticks for which a new pod that fell has to serve to count as sound again."""
CALLED_BROKEN_AFTER = 20
"""Ticks after which a new pod that will never be ready is known to be broken."""
MIN_READY = 5
"""The longest `look_every` that keeps the gates exact is one tick shorter."""

Delay = Callable[[str, int], int]
"""Ticks until a new pod is ready, by its role and number."""


@dataclass(slots=True)
class Pod:
    """One pod; times in ticks. `index`: of a group, its number. `crashed`: it has served, and fallen."""

    revision: int
    made_at: int
    ready_at: int
    index: int = 0
    crashed: bool = False

    def serves(self, tick: int) -> bool:
        """Whether it is ready."""
        return self.ready_at <= tick

    def is_available(self, tick: int) -> bool:
        """Whether its controller counts on it."""
        return self.ready_at == 0 or self.ready_at + MIN_READY <= tick


@dataclass(slots=True)
class Workload:
    """What makes the pods of one role: the spec that was last applied, and the pods. `scaled_to`: what the controller
    has last spread its replicas for, wanted and at most."""

    wanted: int
    pods: list[Pod]
    max_surge: int = 0
    max_unavailable: int = 1
    revision: int = 0
    made: int = 0
    gate: Gate | None = None
    scaled_to: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.scaled_to = (self.wanted, self.wanted)

    @property
    def surge(self) -> int:
        """maxSurge as it stands in the spec."""
        return self.max_surge if self.gate is None else self.gate.max_surge

    @property
    def unavailable(self) -> int:
        """maxUnavailable as it stands in the spec."""
        return self.max_unavailable if self.gate is None else self.gate.max_unavailable

    def sync(self, tick: int, make: Callable[[], Pod]) -> None:
        """One step of the controller. `make`: a new pod of the present revision."""
        raise NotImplementedError

    def remove(self, tick: int, revisions: set[int], count: int, ready_too: bool = True) -> None:
        """Pods of these revisions go: those that do not serve first, then the newest."""
        found = [pod for pod in self.pods if pod.revision in revisions and (ready_too or not pod.serves(tick))]
        gone = sorted(found, key=lambda pod: (pod.serves(tick), -pod.made_at))[:count]
        self.pods = [pod for pod in self.pods if not any(pod is each for each in gone)]


class Deployment(Workload):
    """See the page."""

    def sync(self, tick: int, make: Callable[[], Pod]) -> None:
        paused = self.gate is not None and not self.gate.open
        if paused or self.scaled_to[0] != self.wanted:
            self._scale(tick, make)
        else:
            self._roll(tick, make)

    def _scale(self, tick: int, make: Callable[[], Pod]) -> None:
        """dc.scale: replicas are spread in proportion, the rest goes to the largest ReplicaSet."""
        before, most = self.scaled_to[1], self.wanted + self.surge
        sizes = {pod.revision: 0 for pod in self.pods} | {}
        for pod in self.pods:
            sizes[pod.revision] += 1
        if len(sizes) <= 1:
            target = {next(iter(sizes), self.revision): self.wanted}
        else:
            target = self._spread(sizes, most - len(self.pods), Fraction(most, max(1, before)))
        for revision, size in target.items():
            there = sizes.get(revision, 0)
            self.remove(tick, {revision}, max(0, there - size))
            for _ in range(size - there):
                pod = make()
                pod.revision = revision
                self.pods.append(pod)
        self.scaled_to = (self.wanted, most)

    def _spread(self, sizes: dict[int, int], add: int, factor: Fraction) -> dict[int, int]:
        """The new size of each ReplicaSet."""
        newest_first = 1 if add > 0 else -1
        order = sorted(sizes, key=lambda revision: (-sizes[revision], -newest_first * revision))
        target, added = dict(sizes), 0
        for revision in order if add else ():
            share = round(sizes[revision] * factor) - sizes[revision]
            share = min(share, add - added) if add > 0 else max(share, add - added)
            share = max(0, share) if add > 0 else min(0, share)
            target[revision] += share
            added += share
        if add:
            target[order[0]] = max(0, target[order[0]] + add - added)
        return target

    def _roll(self, tick: int, make: Callable[[], Pod]) -> None:
        """rolloutRolling: one of growing and shrinking a step."""
        self.scaled_to = (self.wanted, self.wanted + self.surge)
        new = [pod for pod in self.pods if pod.revision == self.revision]
        if len(new) > self.wanted:
            self.remove(tick, {self.revision}, len(new) - self.wanted)
            return
        room = min(self.wanted + self.surge - len(self.pods), self.wanted - len(new))
        if room > 0:
            self.pods += [make() for _ in range(room)]
            return
        self._shrink(tick, new)

    def _shrink(self, tick: int, new: list[Pod]) -> None:
        old = {pod.revision for pod in self.pods} - {self.revision}
        least = self.wanted - min(self.unavailable, self.wanted)
        not_available = sum(not pod.is_available(tick) for pod in new)
        may_go = len(self.pods) - least - not_available
        if may_go <= 0:
            return
        unhealthy = sum(pod.revision in old and not pod.serves(tick) for pod in self.pods)
        self.remove(tick, old, min(may_go, unhealthy), ready_too=False)
        self.remove(tick, old, max(0, sum(pod.is_available(tick) for pod in self.pods) - least))


class Groups(Workload):
    """See the page; without surge."""

    def sync(self, tick: int, make: Callable[[], Pod]) -> None:
        partition = 0 if self.gate is None else self.wanted - min(self.wanted, self.gate.new)
        self.pods = [pod for pod in self.pods if pod.index < self.wanted]
        for index in set(range(self.wanted)) - {pod.index for pod in self.pods}:
            self._put(index, make)
        for index in range(self.wanted - 1, partition - 1, -1):
            (pod,) = (pod for pod in self.pods if pod.index == index)
            starting = sum(each.revision == self.revision and not each.serves(tick) for each in self.pods)
            if pod.revision != self.revision and starting < max(1, min(self.unavailable, self.max_unavailable)):
                self.pods.remove(pod)
                self._put(index, make)

    def _put(self, index: int, make: Callable[[], Pod]) -> None:
        pod = make()
        pod.index = index
        self.pods.append(pod)


@dataclass(frozen=True, slots=True)
class Row:
    """One tick: the pods before it, and the gates in force. `looked`: the operator set them just now."""

    tick: int
    seen: Mapping[str, RolePods]
    gates: Mapping[str, Gate | None]
    told: str
    looked: bool


@dataclass(slots=True)
class Simulator:
    """A fleet on its way to `revision`. `alive`: whether the operator is, by tick."""

    roles: dict[str, Workload]
    delay: Delay
    slack: Fraction | None = None
    revision: int = 1
    look_every: int = 1
    alive: Callable[[int], bool] = lambda _tick: True
    tick: int = 1
    rows: list[Row] = field(default_factory=list)

    def run(self, ticks: int = 10_000) -> bool:
        """Go on until nothing changes any more; whether the rollout is done."""
        quiet = 0
        for _ in range(ticks):
            before = self._state()
            row = self.turn()
            told = all(role.revision == self.revision for role in self.roles.values())
            if told and all(pods.done for pods in row.seen.values()):
                return True
            quiet = 0 if self._state() != before else quiet + 1
            if quiet > CALLED_BROKEN_AFTER + MIN_READY + 10:
                return False
        return False

    def _state(self) -> object:
        return [
            sorted((pod.revision, pod.ready_at, pod.serves(self.tick)) for pod in role.pods)
            for role in self.roles.values()
        ]

    def turn(self) -> Row:
        """One tick: look, set the gates, then every controller takes a step."""
        seen = {name: self.look(role) for name, role in self.roles.items()}
        looks = self.tick % self.look_every == 0 and self.alive(self.tick)
        if looks:
            gates = next_gates(seen, self.slack)
            for name, role in self.roles.items():
                role.gate, role.revision = gates.get(name), self.revision
        told = tell_rollout(seen, next_gates(seen, self.slack))
        row = Row(self.tick, seen, {name: role.gate for name, role in self.roles.items()}, told, looks)
        self.rows.append(row)
        for name, role in self.roles.items():
            role.sync(self.tick, lambda name=name, role=role: self._make(name, role))  # type: ignore[misc]
        self.tick += 1
        return row

    def look(self, role: Workload) -> RolePods:
        """What there is of a role."""
        counts = dict.fromkeys(("old_ready", "old_unready", "new_ready", "new_unready"), 0)
        for pod in role.pods:
            age = "new" if pod.revision == self.revision else "old"
            counts[f"{age}_{'ready' if pod.serves(self.tick) else 'unready'}"] += 1
        return RolePods(
            wanted=role.wanted,
            changed=True,
            **counts,
            new_broken=sum(self._is_broken(pod) for pod in role.pods),
            new_unproven=sum(self._is_unproven(pod) for pod in role.pods),
            max_surge=role.max_surge,
            max_unavailable=role.max_unavailable,
        )

    def _is_broken(self, pod: Pod) -> bool:
        late = pod.ready_at >= NEVER and self.tick - pod.made_at >= CALLED_BROKEN_AFTER
        return pod.revision == self.revision and (late or (pod.crashed and not pod.serves(self.tick)))

    def _is_unproven(self, pod: Pod) -> bool:
        serves = pod.revision == self.revision and pod.serves(self.tick)
        return serves and pod.crashed and self.tick - pod.ready_at < PROVEN_AFTER

    def _make(self, name: str, role: Workload) -> Pod:
        delay = self.delay(name, role.made)
        role.made += 1
        return Pod(role.revision, self.tick, NEVER if delay >= NEVER else self.tick + 1 + delay)


def fleet(delay: Delay = lambda _role, _number: 1, kind: type[Workload] = Deployment, **wanted: int) -> Simulator:
    """A fleet whose old pods all serve: `fleet(prefill=8, decode=2)`."""
    roles: dict[str, Workload] = {
        name: kind(count, [Pod(0, 0, 0, index) for index in range(count)]) for name, count in wanted.items()
    }
    return Simulator(roles, delay)


def surging(simulator: Simulator, surge: int, unavailable: int) -> Simulator:
    """The same fleet with another `rollout` for each role."""
    for role in simulator.roles.values():
        role.max_surge, role.max_unavailable = surge, unavailable
    return simulator


def as_table(rows: Sequence[Row]) -> str:
    """Each tick at which something changed: pods as ready+not ready, and the gate: +surge -absence, or closed."""
    roles = list(rows[0].seen)
    head = ["tick", *(f"{role} {part}" for role in roles for part in ("old", "new", "ready", "gate"))]
    lines, before = [head], None
    for row in rows:
        cells = [cell for role in roles for cell in _cells(row.seen[role], row.gates[role])]
        if cells != before:
            lines.append([str(row.tick), *cells])
        before = cells
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
    return f"{text}\n{rows[-1].told}".rstrip()


def _cells(pods: RolePods, gate: Gate | None) -> tuple[str, str, str, str]:
    limits = "free" if gate is None else f"+{gate.max_surge} -{gate.max_unavailable}" if gate.open else "closed"
    return (
        f"{pods.old_ready}+{pods.old_unready}",
        f"{pods.new_ready}+{pods.new_unready}",
        f"{pods.ready}/{pods.wanted}",
        limits,
    )


if __name__ == "__main__":
    shown = fleet(lambda role, number: 3 if role == "prefill" else 2, prefill=6, decode=2)
    shown.run()
    print(as_table(shown.rows))
