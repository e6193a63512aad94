"""The objects of one role: what makes its pods, the Service before them, and what protects them from drains.

Pods are made by a Deployment, or by a LeaderWorkerSet where nodesPerReplica is above 1. Replicas are written
explicitly: an applied field that its sole owner leaves out falls back to 1. Unless `rollout` says otherwise, pods
that ask for accelerators are replaced one by one without surge, since a spare accelerator is rarely there to surge
onto; others surge by one and lose none. A rollout counts as stuck only when a start has had its full time and the
images ten minutes more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prefleet_operator.api import PrefillPolicySpec, Role, RoleSpec, SecurityProfile
from prefleet_operator.core.native_policy import FleetPolicy
from prefleet_operator.engines import HTTP_PORT, EngineContainer, PodRequest, engine_for
from prefleet_operator.render.disruption import render_disruption_budget
from prefleet_operator.render.groups import render_groups
from prefleet_operator.render.names import (
    FLEET_LABEL,
    GROUP_SET_LABEL,
    WORKER_INDEX_LABEL,
    groups_object_name,
    role_labels,
    role_object_name,
    selector_labels,
)
from prefleet_operator.render.overlay import apply_overlay
from prefleet_operator.render.pod import render_pod_template, without_probes
from prefleet_operator.render.restricted import without_root

Object = dict[str, Any]

_IMAGE_PULL_S = 600
_REVISION_HISTORY = 3
_MIN_READY_S = 5
"""Between a new pod's turning ready and the Deployment's next step. In this time the operator sets the gate of the
role anew (core/rollout.py): a watch, a decision and a write, and some more where the API server is slow."""


@dataclass(frozen=True, slots=True)
class _RolePods:
    """One role of one fleet, on the way to its objects. `started_with`: the generation that its pods are started with,
    where the engine is told at its start."""

    fleet: str
    namespace: str
    role: Role
    spec: RoleSpec
    image: str
    started_with: int | None

    def metadata(self, name: str) -> Object:
        """The metadata of one of its objects."""
        return {"name": name, "namespace": self.namespace, "labels": role_labels(self.fleet, self.role)}

    def template(self, engine: EngineContainer) -> Object:
        """The pod template around an engine's container, with the user's overlay."""
        template = render_pod_template(self.fleet, self.role, self.spec, engine, self.image, self.started_with)
        template = apply_overlay(template, self.spec.pod_template or {}, self.role)
        return template if engine.leads else without_probes(template)


def render_role(
    fleet: str, namespace: str, spec: PrefillPolicySpec, role: Role, runtime_image: str, policy: FleetPolicy
) -> list[Object]:
    """The objects of one role, what makes its pods first.

    Raises:
        InvalidSpecError: the role's args or podTemplate cannot be combined with what the operator needs.
    """
    image = spec.runtime.image or runtime_image
    engine = engine_for(spec).container(PodRequest(spec, role, image, policy))
    if spec.security.profile is SecurityProfile.RESTRICTED:
        engine = without_root(engine)
    started_with = policy.generation if spec.engine.told_at_start and role is not Role.DECODE else None
    pods = _RolePods(fleet, namespace, role, spec.roles()[role], image, started_with)
    workload = _deployment(pods, engine) if engine.worker is None else _groups(pods, engine, engine.worker)
    metadata = pods.metadata(role_object_name(fleet, role))
    return [workload, _service(pods), *render_disruption_budget(metadata, pods.spec.replicas, _all_pods(pods))]


def _all_pods(pods: _RolePods) -> dict[str, str]:
    """What finds every pod of the role, those of groups that do not lead included."""
    if pods.spec.nodes_per_replica == 1:
        return selector_labels(pods.fleet, pods.role)
    return {FLEET_LABEL: pods.fleet, GROUP_SET_LABEL: groups_object_name(pods.fleet, pods.role)}


def rolling_update(spec: RoleSpec) -> Object:
    """How many pods of a role are replaced at once while nothing steers its rollout."""
    if spec.rollout is not None:
        return spec.rollout.to_resource()
    surge, unavailable = (1, 0) if spec.accelerator is None else (0, 1)
    return {"maxSurge": surge, "maxUnavailable": unavailable}


def _deployment(pods: _RolePods, engine: EngineContainer) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": pods.metadata(role_object_name(pods.fleet, pods.role)),
        "spec": {
            "replicas": pods.spec.replicas,
            "selector": {"matchLabels": selector_labels(pods.fleet, pods.role)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling_update(pods.spec)},
            "minReadySeconds": _MIN_READY_S,
            "progressDeadlineSeconds": engine.startup_limit_s + _IMAGE_PULL_S,
            "revisionHistoryLimit": _REVISION_HISTORY,
            "template": pods.template(engine),
        },
    }


def _groups(pods: _RolePods, leader: EngineContainer, worker: EngineContainer) -> Object:
    return render_groups(
        pods.metadata(groups_object_name(pods.fleet, pods.role)),
        pods.spec,
        leader=pods.template(leader),
        worker=pods.template(worker),
        rolling_update=rolling_update(pods.spec),
    )


def _service(pods: _RolePods) -> Object:
    leaders = {WORKER_INDEX_LABEL: "0"} if pods.spec.nodes_per_replica > 1 else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": pods.metadata(role_object_name(pods.fleet, pods.role)),
        "spec": {
            "selector": selector_labels(pods.fleet, pods.role) | leaders,
            "ports": [{"name": "http", "port": HTTP_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }
