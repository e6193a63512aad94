"""Names, labels and annotations of everything that a PrefillPolicy owns: deterministic, and never changed
lightly.

The selector of a Deployment is immutable, so `selector_labels` may not grow without a new object name.
No name or label carries the operator's own version: an upgrade of the operator must not restart a fleet."""

from __future__ import annotations

from prefleet_operator.api import GROUP, PrefillPolicySpec, Role

FLEET_LABEL = f"{GROUP}/fleet"
ROLE_LABEL = f"{GROUP}/role"
GENERATION_ANNOTATION = f"{GROUP}/policy-generation"
"""On pods: set by the operator after a change, so that the kubelet refreshes the policy volume at once.
On the policy ConfigMap: the generation that its files carry."""
DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
"""On pods: Kubernetes' own. Of pods of which some have to go, those go first whose number is lowest."""
KEPT_ANNOTATION = f"{GROUP}/kept"
"""On a policy ConfigMap that pods of others mount: whose it is, and that it outlives its policy."""

REVISION_ANNOTATION = f"{GROUP}/revision"
"""On a workload: what its pods were made of, and by which release (revision.py)."""
TEMPLATE_ANNOTATION = f"{GROUP}/template"
"""On the pods of a role: a digest of the template that they were made of, which tells new ones from old."""
UPGRADE_ANNOTATION = f"{GROUP}/upgrade"
"""On a PrefillPolicy: another value asks for pods as the present release renders them."""

FIELD_MANAGER = "prefleet"
SCALE_MANAGER = "prefleet-scale"
"""Applies the live count of a workload before `FIELD_MANAGER` lets go of it: a field that its only manager leaves out
falls back to its default, which is one replica."""

GROUP_SET_LABEL = "leaderworkerset.sigs.k8s.io/name"
GROUP_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/group-index"
WORKER_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"
"""All three are set by the LeaderWorkerSet controller on the pods of groups; a leader's index is "0"."""
ROUTER = "router"
"""What the role label says on the router's objects and pods: it is no role, so nothing takes them for engine pods."""


def policy_config_map_name(fleet: str) -> str:
    """The ConfigMap that carries policy.json and decode.json."""
    return f"{fleet}-policy"


def live_config_map_name(fleet: str, spec: PrefillPolicySpec) -> str:
    """The same, of a fleet whose pods somebody else makes too."""
    named = None if spec.attach is None else spec.attach.policy_config_map
    return named or policy_config_map_name(fleet)


def role_object_name(fleet: str, role: Role) -> str:
    """The Deployment, and the Service, of one role."""
    return f"{fleet}-{role.value}"


def groups_object_name(fleet: str, role: Role) -> str:
    """The LeaderWorkerSet of one role. Its controller makes a headless Service of that name, so it must be another
    than the name of our own Service."""
    return f"{role_object_name(fleet, role)}-group"


def router_object_name(fleet: str) -> str:
    """The Deployment, and the Service, of the router."""
    return f"{fleet}-{ROUTER}"


def fleet_labels(fleet: str) -> dict[str, str]:
    """Labels of everything that a fleet owns; what pruning selects by."""
    return {
        "app.kubernetes.io/name": "prefleet",
        "app.kubernetes.io/instance": fleet,
        "app.kubernetes.io/managed-by": "prefleet",
        FLEET_LABEL: fleet,
    }


def role_labels(fleet: str, role: Role) -> dict[str, str]:
    """Labels of the objects and pods of one role."""
    return fleet_labels(fleet) | {"app.kubernetes.io/component": role.value, ROLE_LABEL: role.value}


def worker_labels(fleet: str, role: Role) -> dict[str, str]:
    """Labels of the pods of a group that do not lead. They serve nothing, so nothing that looks for the pods of a
    role may find them: no role."""
    return fleet_labels(fleet) | {"app.kubernetes.io/component": f"{role.value}-worker"}


def selector_labels(fleet: str, role: Role) -> dict[str, str]:
    """What finds the pods of one role: the smallest set that tells fleets and roles apart."""
    return {FLEET_LABEL: fleet, ROLE_LABEL: role.value}


def router_labels(fleet: str) -> dict[str, str]:
    """Labels of the router's objects and pods."""
    return fleet_labels(fleet) | {"app.kubernetes.io/component": ROUTER, ROLE_LABEL: ROUTER}


def router_selector_labels(fleet: str) -> dict[str, str]:
    """What finds the router's pods."""
    return {FLEET_LABEL: fleet, ROLE_LABEL: ROUTER}
