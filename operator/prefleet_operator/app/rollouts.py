"""The pods of each role by their revision: what the gates of a rollout are decided on; and those of roles that the spec
has no more. Asks nobody.

A pod is new if it carries the digest of the template that its workload is to have; where that has none, as an earlier
release left it, pods without one are new. One that is in trouble (`Cluster.troubles`) is broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from prefleet_operator.api import PrefillPolicySpec, Role
from prefleet_operator.app.gather import Cluster
from prefleet_operator.app.policies import PolicyRecord
from prefleet_operator.app.records import PodRecord
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.rollout import PROVEN_S, RolePods, may_leave, resolve_limits
from prefleet_operator.render import ROUTER, TEMPLATE_FIELDS, Settled, template_digest
from prefleet_operator.render.workload import rolling_update


def count_roles(
    policy: PolicyRecord, spec: PrefillPolicySpec, cluster: Cluster, workloads: Sequence[Settled], now: float
) -> Mapping[str, RolePods]:
    """The pods of each role that the operator makes, old and new."""
    settled = {each.role: each for each in workloads if each.role != ROUTER}
    digests = {role: _digest(each) for role, each in settled.items()}
    pods = cluster.made_pods(*policy.key)
    troubles = cluster.troubles(policy.key, pods, now)
    found: dict[str, Counter[str]] = {role: Counter() for role in digests}
    for pod in pods:
        if pod.role in found and not pod.terminating:
            age = "new" if pod.template == digests[pod.role] else "old"
            found[pod.role][f"{age}_{'ready' if pod.ready else 'unready'}"] += 1
            found[pod.role]["new_broken"] += age == "new" and pod.identity.name in troubles
            found[pod.role]["new_unproven"] += age == "new" and _is_unproven(pod, now)
    return {role: _role_pods(spec, Role(role), counts, settled[role].now.moved) for role, counts in found.items()}


@dataclass(frozen=True, slots=True)
class Leaving:
    """The roles that the operator has made and the spec has no more, with their pods that are there to stay. `kept`:
    they serve until those in their place do."""

    pods: Mapping[Role, int] = field(default_factory=dict)
    kept: bool = False

    @property
    def kept_roles(self) -> frozenset[Role]:
        """The roles of which nothing is taken away now."""
        return frozenset(self.pods) if self.kept else frozenset()

    @property
    def going(self) -> Mapping[str, int]:
        """The pods that go now, by role."""
        return {} if self.kept else {role.value: count for role, count in self.pods.items()}

    @property
    def told(self) -> str:
        """That they stay, in one sentence; "" if they do not."""
        roles = " and ".join(f"{count} of {role.value}" for role, count in self.pods.items() if count)
        return f"Pods that the spec has no more serve until these do: {roles}." if self.kept else ""


def find_leaving(policy: PolicyRecord, cluster: Cluster, fleet: Mapping[str, RolePods], now: float) -> Leaving:
    """What becomes of roles that the spec has no more. `fleet`: those that it has."""
    workloads = cluster.workloads(policy.key)
    roles = {each.role for each in workloads if each.role is not None and each.ours and not each.deleting} - set(fleet)
    if not roles:
        return Leaving()
    pods = [pod for pod in cluster.made_pods(*policy.key) if not pod.terminating]
    troubles = cluster.troubles(policy.key, pods, now).values()
    refused = any(each.refused for each in workloads if each.role in fleet)
    lacks_room = refused or any(trouble.reason is Reason.UNSCHEDULABLE for trouble in troubles)
    serving = any(pod.role in roles and pod.ready for pod in pods)
    return Leaving(
        pods={role: sum(pod.role is role for pod in pods) for role in sorted(roles)},
        kept=serving and not may_leave(fleet, lacks_room),
    )


def tell_paused(policy: PolicyRecord, cluster: Cluster, rolling: Collection[str]) -> str:
    """Which Deployments of roles that roll somebody has paused, in one sentence; "" if nobody has."""
    names = [
        each.identity.name
        for each in cluster.children["Deployment"].of(*policy.key)
        if each.paused and each.role in rolling
    ]
    resume = " and ".join(f"kubectl rollout resume deployment/{name}" for name in names)
    return f"Somebody has paused {' and '.join(names)}, where nothing is replaced until: {resume}." if names else ""


def _digest(workload: Settled) -> str:
    kind = workload.rendered["kind"]
    return template_digest(kind, workload.rendered["spec"][TEMPLATE_FIELDS[kind]])


def _is_unproven(pod: PodRecord, now: float) -> bool:
    return pod.ready and pod.restarted and now - (pod.ready_since_s or now) < PROVEN_S


def _role_pods(spec: PrefillPolicySpec, role: Role, counts: Mapping[str, int], changed: bool) -> RolePods:
    part = spec.roles()[role]
    limits = rolling_update(part)
    surge, unavailable = resolve_limits(limits["maxSurge"], limits["maxUnavailable"], part.replicas)
    return RolePods(part.replicas, max_surge=surge, max_unavailable=unavailable, changed=changed, **counts)
