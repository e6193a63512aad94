"""The failures of docs/troubleshooting.md, each made on the real API server and looked at with the real kubectl.

All of them are made at once by the fixture `failures`; each test waits for its own and holds the page against what
kubectl prints. The nodes' part is the test agent's: it says of an image without a folder what a kubelet says of one
that it cannot pull. `old_runtime` is a runtime that does not know HRRN, as one of an earlier release would not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prefleet_operator.api import ConditionType

from tests.support import troubleshooting
from tests.support.installation import Fleet, Helm, OperatorProcess
from tests.support.node_agent.launch import start_agent
from tests.support.plane.plane import ControlPlane
from tests.support.plane.processes import direct_opener
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]

NAMESPACE = "team-a"
ONE: Json = {"mixed": {"replicas": 1}}
GPU: Json = {"resource": "nvidia.com/gpu", "count": 8}
SLOW = json.dumps({"fixed_s": 0.05, "per_prefill_token_s": 1e-5, "per_decode_token_s": 1e-5})
NOBODY = {"name": "cluster", "type": "Prometheus", "url": "http://127.0.0.1:9"}
QUOTA: Json = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "gpus"},
    "spec": {"hard": {"requests.nvidia.com/gpu": "4"}},
}
NO_HRRN = """
import prefleet_runtime.contract as contract

_known = contract.RuntimePolicy.from_json.__func__

def from_json(cls, text):
    policy = _known(cls, text)
    if policy.policy == "hrrn":
        raise contract.InvalidPolicyError("policy: is 'hrrn': this runtime knows fcfs and short_request_first")
    return policy

