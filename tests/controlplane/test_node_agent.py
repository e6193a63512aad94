"""The node agent against the real control plane: what tests and the demo rely on when pods are processes."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_agent.launch import AgentHandle, start_agent
from tests.support.node_agent.processes import find_trees
from tests.support.plane.plane import ControlPlane, KubectlFailed

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]

NODE = "processes"


@pytest.fixture(scope="module")
def agent(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentHandle]:
    folder = tmp_path_factory.mktemp("agent")
    accelerators = {"nvidia.com/gpu": 4}
    handle = start_agent(plane, folder, name=NODE, accelerators=accelerators, back_off_base_s=1)
    yield handle
    handle.leave()


class Cluster:
    """kubectl in one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.plane.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def apply(self, *objects: Json) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def pod(self, name: str) -> Json:
        pod: Json = json.loads(self.kubectl("get", "pod", name, "-o", "json"))
        return pod

    def container(self, pod: str) -> Json:
        """The status of a pod's first container."""
        return dict(self.pod(pod)["status"]["containerStatuses"][0])

    def wait_ready(self, pod: str) -> str:
        """The pod's address."""
        self.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=30s")
        return str(self.pod(pod)["status"]["podIP"])


@pytest.fixture
def cluster(plane: ControlPlane, namespace: str, agent: AgentHandle) -> Cluster:
    assert agent.node_name == NODE
    return Cluster(plane, namespace)


def pod(name: str, *containers: Json, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": NODE},
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "folder", **container} for container in containers],
            **spec,
        },
    }


def shell(script: str, **others: Any) -> Json:
    return {"command": ["sh", "-c", script], **others}


def file_server(folder: str, **others: Any) -> Json:
    command = ["python3", "-u", "-m", "http.server", "8000", "--bind", "0.0.0.0", "--directory", folder]
    ports = [{"name": "http", "containerPort": 8000}]
    probe = {"tcpSocket": {"port": "http"}, "periodSeconds": 1}
    return {"command": command, "ports": ports, "readinessProbe": probe, **others}


def fetch(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=5) as response:
        return str(response.read().decode())


def wait_until(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not so within {timeout_s:g} s"
        time.sleep(0.1)


WHO_AM_I = """
import json, os, ssl, sys, urllib.error, urllib.request, yaml
config = yaml.safe_load(open(os.environ["KUBECONFIG"]))
cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
headers = {"Authorization": "Bearer " + open(user["tokenFile"]).read()}
request = urllib.request.Request(cluster["server"] + "/api/v1/secrets", headers=headers)
tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
try:
    opener.open(request)
except urllib.error.HTTPError as error:
    print(json.load(error)["message"])
"""


def test_a_pod_prepares_serves_and_is_reached_through_its_service(cluster: Cluster) -> None:
    data = [{"name": "data", "mountPath": "/data"}]
    server = file_server(
        "$(FOLDER)",
        env=[{"name": "FOLDER", "value": "/data"}],
        readinessProbe={"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 1},
        resources={"limits": {"nvidia.com/gpu": 2}},
        volumeMounts=data,
    )
    first = shell("echo from $NAME > /data/ready; echo prepared", volumeMounts=data)
    name = {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    cluster.apply(
        pod(
            "web",
            server,
            initContainers=[{"name": "first", "image": "folder", "env": [name], **first}],
            volumes=[{"name": "data", "emptyDir": {}}],
        ),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]},
        },
    )
    address = cluster.wait_ready("web")
    assert address.startswith("127.")
    assert fetch(f"http://{address}:8000/ready") == "from web\n"
    assert cluster.kubectl("logs", "web", "-c", "first") == "prepared\n"
    assert "GET /ready" in cluster.kubectl("logs", "web", "-c", "main", "--tail=2")
    service = cluster.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
    wait_until(lambda: reached(f"http://{service}/ready"))
    cluster.kubectl("delete", "pod", "web")
    wait_until(lambda: not reached(f"http://{service}/ready"), 5)


def reached(url: str) -> bool:
    try:
        return fetch(url) == "from web\n"
    except (urllib.error.URLError, ConnectionError):
        return False


def test_a_pod_acts_as_its_service_account(cluster: Cluster) -> None:
    cluster.apply(pod("who", {"command": ["python3", "-c", WHO_AM_I]}, restartPolicy="Never"))
    wait_until(lambda: cluster.pod("who")["status"]["phase"] == "Succeeded")
    assert f'User "system:serviceaccount:{cluster.namespace}:default" cannot list' in cluster.kubectl("logs", "who")


def test_a_changed_config_map_comes_with_a_change_of_the_pod_and_not_earlier(cluster: Cluster) -> None:
    config_map: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "conf"}, "data": {"key": "old"}}
    mounts = [
        {"name": "conf", "mountPath": "/etc/conf/live"},
        {"name": "conf", "mountPath": "/etc/conf/copy/key", "subPath": "key"},
    ]
    script = "while sleep 0.1; do echo $(cat /etc/conf/live/key) $(cat /etc/conf/copy/key); done"
    volumes = [{"name": "conf", "configMap": {"name": "conf"}}]
    cluster.apply(config_map, pod("reader", shell(script, volumeMounts=mounts), volumes=volumes))
    cluster.wait_ready("reader")
    cluster.apply({**config_map, "data": {"key": "new"}})
    time.sleep(3)
    assert cluster.kubectl("logs", "reader", "--tail=1") == "old old\n"
    cluster.kubectl("annotate", "pod", "reader", "generation=2")
    wait_until(lambda: cluster.kubectl("logs", "reader", "--tail=1") == "new old\n", 5)


