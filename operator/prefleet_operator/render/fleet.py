"""All objects of one fleet, in the order in which they are to be applied.

The ConfigMap comes first, since pods do not start without it; then the objects of each role; then the router, if the
spec asks for one; last what sets the number of pods of autoscaled roles.
Every object is complete (the full desired state for server-side apply), deterministic (equal input, equal
output) and owned by the PrefillPolicy, so that a deletion needs no operator. `blockOwnerDeletion` is false:
true would ask for rights on finalizers.

Of a fleet whose pods somebody else makes there is the ConfigMap alone. It has no owner: pods that mount it would not
start again once it was gone. One that was kept like that stays so, also when the operator makes the pods later on.

The replicas of an autoscaled role are where it starts, kept within its bounds.

A change of `scheduling` changes the ConfigMap alone, never a pod template: no restart. Where the engine is told at
its start, a change of what it is told changes the template of prefill and mixed pods too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prefleet_operator.api import GROUP, KIND, VERSION, PrefillPolicySpec
from prefleet_operator.core.native_policy import FleetPolicy
from prefleet_operator.render.actuators import render_actuators
from prefleet_operator.render.names import live_config_map_name
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
    """What the installation says for every fleet. `prometheus`: by metrics source, the address of those that need no
    credentials."""

    runtime_image: str
    prometheus: Mapping[str, str] = field(default_factory=dict)


def render_fleet(
    policy: PolicyObject,
    spec: PrefillPolicySpec,
    fleet_policy: FleetPolicy,
    defaults: InstallationDefaults,
    kept: bool = False,
) -> list[dict[str, Any]]:
    """The desired objects of one fleet whose prefill (or mixed) pods run `fleet_policy`.

    `kept`: the live ConfigMap has been made for pods of others.

    Raises:
        InvalidSpecError: what schema and CEL cannot see is wrong, such as a podTemplate that takes away what
            the operator needs; the message is a sentence for the Accepted condition.
    """
    kept = kept or spec.attach is not None
    name = live_config_map_name(policy.name, spec)
    config_map = render_policy_config_map(policy.name, policy.namespace, name, fleet_policy, kept)
    started = _within_bounds(spec)
    roles = {
        role: render_role(policy.name, policy.namespace, started, role, defaults.runtime_image, fleet_policy)
        for role in spec.roles()
    }
    workloads = {role: rendered[0] for role, rendered in roles.items()}
    others = [
        *(each for rendered in roles.values() for each in rendered),
        *render_router(policy.name, policy.namespace, started),
        *render_actuators(policy.name, policy.namespace, spec, workloads, defaults.prometheus),
    ]
    return [config_map if kept else _owned(policy, config_map), *(_owned(policy, each) for each in others)]


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


def _within_bounds(spec: PrefillPolicySpec) -> PrefillPolicySpec:
    """The spec with the replicas of sized roles kept within their bounds."""
    roles = spec.roles()
    clamped = {
        role.value: roles[role].model_copy(update={"replicas": bounds.clamped(roles[role].replicas)})
        for role, bounds in spec.sized_roles().items()
    }
    return spec.model_copy(update=clamped)


def _owned(policy: PolicyObject, rendered: dict[str, Any]) -> dict[str, Any]:
    if policy.uid is None:
        return rendered
    return rendered | {"metadata": rendered["metadata"] | {"ownerReferences": [owner_reference(policy)]}}
