"""Replicas of several nodes: what leaders and workers of a group are told, and what finds only the leaders."""

from __future__ import annotations

import copy
import socket
import subprocess
import sys
from typing import Any

import pytest
from prefleet_operator.api import InvalidSpecError, parse_spec
from prefleet_operator.render import render_fleet

from tests.support.rendering import DEFAULTS, FCFS, POLICY, VLLM, option, render

MULTI_NODE: dict[str, Any] = VLLM | {
    "prefill": {
        "replicas": 3,
        "nodesPerReplica": 4,
        "accelerator": {"resource": "nvidia.com/gpu", "count": 8},
        "args": ["--tensor-parallel-size", "32"],
    }
}


def groups(spec: dict[str, Any] = MULTI_NODE) -> Any:
    return render(spec)["LeaderWorkerSet/chat-prefill-group"]["spec"]


def pod_template(which: str, spec: dict[str, Any] = MULTI_NODE) -> Any:
    return groups(spec)["leaderWorkerTemplate"][f"{which}Template"]


def container(which: str, spec: dict[str, Any] = MULTI_NODE) -> Any:
    return pod_template(which, spec)["spec"]["containers"][0]


def test_a_replica_of_several_nodes_is_a_group_in_place_of_a_pod() -> None:
    assert [name for name in render(MULTI_NODE) if "prefill" in name] == [
        "LeaderWorkerSet/chat-prefill-group",
        "Service/chat-prefill",
        "PodDisruptionBudget/chat-prefill",
    ]
    assert (groups()["replicas"], groups()["leaderWorkerTemplate"]["size"]) == (3, 4)
    assert groups()["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"


def test_groups_with_accelerators_roll_one_by_one_without_surge() -> None:
    assert groups()["rolloutStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdateConfiguration": {"partition": 0, "maxSurge": 0, "maxUnavailable": 1},
    }


@pytest.mark.parametrize(("which", "rank"), [("leader", "0"), ("worker", "$(LWS_WORKER_INDEX)")])
def test_each_node_is_told_its_rank_and_the_leaders_address(which: str, rank: str) -> None:
    args = container(which)["args"]
    assert option(args, "--nnodes") == "4"
    assert option(args, "--node-rank") == rank
    assert option(args, "--master-addr") == "$(LWS_LEADER_ADDRESS)"
    assert option(args, "--distributed-executor-backend") == "mp"
    assert option(args, "--tensor-parallel-size") == "32"


def test_only_the_leader_schedules_and_serves() -> None:
    leader, worker = container("leader"), container("worker")
    for name in ("--scheduler-cls", "--additional-config", "--port"):
        assert name in leader["args"]
        assert name not in worker["args"]
    assert worker["args"][-1] == "--headless"
    assert worker["ports"] == []
    assert not {"readinessProbe", "startupProbe", "livenessProbe"} & worker.keys()
    assert "prefleet-policy" not in str(pod_template("worker"))
    assert "initContainers" not in pod_template("worker")["spec"]


def test_probes_of_the_users_are_for_the_leader_alone() -> None:
    """A worker serves nothing: it would never be ready, or be refused for a probe without an address."""
    spec = copy.deepcopy(MULTI_NODE)
    probes = {name: {"failureThreshold": 1000} for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    engine = {"name": "engine", "tty": True, **probes}
    sidecar = {"name": "sidecar", "image": "mine/sidecar:1", "readinessProbe": {"tcpSocket": {"port": 81}}}
    spec["prefill"]["podTemplate"] = {"spec": {"containers": [engine, sidecar]}}
    assert all(container("leader", spec)[name]["failureThreshold"] == 1000 for name in probes)
    assert not probes.keys() & container("worker", spec).keys()
    assert container("worker", spec)["tty"]
    assert "readinessProbe" in pod_template("worker", spec)["spec"]["containers"][1]


def test_a_users_additional_config_reaches_the_workers_too() -> None:
    spec = copy.deepcopy(MULTI_NODE)
    spec["prefill"]["args"] += ["--additional-config", '{"a": 1}']
    assert option(container("worker", spec)["args"], "--additional-config") == '{"a": 1}'
    assert '"a": 1' in option(container("leader", spec)["args"], "--additional-config")


def test_whatever_looks_for_the_pods_of_a_role_finds_leaders_alone() -> None:
    service = render(MULTI_NODE)["Service/chat-prefill"]
    selector = service["spec"]["selector"]
    leader, worker = (pod_template(which)["metadata"]["labels"] for which in ("leader", "worker"))
    assert selector["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    assert leader["prefleet.dev/role"] == "prefill"
    assert "prefleet.dev/role" not in worker
    assert worker["prefleet.dev/fleet"] == "chat"


def test_the_controllers_headless_service_cannot_be_taken_for_ours() -> None:
    """It is made under the LeaderWorkerSet's name, and only where no Service of that name is there already."""
    names = [item["metadata"]["name"] for item in render(MULTI_NODE).values() if item["kind"] == "Service"]
    assert "chat-prefill-group" not in names


def test_pod_template_is_laid_over_leaders_and_workers() -> None:
    spec = copy.deepcopy(MULTI_NODE)
    spec["prefill"]["podTemplate"] = {"spec": {"nodeSelector": {"pool": "h200"}}}
    for which in ("leader", "worker"):
        assert pod_template(which, spec)["spec"]["nodeSelector"] == {"pool": "h200"}


@pytest.mark.parametrize(("length", "refused"), [(33, False), (34, True)])
def test_a_name_that_the_groups_pods_could_not_have_is_refused(length: int, refused: bool) -> None:
    policy = POLICY.__class__(name="x" * length, namespace="serving")
    if not refused:
        render_fleet(policy, parse_spec(MULTI_NODE), FCFS, DEFAULTS)
        return
    with pytest.raises(InvalidSpecError, match=r"metadata\.name: leave out 1 characters, or nodesPerReplica"):
        render_fleet(policy, parse_spec(MULTI_NODE), FCFS, DEFAULTS)


def test_a_worker_that_is_told_to_stop_waits_until_its_leader_has_ended() -> None:
    """The very command that is rendered, against a listener in the exporter's place."""
    python, flag, program = container("worker")["lifecycle"]["preStop"]["exec"]["command"]
    assert (python, flag) == ("python3", "-c")
    with socket.create_server(("127.0.0.1", 0)) as exporter:
        port = exporter.getsockname()[1]
        assert ", 9400)" in program
        here = program.replace("9400", str(port))
        waiting = subprocess.Popen([sys.executable, "-c", here], env={"LWS_LEADER_ADDRESS": "127.0.0.1"})
        exporter.settimeout(10)
        exporter.accept()[0].close()
        exporter.accept()[0].close()
        assert waiting.poll() is None
    assert waiting.wait(timeout=10) == 0


def test_a_worker_waits_no_longer_than_its_leader_may_take() -> None:
    grace_s = pod_template("worker")["spec"]["terminationGracePeriodSeconds"]
    program = container("worker")["lifecycle"]["preStop"]["exec"]["command"][2]
    assert "range(310)" in program
    assert grace_s > 310
