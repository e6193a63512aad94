"""The control plane is a cluster's: what the operator's tests rely on is shown to be on (tests/support/plane)."""

import http.server
import json
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.plane.plane import ControlPlane, KubectlFailed
from tests.support.plane.processes import direct_opener, free_ports
from tests.support.plane.prometheus import FLEET_LABEL, Prometheus, fleet_scrape
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

SERVERS = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}


def apply(plane: ControlPlane, manifest: Mapping[str, Any], *arguments: str, kubeconfig: Path | None = None) -> str:
    return plane.kubectl("apply", "-f", "-", *arguments, stdin=json.dumps(manifest), kubeconfig=kubeconfig)


def get(plane: ControlPlane, *arguments: str) -> Any:
    return json.loads(plane.kubectl("get", *arguments, "-o", "json"))


def node(name: str) -> dict[str, Any]:
    """Tainted, so that no pod of another test lands on a node behind which nobody runs it."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"test": name}},
        "spec": {"taints": [{"key": "test", "value": name, "effect": "NoSchedule"}]},
    }


NODE_STATUS = {
    "status": {
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "20"},
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "made by a test"}],
    }
}


@pytest.fixture
def fake_node(plane: ControlPlane, namespace: str) -> Iterator[str]:
    """A Node object that is Ready for as long as the controller manager believes it: most of a minute."""
    name = f"node-{namespace}"
    apply(plane, node(name))
    plane.kubectl("patch", "node", name, "--subresource=status", "-p", json.dumps(NODE_STATUS))
    yield name
    plane.kubectl("delete", "node", name)


def deployment(name: str, replicas: int, node_name: str) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name, FLEET_LABEL: name}},
                "spec": {
                    "nodeSelector": {"test": node_name},
                    "tolerations": [{"key": "test", "operator": "Exists"}],
                    "containers": [{"name": "sample", "image": "sample"}],
                },
            },
        },
    }


def pods(plane: ControlPlane, namespace: str, app: str) -> list[Any]:
    found: list[Any] = get(plane, "pods", "-n", namespace, "-l", f"app={app}")["items"]
    return found


def test_all_four_servers_run_and_report_the_pinned_version(plane: ControlPlane) -> None:
    assert set(plane.processes) == SERVERS
    assert all(process.exit_status is None for process in plane.processes.values())
    assert plane.kubectl("get", "--raw", "/readyz") == "ok"
    assert json.loads(plane.kubectl("get", "--raw", "/version"))["minor"] == "36"


def test_who_shows_no_credentials_may_read_nothing(plane: ControlPlane) -> None:
    url = f"{plane.server}/api/v1/namespaces/default/pods"
    context = ssl.create_default_context(cafile=str(plane.ca_file))
    with pytest.raises(urllib.error.HTTPError, match="403"):
        direct_opener(context).open(url, timeout=10)


def test_a_user_may_do_what_rbac_grants_and_no_more(plane: ControlPlane, namespace: str) -> None:
    reader = plane.kubeconfig_for("reader", ["readers"])
    ask = ("get", "configmaps", "-n", namespace)
    with pytest.raises(KubectlFailed, match=r'User "reader" cannot list'):
        plane.kubectl(*ask, kubeconfig=reader)
    plane.kubectl("create", "rolebinding", "readers", "-n", namespace, "--clusterrole=view", "--group=readers")
    eventually(lambda: "kube-root-ca.crt" in plane.kubectl(*ask, kubeconfig=reader))
    with pytest.raises(KubectlFailed, match=r'User "reader" cannot create'):
        plane.kubectl("create", "configmap", "mine", "-n", namespace, kubeconfig=reader)


def test_a_node_s_agent_may_write_its_own_node_only(plane: ControlPlane, namespace: str) -> None:
    name = f"node-{namespace}"
    agent = plane.kubeconfig_for(f"system:node:{name}", ["system:nodes"])
    apply(plane, node(name), kubeconfig=agent)
    with pytest.raises(KubectlFailed, match="Forbidden"):
        apply(plane, node("another"), kubeconfig=agent)
    with pytest.raises(KubectlFailed, match="Forbidden"):
        plane.kubectl("get", "secrets", "-A", kubeconfig=agent)
    plane.kubectl("delete", "node", name)


SAMPLE_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "samples.test.prefleet.dev"},
    "spec": {
        "group": "test.prefleet.dev",
        "scope": "Namespaced",
        "names": {"plural": "samples", "singular": "sample", "kind": "Sample"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}},
                                "x-kubernetes-validations": [
                                    {"rule": "self.low < self.high", "message": "low must be below high"}
                                ],
                            }
                        },
                    }
                },
            }
        ],
    },
}


def test_a_rule_of_a_custom_resource_refuses_a_bad_object(plane: ControlPlane, namespace: str) -> None:
    def sample(low: int) -> dict[str, Any]:
        return {
            "apiVersion": "test.prefleet.dev/v1",
            "kind": "Sample",
            "metadata": {"name": "sample", "namespace": namespace},
            "spec": {"low": low, "high": 5},
        }

    apply(plane, SAMPLE_CRD)
    plane.await_established("samples.test.prefleet.dev")
    with pytest.raises(KubectlFailed, match="low must be below high"):
        apply(plane, sample(low=5))
    apply(plane, sample(low=4))
    plane.kubectl("delete", "crd", "samples.test.prefleet.dev")


def test_a_deployment_s_pods_wait_for_a_node_and_are_bound_to_it(
    plane: ControlPlane, namespace: str, fake_node: str
) -> None:
    apply(plane, deployment("waits", 1, "no-such-node"), "-n", namespace)
    apply(plane, deployment("bound", 2, fake_node), "-n", namespace)
    eventually(lambda: [each["spec"].get("nodeName") for each in pods(plane, namespace, "bound")] == [fake_node] * 2)
    [waiting] = eventually(lambda: pods(plane, namespace, "waits"))
    assert waiting["status"]["phase"] == "Pending"
    assert "nodeName" not in waiting["spec"]
    [token] = [volume for volume in waiting["spec"]["volumes"] if "projected" in volume]
    assert token["name"].startswith("kube-api-access-")


def test_what_is_owned_goes_with_its_owner(plane: ControlPlane, namespace: str) -> None:
    plane.kubectl("create", "configmap", "owner", "-n", namespace)
    uid = get(plane, "configmap", "owner", "-n", namespace)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    metadata = {"name": "owned", "namespace": namespace, "ownerReferences": [owner]}
    apply(plane, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    plane.kubectl("delete", "configmap", "owner", "-n", namespace)
    left = ("get", "configmap", "owned", "-n", namespace, "--ignore-not-found")
    eventually(lambda: plane.kubectl(*left) == "")


def test_garbage_collection_knows_a_new_kind_after_a_restart_of_the_controllers(
    plane: ControlPlane, namespace: str
) -> None:
    crd = json.loads(json.dumps(SAMPLE_CRD).replace("sample", "owner").replace("Sample", "Owner"))
    apply(plane, crd)
    plane.await_established("owners.test.prefleet.dev")
    plane.restart_controller_manager()
    owner = {"apiVersion": "test.prefleet.dev/v1", "kind": "Owner", "metadata": {"name": "one"}}
    apply(plane, owner, "-n", namespace)
    uid = get(plane, "owners", "one", "-n", namespace)["metadata"]["uid"]
    reference = {"apiVersion": "test.prefleet.dev/v1", "kind": "Owner", "name": "one", "uid": uid}
    metadata = {"name": "owned", "namespace": namespace, "ownerReferences": [reference]}
    apply(plane, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    plane.kubectl("delete", "owners", "one", "-n", namespace)
    left = ("get", "configmap", "owned", "-n", namespace, "--ignore-not-found")
    eventually(lambda: plane.kubectl(*left) == "", timeout_s=15)
    plane.kubectl("delete", "crd", "owners.test.prefleet.dev")


def who_is(plane: ControlPlane, token: str) -> str:
    request = urllib.request.Request(
        f"{plane.server}/apis/authentication.k8s.io/v1/selfsubjectreviews",
        data=json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=str(plane.ca_file))
    with direct_opener(context).open(request, timeout=10) as answer:
        return str(json.load(answer)["status"]["userInfo"]["username"])


def test_a_service_account_s_token_is_issued_and_accepted(plane: ControlPlane, namespace: str) -> None:
    token = plane.kubectl("create", "token", "default", "-n", namespace).strip()
    assert who_is(plane, token) == f"system:serviceaccount:{namespace}:default"


# --- Prometheus


class OneSeries(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(f"sample_port {self.connection.getsockname()[1]}\n".encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: the test's output is pytest's."""


