"""Names, labels and annotations of everything that a PrefillPolicy owns: deterministic, and never changed
lightly.

The selector of a Deployment is immutable, so `selector_labels` may not grow without a new object name.
Nothing here carries the operator's own version: an upgrade of the operator must not restart a fleet."""

from __future__ import annotations

from prefleet_operator.api import GROUP, Role

FLEET_LABEL = f"{GROUP}/fleet"
ROLE_LABEL = f"{GROUP}/role"
GENERATION_ANNOTATION = f"{GROUP}/policy-generation"
"""On pods: set by the operator after a change, so that the kubelet refreshes the policy volume at once.
On the policy ConfigMap: the generation that its files carry."""

FIELD_MANAGER = "prefleet"

ROUTER = "router"
"""What the role label says on the router's objects and pods: it is no role, so nothing takes them for engine pods."""


def policy_config_map_name(fleet: str) -> str:
    """The ConfigMap that carries policy.json and decode.json."""
    return f"{fleet}-policy"


def role_object_name(fleet: str, role: Role) -> str:
    """The Deployment, and the Service, of one role."""
    return f"{fleet}-{role.value}"


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


def selector_labels(fleet: str, role: Role) -> dict[str, str]:
    """What finds the pods of one role: the smallest set that tells fleets and roles apart."""
    return {FLEET_LABEL: fleet, ROLE_LABEL: role.value}


def router_labels(fleet: str) -> dict[str, str]:
    """Labels of the router's objects and pods."""
    return fleet_labels(fleet) | {"app.kubernetes.io/component": ROUTER, ROLE_LABEL: ROUTER}


def router_selector_labels(fleet: str) -> dict[str, str]:
    """What finds the router's pods."""
    return {FLEET_LABEL: fleet, ROLE_LABEL: ROUTER}
