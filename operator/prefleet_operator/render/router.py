"""The router of one fleet: a Deployment, the Service that clients talk to, and what protects it from drains.

Its pods carry the fleet's label, so that they are pruned and found with the fleet, and a role label that is no role:
the Services of the roles do not select them, and the operator takes none of them for an engine pod.

Times. A pod that is told to stop still gets connections until its endpoint has left every proxy, so preStop waits for
that; then the router takes no new ones, lets running answers end and exits.

Rights. Without `serviceAccountName` none at all: no token is mounted. With it the pod gets that account's token; what
the account may do is its maker's to say. Router images run as any user and write nothing, so the pod fits the
restricted profile.
"""

from __future__ import annotations

from typing import Any, Final

from prefleet_operator.api import PrefillPolicySpec, RouterType
from prefleet_operator.engines import HTTP_PORT
from prefleet_operator.render.disruption import render_disruption_budget
from prefleet_operator.render.names import ROUTER, router_labels, router_object_name, router_selector_labels
from prefleet_operator.render.overlay import apply_router_overlay
from prefleet_operator.render.router_command import DRAIN_S, METRICS_PORT, STARTUP_LIMIT_S, router_command

Object = dict[str, Any]

_ENDPOINT_REMOVAL_S: Final = 10
_GRACE_MARGIN_S: Final = 10
_STARTUP_PERIOD_S: Final = 2
_REVISION_HISTORY: Final = 3
_USER: Final = 65532
_SCRATCH: Final = "scratch"


def render_router(fleet: str, namespace: str, spec: PrefillPolicySpec) -> list[Object]:
    """The router's objects, Deployment first; none where the spec asks for no router.

    Raises:
        InvalidSpecError: its podTemplate cannot be combined with what the operator needs.
    """
    if spec.router.type is RouterType.NONE:
        return []
    metadata = {"name": router_object_name(fleet), "namespace": namespace, "labels": router_labels(fleet)}
    template = {"metadata": {"labels": router_labels(fleet)}, "spec": _pod(fleet, namespace, spec)}
    template = apply_router_overlay(template, spec.router.pod_template or {})
    budget = render_disruption_budget(metadata, spec.router.replicas, router_selector_labels(fleet))
    return [_deployment(fleet, metadata, spec, template), _service(fleet, metadata), *budget]


def _deployment(fleet: str, metadata: Object, spec: PrefillPolicySpec, template: Object) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": spec.router.replicas,
            "selector": {"matchLabels": router_selector_labels(fleet)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "progressDeadlineSeconds": STARTUP_LIMIT_S,
            "revisionHistoryLimit": _REVISION_HISTORY,
            "template": template,
        },
    }


def _service(fleet: str, metadata: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "selector": router_selector_labels(fleet),
            "ports": [{"name": "http", "port": HTTP_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _pod(fleet: str, namespace: str, spec: PrefillPolicySpec) -> Object:
    account = spec.router.service_account_name
    return {
        "automountServiceAccountToken": account is not None,
        **({"serviceAccountName": account} if account is not None else {}),
        "enableServiceLinks": False,
        "securityContext": {
            "fsGroup": _USER,
            "runAsGroup": _USER,
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": _ENDPOINT_REMOVAL_S + DRAIN_S + _GRACE_MARGIN_S,
        "containers": [_container(fleet, namespace, spec)],
        "volumes": [{"name": _SCRATCH, "emptyDir": {}}],
    }


def _container(fleet: str, namespace: str, spec: PrefillPolicySpec) -> Object:
    command = router_command(fleet, namespace, spec)
    return {
        "name": ROUTER,
        "image": spec.router.image,
        "command": list(command.command),
        "args": list(command.args),
        "env": [{"name": "HOME", "value": "/tmp"}],
        "ports": [
            {"name": "http", "containerPort": HTTP_PORT},
            {"name": "metrics", "containerPort": METRICS_PORT},
        ],
        "volumeMounts": [{"name": _SCRATCH, "mountPath": "/tmp"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_ENDPOINT_REMOVAL_S)]}}},
        **_probes(),
    }


def _probes() -> Object:
    """It starts to listen once it has met the first pods of each role, so only then has it started; /readiness says
    whether it knows any pod that it may send to."""
    live = {"httpGet": {"path": "/liveness", "port": "http"}}
    ready = {"httpGet": {"path": "/readiness", "port": "http"}}
    failures = STARTUP_LIMIT_S // _STARTUP_PERIOD_S
    return {
        "startupProbe": live | {"periodSeconds": _STARTUP_PERIOD_S, "timeoutSeconds": 5, "failureThreshold": failures},
        "readinessProbe": ready | {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": live | {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
    }
