"""The Deployment and the Service of one role.

Replicas are written explicitly: an applied field that its sole owner leaves out falls back to 1. Pods that ask
for accelerators are replaced one by one without surge, since a spare accelerator is rarely there to surge onto;
others surge by one and lose none. A rollout counts as stuck only when a start has had its full time and the
images ten minutes more.
"""

from __future__ import annotations

from typing import Any

from prefleet_operator.api import PrefillPolicySpec, Role
from prefleet_operator.core.native_policy import FleetPolicy
from prefleet_operator.engines import HTTP_PORT, EngineContainer, PodRequest, engine_for
from prefleet_operator.render.names import role_labels, role_object_name, selector_labels
from prefleet_operator.render.overlay import apply_overlay
from prefleet_operator.render.pod import render_pod_template

Object = dict[str, Any]

_IMAGE_PULL_S = 600
_REVISION_HISTORY = 3


def render_role(
    fleet: str, namespace: str, spec: PrefillPolicySpec, role: Role, runtime_image: str, policy: FleetPolicy
) -> list[Object]:
    """The objects of one role, Deployment first.

    Raises:
        InvalidSpecError: the role's args or podTemplate cannot be combined with what the operator needs.
    """
    metadata = {
        "name": role_object_name(fleet, role),
        "namespace": namespace,
        "labels": role_labels(fleet, role),
    }
    image = spec.runtime.image or runtime_image
    engine = engine_for(spec).container(PodRequest(spec, role, image, policy))
    started_with = policy.generation if spec.engine.told_at_start and role is not Role.DECODE else None
    template = render_pod_template(fleet, role, spec.roles()[role], engine, image, started_with)
    template = apply_overlay(template, spec.roles()[role].pod_template or {}, role)
    return [_deployment(fleet, metadata, spec, role, engine, template), _service(fleet, metadata, role)]


def _deployment(
    fleet: str, metadata: Object, spec: PrefillPolicySpec, role: Role, engine: EngineContainer, template: Object
) -> Object:
    scarce = spec.roles()[role].accelerator is not None
    surge, unavailable = (0, 1) if scarce else (1, 0)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": spec.roles()[role].replicas,
            "selector": {"matchLabels": selector_labels(fleet, role)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
            },
            "progressDeadlineSeconds": engine.startup_limit_s + _IMAGE_PULL_S,
            "revisionHistoryLimit": _REVISION_HISTORY,
            "template": template,
        },
    }


def _service(fleet: str, metadata: Object, role: Role) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "selector": selector_labels(fleet, role),
            "ports": [{"name": "http", "port": HTTP_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }
