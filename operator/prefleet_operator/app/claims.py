"""Which pods each policy of a namespace has, and whether two of them have the same one.

Who is refused is decided in core/attached.py; here that is fed with what the watchers know, and an overlap that was
seen is remembered for as long as a refusal outlasts it.
"""

from __future__ import annotations

from prefleet_operator.api import ConditionType
from prefleet_operator.app.gather import Cluster
from prefleet_operator.app.policies import PolicyIndex, PolicyRecord
from prefleet_operator.app.workqueue import Key
from prefleet_operator.core.attached import Claim, find_overlap, hold_refusal
from prefleet_operator.core.status import find_condition


def overlap_of(policy: PolicyRecord, policies: PolicyIndex, cluster: Cluster) -> str | None:
    """Why the policy is to be refused for its pods as they are now, as a sentence; quick where no policy attaches."""
    if not any(namespace == policy.namespace for namespace, _ in cluster.attached):
        return None
    others = [other for other in policies if other.namespace == policy.namespace and other.name != policy.name]
    return find_overlap(claim_of(policy, cluster), [claim_of(other, cluster) for other in others])


def claim_of(policy: PolicyRecord, cluster: Cluster) -> Claim:
    """What a policy has of the pods that are there to stay."""
    attached = cluster.attached.get(policy.key)
    if attached is None:
        return Claim(policy.name, policy.created)
    pods: dict[str, str] = {}
    twice = None
    for store in attached.stores.values():
        for pod in store.everything(policy.namespace):
            name = pod.identity.name
            if pod.terminating:
                continue
            twice = name if name in pods and twice is None else twice
            pods[name] = pod.made_for
    return Claim(policy.name, policy.created, attaches=True, pods=pods, twice=twice)


class Overlaps:
    """Refusals, with the memory of when an overlap was last seen."""

    def __init__(self, policies: PolicyIndex, cluster: Cluster) -> None:
        self._policies = policies
        self._cluster = cluster
        self._seen_at_s: dict[Key, float] = {}
        self._since_s: float | None = None

    def refusal(self, policy: PolicyRecord, now: float) -> str | None:
        """Why the policy is refused for its pods; None if it is not."""
        since_s = self._since_s = now if self._since_s is None else self._since_s
        found = overlap_of(policy, self._policies, self._cluster)
        standing = find_condition(policy.status.conditions, ConditionType.ACCEPTED)
        if found is not None:
            self._seen_at_s[policy.key] = now
        seen_at_s = self._seen_at_s.get(policy.key, since_s)
        refusal = hold_refusal(found, standing, policy.generation, seen_at_s, now)
        if refusal is None:
            self.forget(policy.key)
        return refusal

    def forget(self, key: Key) -> None:
        """Drop the memory of a policy that is gone."""
        self._seen_at_s.pop(key, None)
