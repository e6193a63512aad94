"""What the real API server makes of the fleets' pods: Pod Security's restricted profile, evictions, accelerators by
any name. Pods stay pending; the test plays the kubelet where one must be ready."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from prefleet_operator.api import parse_document
from prefleet_operator.cli.render import render_policy

from tests.golden.cases import render_case
from tests.support.bad_specs import GOOD as BASE
from tests.support.installation import Fleet, OperatorProcess
from tests.support.plane.plane import ControlPlane, KubectlFailed
from tests.support.pod_templates import EXAMPLES, RESOURCES, PodTemplateExample
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]


def templates(rendered: list[Json]) -> Iterator[Json]:
    """The pod templates of rendered objects."""
    for item in rendered:
        if item["kind"] == "Deployment":
            yield item["spec"]["template"]
        elif item["kind"] == "LeaderWorkerSet":
            both = item["spec"]["leaderWorkerTemplate"]
            yield from (both["leaderTemplate"], both["workerTemplate"])


def admit(plane: ControlPlane, namespace: str, template: Json) -> str:
    """Have the API server judge a pod of the template as it would a real one."""
    metadata = {**template["metadata"], "name": "judged", "namespace": namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    return plane.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(pod))


@pytest.fixture
def restricted(plane: ControlPlane, namespace: str) -> str:
    plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    return namespace


@pytest.mark.parametrize("case", ["simulator-mixed", "simulator-prefill-decode", "vllm-restricted"])
def test_a_namespace_that_enforces_the_restricted_profile_takes_the_pods(
    plane: ControlPlane, restricted: str, case: str
) -> None:
    found = list(templates(render_case(case)))
    assert found
    for template in found:
        assert "created" in admit(plane, restricted, template)


def test_it_refuses_engines_that_run_as_their_image_says(plane: ControlPlane, restricted: str) -> None:
    """Else the test above would show nothing."""
    (template,) = templates(render_case("vllm-mixed"))
    with pytest.raises(KubectlFailed, match=r'violates PodSecurity "restricted:latest".*runAsNonRoot'):
        admit(plane, restricted, template)


def pod_names(fleet: Fleet) -> list[str]:
    text = fleet.plane.kubectl("-n", fleet.namespace, "get", "pods", "-o", "name")
    return [line.removeprefix("pod/") for line in text.split()]


def set_ready(fleet: Fleet, pod: str, ready: bool) -> None:
    """What a kubelet would say of a running pod."""
    condition = {"type": "Ready", "status": str(ready)}
    patch = json.dumps({"status": {"phase": "Running", "conditions": [condition]}})
    fleet.plane.kubectl("-n", fleet.namespace, "patch", "pod", pod, "--subresource=status", "--type=merge", "-p", patch)


def evict(fleet: Fleet, pod: str) -> None:
    """What kubectl drain does to each pod. Raises KubectlFailed if a budget forbids it."""
    metadata = {"name": pod, "namespace": fleet.namespace}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{fleet.namespace}/pods/{pod}/eviction"
    fleet.plane.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


def allowed(fleet: Fleet) -> int:
    found = fleet.get("poddisruptionbudget", "chat-mixed") or {}
    return int((found.get("status") or {}).get("disruptionsAllowed", -1))


def test_a_drain_takes_one_replica_at_a_time_and_what_is_not_ready_at_once(
    operator: OperatorProcess, plane: ControlPlane, namespace: str
) -> None:
    fleet = Fleet(plane, namespace)
    fleet.apply(mixed={"replicas": 3})
    broken, first, second = eventually(lambda: len(names := pod_names(fleet)) == 3 and names, 30)
    for pod in (broken, first, second):
        set_ready(fleet, pod, ready=True)
    eventually(lambda: allowed(fleet) == 1, 30)
    set_ready(fleet, broken, ready=False)
    eventually(lambda: allowed(fleet) == 0, 30)
    with pytest.raises(KubectlFailed, match="disruption budget"):
        evict(fleet, first)
    evict(fleet, broken)
    assert {first, second} <= set(pod_names(fleet))


def test_a_single_replica_holds_up_no_drain(operator: OperatorProcess, plane: ControlPlane, namespace: str) -> None:
    fleet = Fleet(plane, namespace)
    fleet.apply(mixed={"replicas": 2})
    eventually(lambda: fleet.get("poddisruptionbudget", "chat-mixed"), 30)
    fleet.apply(mixed={"replicas": 1})
    eventually(lambda: not fleet.get("poddisruptionbudget", "chat-mixed"), 30)
    (pod,) = eventually(lambda: len(names := pod_names(fleet)) == 1 and names, 30)
    set_ready(fleet, pod, ready=False)
    evict(fleet, pod)


def judged(plane: ControlPlane, namespace: str, role: Json) -> str:
    """The API server's answer to a pod of that role."""
    policy = {**BASE, "spec": {**BASE["spec"], "prefill": role}}
    return admit(plane, namespace, next(templates(render_policy(parse_document(policy), "example.com/prefleet:test"))))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_pod_with_a_users_overlay_is_admitted(
    plane: ControlPlane, namespace: str, example: PodTemplateExample
) -> None:
    accelerator = {"resource": "nvidia.com/gpu", "count": 8}
    if "runtimeClassName" in example.spec:
        runtime_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
        named = json.dumps({**runtime_class, "metadata": {"name": "nvidia"}})
        plane.kubectl("apply", "-f", "-", stdin=named)
    role = {"accelerator": accelerator, "podTemplate": {"spec": example.spec}}
    assert "created" in judged(plane, namespace, role)


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_pod_may_ask_for_an_accelerator_of_any_name(plane: ControlPlane, namespace: str, resource: str) -> None:
    assert "created" in judged(plane, namespace, {"accelerator": {"resource": resource, "count": 2}})
