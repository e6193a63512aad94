"""What sets the number of pods: which objects there are, and that each allows every number within the bounds."""

from __future__ import annotations

from typing import Any

import pytest
from prefleet_operator.api import CAPABILITIES, EngineType, InvalidSpecError, Role, parse_spec
from prefleet_operator.engines import engine_for
from prefleet_operator.render import InstallationDefaults, known_prometheus

from tests.support.bad_specs import engine_document
from tests.support.kubernetes_schema import find_fault
from tests.support.rendering import SIMULATOR, VLLM, render

BOUNDS: dict[str, Any] = {"prefill": {"minReplicas": 2, "maxReplicas": 8}}
PROMETHEUS = InstallationDefaults("prefleet/runtime:1", {"cluster": "http://prometheus:9090", "far": "https://far"})


def autoscaled(actuator: str, **spec: Any) -> dict[str, Any]:
    return VLLM | {"autoscaling": {"actuator": actuator, **BOUNDS}, "metricsSource": "cluster"} | spec


@pytest.mark.parametrize(
    ("actuator", "kinds"),
    [
        pytest.param("Direct", set(), id="the operator scales by itself"),
        pytest.param("HPA", {"HorizontalPodAutoscaler/chat-prefill"}, id="an HPA for each sized role"),
        pytest.param("KEDA", {"ScaledObject/chat-prefill"}, id="a ScaledObject for each sized role"),
    ],
)
def test_each_actuator_has_its_objects_and_changes_no_other(actuator: str, kinds: set[str]) -> None:
    rendered = render(autoscaled(actuator), defaults=PROMETHEUS)
    assert rendered.keys() - render(VLLM).keys() == kinds
    assert {name: item for name, item in rendered.items() if name not in kinds} == render(VLLM)
    owners = [rendered[name]["metadata"]["ownerReferences"][0]["uid"] for name in kinds]
    assert owners == ["1234"] * len(kinds)
    assert {name: fault for name in kinds if (fault := find_fault(rendered[name]))} == {}


@pytest.mark.parametrize(("replicas", "started"), [(1, 2), (5, 5), (20, 8)])
def test_a_sized_role_starts_within_its_bounds(replicas: int, started: int) -> None:
    spec = autoscaled("Direct", prefill={"replicas": replicas}, decode={"replicas": 20})
    rendered = render(spec)
    found = {role: rendered[f"Deployment/chat-{role}"]["spec"]["replicas"] for role in ("prefill", "decode")}
    assert found == {"prefill": started, "decode": 20}


@pytest.mark.parametrize("actuator", ["HPA", "KEDA"])
def test_any_step_within_the_bounds_is_one_step_without_a_wait_or_a_tolerance(actuator: str) -> None:
    (spec,) = (
        item["spec"]
        for name, item in render(autoscaled(actuator), defaults=PROMETHEUS).items()
        if name.split("/")[0] in ("HorizontalPodAutoscaler", "ScaledObject")
    )
    behavior = spec.get("behavior") or spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    for direction in (behavior["scaleUp"], behavior["scaleDown"]):
        assert direction["stabilizationWindowSeconds"] == 0
        assert direction["tolerance"] == "0"
        assert max(each["value"] for each in direction["policies"] if each["type"] == "Pods") >= 8 - 1


def test_keda_asks_the_source_that_the_policy_names_and_takes_no_answer_for_none() -> None:
    (trigger,) = render(autoscaled("KEDA"), defaults=PROMETHEUS)["ScaledObject/chat-prefill"]["spec"]["triggers"]
    assert trigger["metadata"]["serverAddress"] == "http://prometheus:9090"
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert trigger["metadata"]["query"] == (
        'max(prefleet_desired_replicas{namespace="serving",policy="chat",role="prefill"})'
    )


@pytest.mark.parametrize(
    ("defaults", "fix"),
    [
        pytest.param(PROMETHEUS, "name one of cluster, far, or write autoscaling.actuator HPA or Direct", id="some"),
        pytest.param(InstallationDefaults("x"), "ask the installer to add one, or write", id="none"),
    ],
)
def test_keda_without_an_address_is_refused_with_those_that_have_one(defaults: InstallationDefaults, fix: str) -> None:
    with pytest.raises(InvalidSpecError, match="other is no Prometheus that KEDA can ask") as refusal:
        render(autoscaled("KEDA", metricsSource="other"), defaults=defaults)
    assert fix in str(refusal.value)


def test_a_laptop_is_told_how_to_give_the_address() -> None:
    spec = parse_spec(autoscaled("KEDA"))
    with pytest.raises(InvalidSpecError, match="give its address with --metrics-url"):
        known_prometheus(spec, None)
    assert known_prometheus(spec, "http://x") == {"cluster": "http://x"}
    assert known_prometheus(parse_spec(VLLM), None) == {}


def test_a_fleet_may_ask_for_all_accelerators_that_it_may_have_at_its_smallest() -> None:
    prefill = {"accelerator": {"resource": "nvidia.com/gpu", "count": 4}, "nodesPerReplica": 2}
    decode = {"accelerator": {"resource": "nvidia.com/gpu"}, "replicas": 3}
    spec = parse_spec(
        VLLM | {"prefill": prefill, "decode": decode} | {"autoscaling": {**BOUNDS, "maxAccelerators": 19}}
    )
    assert {role.value: given.accelerators for role, given in spec.roles().items()} == {"prefill": 8, "decode": 1}
    assert parse_spec(SIMULATOR).roles()[Role.MIXED].accelerators == 0


@pytest.mark.parametrize("kind", EngineType)
def test_the_engines_that_are_sized_are_those_that_tell_their_load(kind: EngineType) -> None:
    metrics = engine_for(parse_spec(engine_document(kind.value)["spec"])).metrics
    assert CAPABILITIES[kind].sizes == (metrics is None or bool(metrics.running and metrics.kv_usage))
