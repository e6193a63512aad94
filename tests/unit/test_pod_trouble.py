"""What a pod's own status says of why it does not serve."""

from __future__ import annotations

from typing import Any

import pytest
from prefleet_operator.app.pod_trouble import MAX_WORDS, pod_trouble

Json = dict[str, Any]

UNREADY = {"type": "Ready", "status": "False"}


def pod(*containers: Json, conditions: tuple[Json, ...] = (UNREADY,), init: tuple[Json, ...] = ()) -> Json:
    return {
        "status": {
            "conditions": list(conditions),
            "containerStatuses": list(containers),
            "initContainerStatuses": list(init),
        }
    }


def container(state: Json, last: Json | None = None, **given: Any) -> Json:
    return {"name": "engine", "image": "llm:1", "ready": False, "state": state, "lastState": last or {}} | given


def waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, message: str = "", reason: str = "Error") -> Json:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


RUNNING: Json = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
NO_NODE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. no new claims to deallocate, "
    "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
}
NOT_FOUND = 'Back-off pulling image "llm:1": ErrImagePull: llm:1: not found'


@pytest.mark.parametrize(
    ("given", "reason", "told"),
    [
        pytest.param(
            pod(conditions=(NO_NODE,)),
            "Unschedulable", "no node takes it: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu", id="no node",
        ),
        pytest.param(
            pod(container(waiting("ImagePullBackOff", NOT_FOUND))),
            "ImageUnavailable", "container engine waits with ImagePullBackOff: llm:1: not found", id="no image",
        ),
        pytest.param(
            pod(container(waiting("ErrImagePull", "llm:1: not found"))),
            "ImageUnavailable", "container engine waits with ImagePullBackOff: llm:1: not found",
            id="a pull that has just failed reads as one that backs off",
        ),
        pytest.param(
            pod(container(waiting("InvalidImageName"))),
            "ImageUnavailable", "container engine waits with InvalidImageName: image llm:1", id="a node of few words",
        ),
        pytest.param(
            pod(container(waiting("CreateContainerConfigError", 'secret "hub" not found'))),
            "ContainerNotStarted", 'waits with CreateContainerConfigError: secret "hub" not found', id="no secret",
        ),
        pytest.param(
            pod(container(waiting("CrashLoopBackOff", "back-off"), ended(2, "usage: vllm\nerror: no such thing\n\n"))),
            "EngineCrashing", 'container engine ends (exit code 2): "error: no such thing"', id="a crash loop",
        ),
        pytest.param(
            pod(container(ended(137, reason="OOMKilled"))),
            "EngineCrashing", "ends (exit code 137, OOMKilled): see kubectl logs --previous", id="out of memory",
        ),
        pytest.param(
            pod(container(RUNNING, ended(1, "no CUDA device"))),
            "EngineCrashing", 'ends (exit code 1): "no CUDA device"', id="running again, and not ready yet",
        ),
        pytest.param(
            pod(container(waiting("CrashLoopBackOff"), ended(0, "bye", reason="Completed"))),
            "EngineCrashing", 'container engine ends (exit code 0, Completed): "bye"',
            id="a server that ends politely",
        ),
        pytest.param(
            pod(container(RUNNING, ended(0, reason="Completed"))),
            "EngineCrashing", "ends (exit code 0, Completed): see kubectl logs --previous", id="and starts again",
        ),
        pytest.param(
            pod(container(waiting("PodInitializing")), init=(container(ended(1, "disk full"), name="installer"),)),
            "EngineCrashing", 'container installer ends (exit code 1): "disk full"', id="its init container",
        ),
    ],
)  # fmt: skip
def test_trouble(given: Json, reason: str, told: str) -> None:
    trouble = pod_trouble(given)
    assert trouble is not None
    assert trouble.reason.value == reason
    assert trouble.told.endswith(told)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="a pod without a status"),
        pytest.param(pod(container(waiting("ContainerCreating"))), id="a container that is being made"),
        pytest.param(pod(container(RUNNING)), id="an engine that loads its model"),
        pytest.param(
            pod(container(waiting("PodInitializing")), init=(container(ended(0)),)), id="an init that is done"
        ),
        pytest.param(
            pod(container(RUNNING, ended(1), ready=True), conditions=({"type": "Ready", "status": "True"},)),
            id="an engine that crashed once and serves",
        ),
    ],
)
def test_no_trouble(given: Json) -> None:
    assert pod_trouble(given) is None


OLD_RUNTIME = "; its runtime image is older than the operator: set spec.runtime.image or Helm's runtimeImage"


@pytest.mark.parametrize(
    ("given", "old"),
    [
        pytest.param(
            pod(container(RUNNING, ended(1, "No module named 'prefleet_runtime.vllm.front'\nbye"))),
            True, id="an engine whose middleware is not there",
        ),
        pytest.param(
            pod(container(RUNNING, ended(1, "python3: No module named prefleet_runtime.sim.server"))),
            True, id="a simulated engine that is not there",
        ),
        pytest.param(
            pod(init=(container(ended(2, "prefleet-runtime: error: unrecognized arguments: --needs x")),)),
            True, id="a runtime that cannot be asked",
        ),
        pytest.param(
            pod(container(RUNNING, ended(1, "No module named 'torch'"))), False, id="another module",
        ),
    ],
)  # fmt: skip
def test_a_runtime_image_that_is_older_than_the_operator_is_told_with_what_to_do(given: Json, old: bool) -> None:
    trouble = pod_trouble(given)
    assert trouble is not None
    assert trouble.told.endswith(OLD_RUNTIME) is old


def test_what_a_node_says_is_kept_short_and_on_one_line() -> None:
    trouble = pod_trouble(pod(container(waiting("ErrImagePull", "word\n" * 1000))))
    assert trouble is not None
    assert len(trouble.told) < MAX_WORDS + 60
    assert "\n" not in trouble.told
