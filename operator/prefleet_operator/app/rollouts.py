"""The pods of each role by their revision: what the gates of a rollout are decided on. Asks nobody.

A pod is new if it carries the digest of the template that its workload is to have; where that has none, as an earlier
release left it, pods without one are new. One that is in trouble (`Cluster.troubles`) is broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from prefleet_operator.api import PrefillPolicySpec, Role
from prefleet_operator.app.gather import Cluster
from prefleet_operator.app.policies import PolicyRecord
from prefleet_operator.app.records import PodRecord
from prefleet_operator.core.rollout import PROVEN_S, RolePods, resolve_limits
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
