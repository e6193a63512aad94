"""What sets the number of a role's pods: nothing (Direct), a HorizontalPodAutoscaler, or a ScaledObject of KEDA's.

Both follow one metric of the operator's, `prefleet_desired_replicas`, which is the number wanted. As an average of 1
for each pod, the number of pods that a controller computes from it is the metric itself. The operator has damped and
stabilised that number already, so the controller does neither: it may take any step at once, and its tolerance is 0.
By default a controller ignores a change of up to a tenth, which at ten pods or more is a pod.

A metric that cannot be read is no number: a HorizontalPodAutoscaler then leaves the count as it is, and KEDA's trigger
must not take an empty answer for zero (`ignoreNullValues`). There is no `fallback`, which would be a second number.

Left out: the server of external metrics (or KEDA) that brings the metric to a HorizontalPodAutoscaler, credentials with
which KEDA asks a Prometheus, and the number itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from prefleet_operator.api import Actuator, InvalidSpecError, PrefillPolicySpec, Role, RoleBounds
from prefleet_operator.render.names import ROLE_LABEL, role_labels, role_object_name
from prefleet_operator.render.revision import TEMPLATE_FIELDS

Object = dict[str, Any]

DESIRED_METRIC: Final = "prefleet_desired_replicas"
"""The operator's gauge, with the labels namespace, policy and role."""

ACTUATOR_KINDS: Final = ("HorizontalPodAutoscaler", "ScaledObject")

_STEP_S: Final = 15


def render_actuators(
    fleet: str,
    namespace: str,
    spec: PrefillPolicySpec,
    workloads: Mapping[Role, Object],
    prometheus: Mapping[str, str],
) -> list[Object]:
    """The actuators of all sized roles. `workloads`: what makes their pods; `prometheus`: address by metrics source.

    Raises:
        InvalidSpecError: KEDA has no address to ask.
    """
    if spec.autoscaling is None or spec.autoscaling.actuator is Actuator.DIRECT:
        return []
    rendered = []
    for role, bounds in spec.sized_roles().items():
        labels = {"namespace": namespace, "policy": fleet, "role": role.value}
        if spec.autoscaling.actuator is Actuator.HPA:
            kind = ("autoscaling/v2", "HorizontalPodAutoscaler")
            body = _autoscaler(bounds, labels)
        else:
            kind = ("keda.sh/v1alpha1", "ScaledObject")
            body = _scaled_object(bounds, labels, _address(spec, prometheus))
        metadata = {"name": role_object_name(fleet, role), "namespace": namespace, "labels": role_labels(fleet, role)}
        rendered.append(
            {
                "apiVersion": kind[0],
                "kind": kind[1],
                "metadata": metadata,
                "spec": {"scaleTargetRef": _target(workloads[role]), **body},
            }
        )
    return rendered


def known_prometheus(spec: PrefillPolicySpec, address: str | None) -> dict[str, str]:
    """The address of the policy's metrics source for one who asks no operator. Raises InvalidSpecError if it is needed
    and not given."""
    if address is None and spec.autoscaling is not None and spec.autoscaling.actuator is Actuator.KEDA:
        raise InvalidSpecError(
            "spec.autoscaling.actuator: KEDA asks the metrics source itself: give its address with --metrics-url"
        )
    return {} if address is None else {spec.metrics_source: address}


def withdraw_actuators(objects: Sequence[Object], roles: Collection[Role]) -> list[Object]:
    """The objects without the actuators of these roles: somebody else's autoscaler sets their replicas."""
    kinds, others = set(ACTUATOR_KINDS), set(roles)
    return [
        each for each in objects if each["kind"] not in kinds or each["metadata"]["labels"][ROLE_LABEL] not in others
    ]


def release_replicas(objects: Sequence[Object], roles: Collection[Role]) -> list[Object]:
    """The objects, the workloads of these roles without `spec.replicas`: the live count is somebody else's to say."""
    return [_released(each) if _is_workload_of(each, roles) else each for each in objects]


def _is_workload_of(rendered: Object, roles: Collection[Role]) -> bool:
    return rendered["kind"] in TEMPLATE_FIELDS and rendered["metadata"]["labels"][ROLE_LABEL] in set(roles)


def _released(workload: Object) -> Object:
    return workload | {"spec": {name: value for name, value in workload["spec"].items() if name != "replicas"}}


def _target(workload: Object) -> Object:
    return {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "name": workload["metadata"]["name"],
    }


def _autoscaler(bounds: RoleBounds, labels: Mapping[str, str]) -> Object:
    external = {
        "metric": {"name": DESIRED_METRIC, "selector": {"matchLabels": dict(labels)}},
        "target": {"type": "AverageValue", "averageValue": "1"},
    }
    return {
        "minReplicas": bounds.min_replicas,
        "maxReplicas": bounds.max_replicas,
        "metrics": [{"type": "External", "external": external}],
        "behavior": _behavior(bounds),
    }


def _behavior(bounds: RoleBounds) -> Object:
    """Both ways at once, by any step within the bounds."""
    rules: Object = {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": bounds.max_replicas, "periodSeconds": _STEP_S}],
        "tolerance": "0",
    }
    return {"scaleUp": rules, "scaleDown": rules}


def _address(spec: PrefillPolicySpec, prometheus: Mapping[str, str]) -> str:
    found = prometheus.get(spec.metrics_source)
    if found is None:
        known = f"name one of {', '.join(sorted(prometheus))}" if prometheus else "ask the installer to add one"
        raise InvalidSpecError(
            f"spec.metricsSource: {spec.metrics_source} is no Prometheus that KEDA can ask without credentials: "
            f"{known}, or write autoscaling.actuator HPA or Direct"
        )
    return found


def _scaled_object(bounds: RoleBounds, labels: Mapping[str, str], address: str) -> Object:
    matchers = ",".join(f'{name}="{value}"' for name, value in labels.items())
    trigger = {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": address,
            "query": f"max({DESIRED_METRIC}{{{matchers}}})",
            "threshold": "1",
            "ignoreNullValues": "false",
        },
    }
    return {
        "minReplicaCount": bounds.min_replicas,
        "maxReplicaCount": bounds.max_replicas,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(bounds)}},
        "triggers": [trigger],
    }
