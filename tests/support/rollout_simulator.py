"""All steps of a rollout: the planner's one step, carried out again and again on pods that take their time.

One tick is one look of the operator at the fleet. Pods that are made become ready after some ticks, or never; pods
that are removed hold their accelerators for some ticks more. `python -m tests.support.rollout_simulator` prints a
rollout as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from prefleet_operator.core.rollout import RolePods, RoleStep, Step, next_step

NEVER = 1_000_000
"""A delay that no run outlasts."""
CALLED_BROKEN_AFTER = 20
"""Ticks after which a new pod that will never be ready is known to be broken."""

Delay = Callable[[str, int], int]
"""Ticks until a new pod is ready, by its role and number."""


@dataclass(slots=True)
class Pod:
    """One pod; `ready_at` and `ends_at` in ticks."""

    revision: int
    made_at: int
    ready_at: int
    ends_at: int = NEVER


@dataclass(slots=True)
class Role:
    """A role's pods, and what is wanted of them."""

    wanted: int
    pods: list[Pod]
    max_surge: int = 0
    max_unavailable: int = 1
    made: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One tick: what the planner saw, and what it said."""

    tick: int
    seen: Mapping[str, RolePods]
    step: Step


@dataclass(slots=True)
class Simulator:
    """A fleet of roles that is on its way to `revision`. `drain`: ticks that a pod takes to end."""

    roles: dict[str, Role]
    delay: Delay
    drain: int = 1
    slack: Fraction | None = None
    revision: int = 1
    tick: int = 0
    rows: list[Row] = field(default_factory=list)

    def run(self, ticks: int = 10_000) -> bool:
        """Take steps until nothing changes any more; whether the rollout is done."""
        for _ in range(ticks):
            row = self.turn()
            if all(pods.done for pods in row.seen.values()):
                return True
            if row.step.idle and not self._is_anything_coming():
                return False
        return False

    def turn(self) -> Row:
        """One tick: look, decide, carry out."""
        for role in self.roles.values():
            role.pods = [pod for pod in role.pods if pod.ends_at > self.tick]
        seen = {name: self.look(role) for name, role in self.roles.items()}
        step = next_step(seen, self.slack)
        for name, role_step in step.roles.items():
            self._carry_out(name, role_step)
        row = Row(self.tick, seen, step)
        self.rows.append(row)
        self.tick += 1
        return row

    def look(self, role: Role) -> RolePods:
        """What there is of a role."""
        counts = dict.fromkeys(("old_ready", "old_unready", "new_ready", "new_unready"), 0)
        staying = [pod for pod in role.pods if pod.ends_at == NEVER]
        for pod in staying:
            counts[self._kind(pod)] += 1
        return RolePods(
            wanted=role.wanted,
            **counts,
            new_broken=sum(self._is_broken(pod) for pod in staying),
            ending=len(role.pods) - len(staying),
            max_surge=role.max_surge,
            max_unavailable=role.max_unavailable,
        )

    def _kind(self, pod: Pod) -> str:
        age = "new" if pod.revision == self.revision else "old"
        return f"{age}_{'ready' if pod.ready_at <= self.tick else 'unready'}"

    def _is_broken(self, pod: Pod) -> bool:
        late = self.tick - pod.made_at >= CALLED_BROKEN_AFTER
        return pod.revision == self.revision and pod.ready_at >= NEVER and late

    def _carry_out(self, name: str, step: RoleStep) -> None:
        role = self.roles[name]
        for kind, count in (
            ("old_unready", step.remove_old_unready),
            ("old_ready", step.remove_old_ready),
            ("new_unready", step.remove_new_unready),
            ("new_ready", step.remove_new_ready),
        ):
            there = [pod for pod in role.pods if pod.ends_at == NEVER and self._kind(pod) == kind]
            assert len(there) >= count, f"{count} {kind} pods of {name} are to go, of {len(there)}"
            for pod in there[:count]:
                pod.ends_at = self.tick + 1 + self.drain
        for _ in range(step.make):
            delay = self.delay(name, role.made)
            role.made += 1
            role.pods.append(Pod(self.revision, self.tick, NEVER if delay >= NEVER else self.tick + 1 + delay))

    def _is_anything_coming(self) -> bool:
        pods = [pod for role in self.roles.values() for pod in role.pods]
        starting = any(self.tick <= pod.ready_at < NEVER for pod in pods)
        judged = any(pod.ready_at >= NEVER and self.tick - pod.made_at <= CALLED_BROKEN_AFTER for pod in pods)
        return starting or judged or any(pod.ends_at < NEVER for pod in pods)


def fleet(delay: Delay = lambda _role, _number: 1, drain: int = 1, **wanted: int) -> Simulator:
    """A fleet whose old pods all serve: `fleet(prefill=8, decode=2)`."""
    roles = {name: Role(count, [Pod(0, 0, 0) for _ in range(count)]) for name, count in wanted.items()}
    return Simulator(roles, delay, drain)


def surging(simulator: Simulator, surge: int, unavailable: int) -> Simulator:
    """The same fleet with another `rollout` for each role."""
    for name, role in simulator.roles.items():
        simulator.roles[name] = replace(role, max_surge=surge, max_unavailable=unavailable)
    return simulator


def as_table(rows: Sequence[Row]) -> str:
    """Each tick at which something changed: pods as ready+not ready, ending ones in brackets, and the step."""
    roles = list(rows[0].seen)
    head = ["tick", *(f"{role} {part}" for role in roles for part in ("old", "new", "ready", "step"))]
    lines, before = [head], None
    for row in rows:
        cells = [cell for role in roles for cell in _cells(row.seen[role], row.step.roles[role])]
        if cells != before:
            lines.append([str(row.tick), *cells])
        before = cells
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
    return f"{text}\n{rows[-1].step.stopped}".rstrip()


def _cells(pods: RolePods, step: RoleStep) -> tuple[str, str, str, str]:
    ending = f" ({pods.ending})" if pods.ending else ""
    done = [f"-{step.removes}"] * bool(step.removes) + [f"+{step.make}"] * bool(step.make)
    return (
        f"{pods.old_ready}+{pods.old_unready}{ending}",
        f"{pods.new_ready}+{pods.new_unready}",
        f"{pods.ready}/{pods.wanted}",
        " ".join(done),
    )


if __name__ == "__main__":
    shown = fleet(lambda role, number: 3 if role == "prefill" else 2, prefill=6, decode=2)
    shown.run()
    print(as_table(shown.rows))
