"""The last decision on the sizes of each fleet, by the uid of its policy.

It is memory of this process: `.status.autoscaling` has what another one needs to go on. What is published is the number
last decided, also while a decision holds for want of metrics, until the policy is gone or is autoscaled no more.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from prefleet_operator.app.policies import PolicyIndex
from prefleet_operator.core.sizing.state import SizingState


class Sizings:
    """States by the policy's uid."""

    def __init__(self) -> None:
        self._by_uid: dict[str, SizingState] = {}

    def of(self, uid: str) -> SizingState | None:
        """The state of a fleet; None before the first decision."""
        return self._by_uid.get(uid)

    def put(self, uid: str, state: SizingState | None) -> None:
        """Keep a new state, or forget that of a fleet that is autoscaled no more."""
        if state is None:
            self._by_uid.pop(uid, None)
        else:
            self._by_uid[uid] = state

    def keep(self, uids: Container[str]) -> None:
        """Drop the states of all fleets but these."""
        self._by_uid = {uid: state for uid, state in self._by_uid.items() if uid in uids}

    def published(self, policies: PolicyIndex) -> Mapping[tuple[str, str, str], int]:
        """The number that each sized role of a policy is to have, by namespace, policy and role."""
        return {
            (policy.namespace, policy.name, role.value): count
            for policy in policies
            if (state := self.of(policy.uid)) is not None
            for role, count in state.wanted.items()
        }
