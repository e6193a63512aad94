"""Sizing one fleet in one turn of the operator: when a decision is due, and from which number it starts.

A turn comes every few seconds, each second while a policy spreads, or with each event of a watch; what `decide_size`
damps and learns goes by the number of its calls. So a decision is taken every `PACE_S`, as the controller of
HorizontalPodAutoscalers does, and stands in between. One is due at once where the spec has changed, or where none is
known; and where the tuner is about to act though capacity is short (`tune_or_scale`).

Where the operator sets the number itself (Direct), a decision starts from what the workload is to have, whoever said
so. Where another controller follows the number (HPA, KEDA), it starts from the number last decided: what that
controller has made of it so far must not take a step back, nor be lost with one. Either starts from the live number
when the actuator is another than before. A workload that does not exist yet has the spec's replicas, within bounds
and accelerators; one that somebody has deleted comes back with the number last decided, unless the spec is another
since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from prefleet_operator.api import Actuator, PrefillPolicySpec, Role, SizingStatus
from prefleet_operator.core.observed import Missing, PodView
from prefleet_operator.core.sizing.arbiter import WaitSignal
from prefleet_operator.core.sizing.decide import decide_size
from prefleet_operator.core.sizing.inputs import rules_of, signals_of
from prefleet_operator.core.sizing.state import RECALLED, SizingState, is_past, recall_state
from prefleet_operator.core.sizing.steps import budget
from prefleet_operator.core.sizing.values import RoleLoad, RoleSignals, SizingInputs, SizingMemory

PACE_S = 15.0

_NOBODY = Missing("no pod of the role is ready, so there is nothing to read.")
_UNREAD = RoleLoad(arrivals=_NOBODY, waiting_tokens=_NOBODY, running=_NOBODY, kv_usage=_NOBODY)
"""Of a role that the metrics source leaves out."""


@dataclass(frozen=True, slots=True)
class SizingView:
    """What sizing looks at beside the spec and the pods.

    `live`: by role, the replicas that an existing workload is to have; `loads`: what the metrics source says;
    `state`: of this process, None before its first decision on the fleet; `made_of`: by role, a digest of what the spec
    makes its pods of; `others`: by role, who else sets its replicas, by an autoscaler that is not the operator's.
    """

    live: Mapping[Role, int] = field(default_factory=dict)
    loads: Mapping[Role, RoleLoad] = field(default_factory=dict)
    state: SizingState | None = None
    made_of: Mapping[Role, str] = field(default_factory=dict)
    others: Mapping[Role, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sizer:
    """One turn of one fleet that is sized; `spec` has `autoscaling`."""

    spec: PrefillPolicySpec
    generation: int
    view: SizingView
    pods: Sequence[PodView]
    now: float

    @property
    def actuator(self) -> Actuator:
        """Who sets the number."""
        assert self.spec.autoscaling is not None
        return self.spec.autoscaling.actuator

    def recall(self, status: SizingStatus | None) -> SizingState:
        """The state that the turn begins with."""
        state = self.view.state
        if state is None:
            return recall_state(status, self.actuator, rules_of(self.spec).down_window_s, self.view.live, self.now)
        return state if is_past(state.memory, self.now) else replace(state, memory=SizingMemory())

    def is_due(self, state: SizingState) -> bool:
        """Whether it is time to decide anew."""
        if state.decided_at_s is None or not 0 <= self.now - state.decided_at_s < PACE_S:
            return True
        return state.generation != self.generation or set(state.sizes) != set(self.spec.sized_roles())

    def decide(self, state: SizingState, waits: WaitSignal | None) -> SizingState:
        """A new decision, and all that is known after it."""
        before = self._starts(state)
        signals = {role: self._signals(role, replicas) for role, replicas in before.items()}
        inputs = SizingInputs(signals, rules_of(self.spec), waits)
        decision, memory = decide_size(inputs, state.memory, self.now)
        return SizingState(
            actuator=self.actuator,
            memory=memory,
            wanted={role: size.desired for role, size in decision.roles.items()},
            sizes=decision.roles,
            before=before,
            decided_at_s=self.now,
            generation=self.generation,
            unsaid=state.unsaid,
            apart=state.apart,
        )

    def compare(self, state: SizingState) -> SizingState:
        """The state with how long its numbers have been others than there are."""
        found_s = 0.0 if self.view.state is None else self.now
        apart = {
            role: state.apart.get(role, found_s)
            for role, live in self.view.live.items()
            if live != state.wanted.get(role, live)
        }
        return replace(state, apart=apart)

    def _signals(self, role: Role, replicas: int) -> RoleSignals:
        view = self.view
        seen = signals_of(role, replicas, self.pods, view.loads.get(role, _UNREAD), self.now)
        return replace(seen, made_of=view.made_of.get(role, ""), other=view.others.get(role, ""))

    def counts(self, state: SizingState) -> dict[Role, int]:
        """How many replicas each sized role is to have now: of one that another controller sets, what it has set.

        So it is with a number that somebody else has given a role since it was decided about: the next decision starts
        from it, and until then it stays. One that somebody else's autoscaler sets is always left alone.
        """
        counts = self._replicas(state)
        if self.actuator is Actuator.DIRECT:
            known = {role: (state.wanted[role], state.before[role]) for role in counts.keys() - self.view.others.keys()}
            counts |= {role: pair[0] for role, pair in known.items() if counts[role] in pair}
        return counts

    def _starts(self, state: SizingState) -> dict[Role, int]:
        replicas = self._replicas(state)
        followed = self.actuator is not Actuator.DIRECT and state.actuator is self.actuator
        return {role: state.wanted.get(role, count) for role, count in replicas.items()} if followed else replicas

    def _replicas(self, state: SizingState) -> dict[Role, int]:
        """What each sized role has, or is made with."""
        sized, live, rules = self.spec.sized_roles(), self.view.live, rules_of(self.spec)
        known = state.wanted if state.generation in (RECALLED, self.generation) else {}
        asked = {role: known.get(role, self.spec.roles()[role].replicas) for role in sized}
        wanted = {role: live.get(role, bounds.clamped(asked[role])) for role, bounds in sized.items()}
        present = {role: live.get(role, bounds.min_replicas) for role, bounds in sized.items()}
        return budget(wanted, present, rules.roles, rules.quota)


def with_replicas(spec: PrefillPolicySpec, counts: Mapping[Role, int]) -> PrefillPolicySpec:
    """The spec with so many replicas of these roles: what everything goes by that counts pods."""
    roles = spec.roles()
    update = {role.value: roles[role].model_copy(update={"replicas": count}) for role, count in counts.items()}
    return spec.model_copy(update=update)