def test_a_crashing_container_is_started_again_ever_later(cluster: Cluster) -> None:
    cluster.apply(pod("crash", shell("echo attempt; exit 3")))
    wait_until(lambda: cluster.container("crash")["restartCount"] >= 2)
    wait_until(lambda: "waiting" in cluster.container("crash")["state"])
    status = cluster.container("crash")
    assert status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert status["lastState"]["terminated"]["reason"] == "Error"
    assert cluster.pod("crash")["status"]["phase"] == "Running"
    assert cluster.kubectl("logs", "crash", "--previous") == "attempt\n"


@pytest.mark.parametrize(
    ("script", "phase", "reason"),
    [
        pytest.param("exit 0", "Succeeded", "Completed", id="what ends well has succeeded"),
        pytest.param("exit 7", "Failed", "Error", id="what ends badly has failed"),
    ],
)
def test_a_pod_that_is_never_restarted_keeps_its_end(cluster: Cluster, script: str, phase: str, reason: str) -> None:
    cluster.apply(pod("once", shell(script), restartPolicy="Never"))
    wait_until(lambda: cluster.pod("once")["status"]["phase"] == phase)
    status = cluster.container("once")
    assert status["state"]["terminated"]["reason"] == reason
    assert status["restartCount"] == 0


def test_a_log_is_followed_to_the_containers_end(cluster: Cluster) -> None:
    cluster.apply(pod("talks", shell("echo one; sleep 1; echo two"), restartPolicy="Never"))
    wait_until(lambda: cluster.pod("talks")["status"]["phase"] == "Running")
    assert cluster.kubectl("logs", "-f", "talks") == "one\ntwo\n"


def test_a_container_that_fails_its_liveness_probe_is_started_again(cluster: Cluster) -> None:
    probe = {"exec": {"command": ["test", "-f", "/data/alive"]}, "periodSeconds": 1, "failureThreshold": 1}
    script = "if test -f /data/second; then touch /data/alive; fi; touch /data/second; sleep 60"
    mounts = [{"name": "data", "mountPath": "/data"}]
    container = shell(script, livenessProbe=probe, volumeMounts=mounts)
    cluster.apply(pod("sick", container, volumes=[{"name": "data", "emptyDir": {}}]))
    wait_until(lambda: cluster.container("sick")["restartCount"] == 1)
    assert cluster.container("sick")["lastState"]["terminated"]["exitCode"] == 143


def test_a_deleted_pod_gets_its_hook_its_signal_and_its_grace(cluster: Cluster, tmp_path: Path) -> None:
    script = "trap 'echo term >> /out/order' TERM; touch /out/up; while :; do sleep 0.1; done"
    container = shell(
        script,
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "echo hook >> /out/order; sleep 1"]}}},
        volumeMounts=[{"name": "out", "mountPath": "/out"}],
    )
    volumes = [{"name": "out", "hostPath": {"path": str(tmp_path)}}]
    cluster.apply(pod("stubborn", container, volumes=volumes, terminationGracePeriodSeconds=3))
    cluster.wait_ready("stubborn")
    wait_until((tmp_path / "up").exists)
    began = time.monotonic()
    cluster.kubectl("delete", "pod", "stubborn")
    assert 2.9 < time.monotonic() - began < 10
    assert (tmp_path / "order").read_text() == "hook\nterm\n"


def test_a_container_without_a_command_waits_and_says_why(cluster: Cluster) -> None:
    cluster.apply(pod("bare", {}))
    wait_until(lambda: bool(cluster.pod("bare")["status"].get("containerStatuses")))
    wait_until(lambda: cluster.container("bare")["state"]["waiting"]["reason"] == "ErrImageNeverPull")
    assert "write the command in the pod" in cluster.container("bare")["state"]["waiting"]["message"]
    with pytest.raises(KubectlFailed, match="is waiting to start: ErrImageNeverPull"):
        cluster.kubectl("logs", "bare")


def test_what_a_killed_agent_leaves_ends_and_the_next_agent_goes_on(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    def start() -> AgentHandle:
        return start_agent(plane, tmp_path / "a", name="mortal", forward_services=False)

    cluster = Cluster(plane, namespace)
    agent = start()
    spec = {"nodeSelector": {"kubernetes.io/hostname": "mortal"}}
    cluster.apply(pod("survivor", shell("sleep 61 & sleep 62"), **spec))
    address = cluster.wait_ready("survivor")
    assert len(find_trees(str(agent.workdir))) >= 2
    agent.kill()
    wait_until(lambda: not find_trees(str(agent.workdir)), 5)
    with start() as agent:
        wait_until(lambda: cluster.container("survivor")["restartCount"] == 1)
        assert cluster.wait_ready("survivor") == address
        assert cluster.container("survivor")["lastState"]["terminated"]["exitCode"] == 137
        agent.leave()
    assert not find_trees(str(agent.workdir))
