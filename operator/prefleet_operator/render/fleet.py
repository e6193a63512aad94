"""All objects of one fleet, in the order in which they are to be applied.

The ConfigMap comes first, since pods do not start without it; then a Deployment and a Service for each role;
last the router, if the spec asks for one.
Every object is complete (the full desired state for server-side apply), deterministic (equal input, equal
output) and owned by the PrefillPolicy, so that a deletion needs no operator. `blockOwnerDeletion` is false:
true would ask for rights on finalizers.

A change of `scheduling` changes the ConfigMap alone, never a pod template: no restart. Where the engine is told at
its start, a change of what it is told changes the template of prefill and mixed pods too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prefleet_operator.api import GROUP, KIND, VERSION, PrefillPolicySpec
from prefleet_operator.core.native_policy import FleetPolicy
from prefleet_operator.render.policy_files import render_policy_config_map
from prefleet_operator.render.router import render_router
from prefleet_operator.render.workload import render_role


@dataclass(frozen=True, slots=True)
class PolicyObject:
    """The metadata of a PrefillPolicy. Without a `uid` (offline) its objects carry no owner reference."""

    name: str
    namespace: str
    uid: str | None = None


@dataclass(frozen=True, slots=True)
class InstallationDefaults:
    """What the installation says for every fleet."""

    runtime_image: str


def render_fleet(
    policy: PolicyObject,
    spec: PrefillPolicySpec,
    fleet_policy: FleetPolicy,
    defaults: InstallationDefaults,
) -> list[dict[str, Any]]:
    """The desired objects of one fleet whose prefill (or mixed) pods run `fleet_policy`.

    Raises:
        InvalidSpecError: what schema and CEL cannot see is wrong, such as a podTemplate that takes away what
            the operator needs; the message is a sentence for the Accepted condition.
    """
    objects = [render_policy_config_map(policy.name, policy.namespace, fleet_policy)]
    for role in spec.roles():
        objects += render_role(policy.name, policy.namespace, spec, role, defaults.runtime_image, fleet_policy)
    objects += render_router(policy.name, policy.namespace, spec)
    return [_owned(policy, rendered) for rendered in objects]


def owner_reference(policy: PolicyObject) -> dict[str, Any]:
    """The reference that makes Kubernetes delete an object together with its PrefillPolicy."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": policy.name,
        "uid": policy.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _owned(policy: PolicyObject, rendered: dict[str, Any]) -> dict[str, Any]:
    if policy.uid is None:
        return rendered
    return rendered | {"metadata": rendered["metadata"] | {"ownerReferences": [owner_reference(policy)]}}