def serve(address: str) -> http.server.ThreadingHTTPServer:
    server = http.server.ThreadingHTTPServer((address, free_ports(1)[0]), OneSeries)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def running_pod(plane: ControlPlane, namespace: str, node_name: str, address: str, ports: Mapping[str, int]) -> None:
    """A pod whose status a test writes as a kubelet would; behind its address the test itself listens."""
    container = {
        "name": "sample",
        "image": "sample",
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "fleet-0", "namespace": namespace, "labels": {FLEET_LABEL: "chat"}},
        "spec": {"nodeName": node_name, "containers": [container]},
    }
    apply(plane, pod)
    status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
    plane.kubectl("patch", "pod", "fleet-0", "-n", namespace, "--subresource=status", "-p", json.dumps(status))


def test_prometheus_scrapes_the_two_ports_of_a_fleet_s_pod(
    plane: ControlPlane, namespace: str, fake_node: str, binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    address = "127.77.0.5"
    servers = [serve(address) for _ in range(3)]
    ports = {name: server.server_port for name, server in zip(("prefleet", "http", "other"), servers, strict=True)}
    running_pod(plane, namespace, fake_node, address, ports)
    user = plane.kubeconfig_for("prometheus")
    plane.kubectl("create", "clusterrole", namespace, "--verb=get,list,watch", "--resource=pods")
    plane.kubectl("create", "clusterrolebinding", namespace, f"--clusterrole={namespace}", "--user=prometheus")
    with Prometheus(tmp_path / "prometheus", binaries["prometheus"], fleet_scrape(user, 0.5)) as prometheus:
        expression = f'sample_port{{namespace="{namespace}", pod="fleet-0"}}'
        eventually(lambda: len(prometheus.query(expression)) >= 2)
        values = {int(each["value"][1]) for each in prometheus.query(expression)}
    assert values == {ports["prefleet"], ports["http"]}
    for kind in ("clusterrole", "clusterrolebinding"):
        plane.kubectl("delete", kind, namespace)
    for server in servers:
        server.shutdown()
        server.server_close()


# --- a plane of one's own


def processes_in(folder: Path) -> list[str]:
    """The command lines of every process that has to do with the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


def test_a_stopped_plane_leaves_no_process_and_starts_again_with_its_objects(
    binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "plane"
    with ControlPlane(folder, binaries) as first:
        first.create_namespace("kept")
        token = first.kubectl("create", "token", "default", "-n", "kept").strip()
        assert processes_in(folder)
    assert processes_in(folder) == []
    with ControlPlane(folder, binaries) as second:
        assert second.kubectl("get", "namespace", "kept", "-o", "name") == "namespace/kept\n"
        assert who_is(second, token) == "system:serviceaccount:kept:default"
    assert processes_in(folder) == []


def test_a_killed_owner_takes_the_plane_along(binaries: Mapping[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "plane"
    program = f"""
import time
from pathlib import Path
from tests.support.plane.plane import ControlPlane
binaries = {{name: Path(path) for name, path in { ({name: str(path) for name, path in binaries.items()})!r}.items()}}
plane = ControlPlane(Path({str(folder)!r}), binaries).start()
print("ready", flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        assert len(processes_in(folder)) > len(SERVERS)
        owner.kill()
    eventually(lambda: not processes_in(folder))
    with ControlPlane(folder, binaries) as again:
        assert again.kubectl("get", "--raw", "/readyz") == "ok"


def test_a_server_that_cannot_start_is_named_with_its_log_and_stops_the_rest(
    binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    broken = tmp_path / "kube-apiserver"
    broken.write_text("#!/bin/sh\necho cannot bind >&2\nexit 3\n")
    broken.chmod(0o755)
    plane = ControlPlane(tmp_path / "plane", {**binaries, "kube-apiserver": broken})
    with pytest.raises(RuntimeError, match=r"(?s)kube-apiserver ended with status 3.*cannot bind"):
        plane.start()
    assert processes_in(tmp_path / "plane") == []
