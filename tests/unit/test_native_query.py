"""What a metrics source is asked for a fleet whose engine runs no runtime."""

import pytest
from prefleet_operator.api import LengthMeasure, PrefillPolicySpec, Role
from prefleet_operator.app.gather import Cluster, query
from prefleet_operator.app.policies import PolicyRecord
from prefleet_operator.app.records import PodRecord
from prefleet_operator.engines import EXPORTER_PORT

from tests.support.native.cases import CASES
from tests.support.policies import make_spec


def policy(generation: int | None) -> PolicyRecord:
    status = {}
    if generation is not None:
        status = {"effective": {"policy": "FCFS", "generation": generation}}
    metadata = {"namespace": "ns", "name": "chat", "uid": "u", "resourceVersion": "1"}
    return PolicyRecord.of({"metadata": metadata, "status": status})


def cluster(**generations: int) -> Cluster:
    """Ready prefill pods that were started with these generations."""
    found = Cluster()
    for version, (name, generation) in enumerate(generations.items(), start=1):
        pod = {
            "metadata": {
                "namespace": "ns",
                "name": name,
                "uid": name,
                "resourceVersion": str(version),
                "labels": {"prefleet.dev/fleet": "chat", "prefleet.dev/role": "mixed"},
                "annotations": {"prefleet.dev/policy-generation": str(generation)},
            },
            "status": {
                "podIP": "127.0.0.1",
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-30T00:00:00Z"}],
            },
        }
        found.pods.put(PodRecord.of(pod))
    return found


def asked(spec: PrefillPolicySpec, generation: int | None = 2) -> tuple[object, dict[str, tuple[int, bool]]]:
    found = query(policy(generation), spec, cluster(new=2, old=1))
    assert {pod.role for pod in found.pods} == {Role.MIXED}
    return found.engine, {pod.name: (pod.exporter_port, pod.current) for pod in found.pods}


@pytest.mark.parametrize("kind", CASES)
def test_a_native_fleet_is_read_on_its_engines_port_and_by_its_names(kind):
    case = CASES[kind]
    port = case.metrics.port
    assert asked(case.spec) == (case.metrics, {"new": (port, True), "old": (port, False)})


def test_before_anything_is_in_force_no_pod_is_current():
    _, pods = asked(CASES["SGLang"].spec, None)
    assert [current for _, current in pods.values()] == [False, False]


def test_a_fleet_with_the_runtime_is_read_by_its_exporter():
    assert asked(make_spec()) == (None, {"new": (EXPORTER_PORT, True), "old": (EXPORTER_PORT, True)})


def test_vllm_ascend_is_asked_for_the_prompt_lengths_that_it_compares():
    spec = CASES["VLLMAscend"].spec
    assert spec.scheduling.length is LengthMeasure.UNCACHED
    assert query(policy(1), spec, cluster(a=1)).length is LengthMeasure.PROMPT
