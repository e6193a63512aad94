"""The gates of a rollout, as their fields of a Deployment or of a LeaderWorkerSet. Changing them replaces no pod.

A Deployment is paused by a closed gate. `paused` is written only then, so that a Deployment which somebody else has
paused stays so.

A LeaderWorkerSet replaces its groups from the last one down to its partition, whether they serve or not: the partition
is the number of groups that may not be new yet, and exact however late it comes. Groups above those wanted, which
maxSurge brings, are beyond it. So of the other groups that do not serve none goes first, and a surge may be ahead of
the other role by as many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prefleet_operator.api import PrefillPolicySpec
from prefleet_operator.core.rollout import Gate, RolePods
from prefleet_operator.render.names import ROLE_LABEL
from prefleet_operator.render.revision import TEMPLATE_FIELDS
from prefleet_operator.render.workload import rolling_update

Object = dict[str, Any]


def with_gates(objects: Sequence[Object], gates: Mapping[str, Gate], pods: Mapping[str, RolePods]) -> list[Object]:
    """`objects` with the gates of the roles that have one. `pods`: what they were decided on."""
    return [_gated(each, gates, pods) for each in objects]


def _gated(rendered: Object, gates: Mapping[str, Gate], pods: Mapping[str, RolePods]) -> Object:
    role = rendered["metadata"]["labels"].get(ROLE_LABEL)
    if role not in gates:
        return rendered
    gate, spec = gates[role], rendered.get("spec", {})
    if rendered["kind"] == "Deployment":
        limits = {"maxSurge": gate.max_surge, "maxUnavailable": gate.max_unavailable}
        paused = {} if gate.open else {"paused": True}
        strategy = spec["strategy"] | {"rollingUpdate": limits}
        return rendered | {"spec": spec | paused | {"strategy": strategy}}
    if rendered["kind"] == "LeaderWorkerSet":
        absent = max(min(gate.max_unavailable, pods[role].max_unavailable), 0 if pods[role].max_surge else 1)
        steered = {"partition": max(0, pods[role].wanted - gate.new), "maxUnavailable": absent}
        before = spec["rolloutStrategy"]
        strategy = before | {"rollingUpdateConfiguration": before["rollingUpdateConfiguration"] | steered}
        return rendered | {"spec": spec | {"rolloutStrategy": strategy}}
    return rendered


def without_gate(found: Object, spec: PrefillPolicySpec) -> Object:
    """A workload of a fleet of that spec as it is while nothing steers it; other objects as they are."""
    part = {role.value: part for role, part in spec.roles().items()}.get(found["metadata"]["labels"].get(ROLE_LABEL))
    if part is None or found["kind"] not in TEMPLATE_FIELDS:
        return found
    limits, others = rolling_update(part), {name: value for name, value in found["spec"].items() if name != "paused"}
    if found["kind"] == "Deployment":
        return found | {"spec": others | {"strategy": others.get("strategy", {}) | {"rollingUpdate": limits}}}
    configuration = {"rollingUpdateConfiguration": {"partition": 0, **limits}}
    return found | {"spec": others | {"rolloutStrategy": others.get("rolloutStrategy", {}) | configuration}}