contract.RuntimePolicy.from_json = classmethod(from_json)
"""


@dataclass(frozen=True)
class Failure:
    """One fleet and what the page shows of it: the condition that tells, those shown, and the events shown."""

    name: str
    spec: Json
    told: tuple[str, str, str]
    conditions: tuple[str, ...]
    events: tuple[str, ...] = ()
    namespace: str = NAMESPACE
    numbers: bool = False
    timeout_s: float = 60

    def fleet(self, plane: ControlPlane) -> Fleet:
        return Fleet(plane, self.namespace, self.name)


BAD_COMMAND: Json = {
    "mixed": {"podTemplate": {"spec": {"containers": [{"name": "engine", "command": ["vllm", "serve"]}]}}}
}
ALL_CONDITIONS = tuple(kind.value for kind in ConditionType)
HEALTHY = Failure(
    "chat",
    ONE,
    ("Tuned", "False", "LearningLengths"),
    ALL_CONDITIONS,
)
FAILURES = (
    Failure("refused", BAD_COMMAND, ("Accepted", "False", "InvalidSpec"), ("Accepted", "Ready"), ("InvalidSpec",)),
    Failure(
        "image", {"mixed": {}, "runtime": {"image": "registry.example/prefleet:0.1"}},
        ("Ready", "False", "ImageUnavailable"), ("Ready",), ("ImageUnavailable",),
    ),
    Failure(
        "crash", {"mixed": {"args": ["--max-modellen", "8192"]}},
        ("Ready", "False", "EngineCrashing"), ("Ready",), ("EngineCrashing",),
    ),
    Failure(
        "nogpu", {"mixed": {"accelerator": GPU}},
        ("Ready", "False", "Unschedulable"), ("Ready",), ("Unschedulable",),
    ),
    Failure(
        "quota", {"mixed": {"accelerator": GPU}},
        ("Ready", "False", "PodsRefused"), ("Ready",), ("PodsRefused",), namespace="team-b",
    ),
    Failure(
        "source", ONE | {"metricsSource": "prometheus"},
        ("MetricsAvailable", "False", "UnknownMetricsSource"), ("MetricsAvailable",), ("UnknownMetricsSource",),
    ),
    Failure(
        "busy",
        {
            "mixed": {"args": ["--cost-model", SLOW]},
            "scheduling": {"threshold": 100},
            "slo": {"longQueueWait": "2s"},
        },
        ("CapacityLimited", "True", "CapacityLimited"), ("CapacityLimited",), ("CapacityLimited",), numbers=True,
    ),
    Failure(
        "blind", ONE | {"metricsSource": "cluster"},
        ("MetricsAvailable", "False", "MetricsMissing"), ("MetricsAvailable", "Tuned"), ("MetricsMissing",),
        timeout_s=120,
    ),
)  # fmt: skip
STALE = Failure(
    "stale",
    {"mixed": {}, "runtime": {"image": "old-runtime"}, "scheduling": {"policy": "HRRN"}},
    ("PolicyActive", "False", "GenerationNotReported"),
    ("PolicyActive",),
    ("GenerationNotReported",),
    timeout_s=170,
)


@pytest.fixture(scope="module")
def agent(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    old = tmp_path_factory.mktemp("old-runtime")
    (old / "bin").mkdir()
    (old / "sitecustomize.py").write_text(NO_HRRN)
    python = old / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={old} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    images = {"registry.example/*": old / "none", "old-runtime": old}
    handle = start_agent(plane, tmp_path_factory.mktemp("agent"), name="node-a", images=images)
    yield
    handle.leave()


@pytest.fixture(scope="module")
def unseen(plane: ControlPlane, helm: Helm) -> Iterator[str]:
    """What kubectl shows of a policy before there is an operator."""
    for namespace in (NAMESPACE, "team-b"):
        plane.create_namespace(namespace)
    fleet = Fleet(plane, NAMESPACE, "chat")
    fleet.apply(**ONE)
    yield get(fleet)
    plane.kubectl("delete", "namespace", NAMESPACE, "team-b", "--wait=false")


@pytest.fixture(scope="module")
def operator_config() -> Json:
    return {"metricsSources": [NOBODY]}


@pytest.fixture(scope="module", autouse=True)
def failures(plane: ControlPlane, agent: None, unseen: str, module_operator: OperatorProcess) -> None:
    """All of them at once. Where something must have run before it fails, it runs first."""
    stale, refused = STALE.fleet(plane), FAILURES[0].fleet(plane)
    stale.apply(**{"mixed": {}, "runtime": {"image": "old-runtime"}, "scheduling": {"policy": "FCFS"}})
    refused.apply(**ONE)
    rollout = Fleet(plane, NAMESPACE, "rollout")
    rollout.apply(**ONE)
    plane.kubectl("-n", "team-b", "apply", "-f", "-", stdin=json.dumps(QUOTA))
    for failure in FAILURES[1:]:
        failure.fleet(plane).apply(**failure.spec)
    stale.await_condition("PolicyActive", "True", timeout_s=60)
    stale.apply(**STALE.spec)
    refused.await_condition("PolicyActive", "True", timeout_s=60)
    refused.apply(**BAD_COMMAND)
    rollout.await_condition("Ready", "True", timeout_s=60)
    rollout.apply(**ONE, runtime={"image": "registry.example/prefleet:0.2"})
    send_longs(next(f for f in FAILURES if f.name == "busy").fleet(plane))


def send_longs(fleet: Fleet) -> None:
    """A burst of long requests, more than the one pod can take in the time that the SLO allows."""
    fleet.await_condition("PolicyActive", "True", timeout_s=60)
    (address,) = fleet.plane.kubectl(
        "-n", fleet.namespace, "get", "pods", "-l", f"prefleet.dev/fleet={fleet.name}", "-o=jsonpath={..podIP}"
    ).split()
    document = {"model": "chat", "prompt": "word" * 4000, "max_tokens": 1}
    request = urllib.request.Request(
        f"http://{address}:8000/v1/completions", json.dumps(document).encode(), {"Content-Type": "application/json"}
    )
    with ThreadPoolExecutor(140) as pool:
        assert all(pool.map(lambda _: direct_opener().open(request, timeout=60).status == 200, range(140)))


def get(fleet: Fleet) -> str:
    shown = fleet.plane.kubectl("-n", fleet.namespace, "get", "pp", fleet.name)
    return f"$ kubectl get pp {fleet.name}\n{shown}"


def looked_at(fleet: Fleet, failure: Failure) -> str:
    description = fleet.plane.kubectl("-n", fleet.namespace, "describe", "pp", fleet.name)
    part = troubleshooting.part_of_description(description, failure.conditions, failure.events)
    return f"{get(fleet)}\n$ kubectl describe pp {fleet.name}\n{part}\n"


def check(failure: Failure, plane: ControlPlane) -> Fleet:
    """Wait for the failure and for what is to be shown of it, and hold the page against it."""
    fleet = failure.fleet(plane)
    fleet.await_condition(*failure.told, timeout_s=failure.timeout_s)

    def complete() -> str:
        shown = looked_at(fleet, failure)
        return shown if all(f" {reason} " in shown for reason in failure.events) else ""

    troubleshooting.check(failure.name, eventually(complete, 20), failure.numbers)
    return fleet


def test_a_policy_that_no_operator_sees(unseen: str) -> None:
    troubleshooting.check("unseen", unseen)


def test_a_wrong_field_is_refused_at_apply(plane: ControlPlane, tmp_path: Path) -> None:
    fleet = Fleet(plane, NAMESPACE, "wrong")
    shown = [refusal(plane, tmp_path / "misspelt.yaml", fleet.document(**ONE, scheduling={"treshold": 900}))]
    shown += [refusal(plane, tmp_path / "policy.yaml", fleet.document(**ONE, slo={"longQueueWait": "8"}))]
    troubleshooting.check("wrong", "\n".join(shown))


def refusal(plane: ControlPlane, path: Path, document: Json) -> str:
    """What kubectl says as it refuses to apply a document."""
    path.write_text(json.dumps(document))
    done = subprocess.run(
        [plane.binaries["kubectl"], "--kubeconfig", plane.kubeconfig, "apply", "-f", path],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode
    return f"$ kubectl apply -f {path.name}\n{done.stderr.replace(str(path), path.name)}"


def test_a_fleet_that_works_and_learns(plane: ControlPlane) -> None:
    fleet = check(HEALTHY, plane)
    assert fleet.status()["reason"] == "PodsReady"


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name)
def test_a_failure_looks_as_the_page_shows_it(plane: ControlPlane, failure: Failure) -> None:
    fleet = check(failure, plane)
    assert fleet.status()["reason"] == failure.told[2]


def test_a_refused_policy_goes_on_saying_what_runs(plane: ControlPlane) -> None:
    fleet = FAILURES[0].fleet(plane)
    ready = fleet.await_condition("Ready", "True")
    assert (ready["observedGeneration"], fleet.status()["observedGeneration"]) == (1, 2)
    plane.kubectl("-n", fleet.namespace, "scale", "deployment/refused-mixed", "--replicas=0")
    gone = fleet.await_condition("Ready", "False", "PodsNotReady")
    assert gone["observedGeneration"] == 1
    assert fleet.status()["pods"] == {"prefill": "0/1", "decode": "mixed"}
    assert fleet.condition("Accepted")["reason"] == fleet.status()["reason"] == "InvalidSpec"


def test_a_rollout_that_cannot_go_on_is_said_while_the_old_pods_serve(plane: ControlPlane) -> None:
    fleet = Fleet(plane, NAMESPACE, "rollout")
    ready = fleet.await_condition("Ready", "True", "ImageUnavailable")
    assert "All pods are ready: 1 mixed; but none takes the place of an old one: pod rollout-mixed-" in ready["message"]
    assert fleet.status()["reason"] == "ImageUnavailable"


def test_a_change_that_is_not_yet_handled_can_be_seen(plane: ControlPlane, module_operator: OperatorProcess) -> None:
    fleet = HEALTHY.fleet(plane)
    module_operator.pause()
    try:
        fleet.apply(**ONE, scheduling={"threshold": 900, "longMaxWait": "4s"})
        policy = fleet.get("pp", "chat")
        assert policy is not None
        assert (policy["metadata"]["generation"], policy["status"]["observedGeneration"]) == (2, 1)
    finally:
        module_operator.resume()
    eventually(lambda: fleet.status()["observedGeneration"] == 2, 20)


def test_a_failure_that_repeats_is_told_once(plane: ControlPlane) -> None:
    fleet = next(failure for failure in FAILURES if failure.name == "crash").fleet(plane)

    def restarts() -> int:
        template = "-o=jsonpath={..restartCount}"
        return int(plane.kubectl("-n", NAMESPACE, "get", "pods", "-l", "prefleet.dev/fleet=crash", template))

    before, seen = fleet.get("pp", "crash"), restarts()
    eventually(lambda: restarts() > seen, 120)
    assert restarts() >= 3
    assert fleet.get("pp", "crash") == before
    selector = "--field-selector=involvedObject.kind=PrefillPolicy,involvedObject.name=crash"
    reasons = plane.kubectl("-n", NAMESPACE, "get", "events", selector, "-o=jsonpath={.items[*].reason}").split()
    assert sorted(reasons) == ["EngineCrashing", "FleetCreated"]


def test_a_runtime_that_refuses_its_policy(plane: ControlPlane) -> None:
    check(STALE, plane)
    log = plane.kubectl("-n", NAMESPACE, "logs", "deployment/stale-mixed")
    assert "policy refused, generation 1 stays" in log
    assert "this runtime knows fcfs and short_request_first" in log


def test_every_block_of_the_page_is_held_against_something() -> None:
    held = {"unseen", "wrong", HEALTHY.name, STALE.name} | {failure.name for failure in FAILURES}
    assert troubleshooting.names() == held
