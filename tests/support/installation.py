"""The product as a user installs it, for tests on a real API server: the Helm chart, and the operator.

The operator runs as a pod where an agent runs pods, or as a plain process (`OperatorProcess`) under nothing but
the rights that the chart gives to its service account, which is quicker to start and may be killed at will.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.plane.plane import ControlPlane
from tests.support.plane.processes import Process, direct_opener, free_ports
from tests.support.waiting import eventually

CHART = Path(__file__).parents[2] / "helm" / "prefleet"
RELEASE = "prefleet"
OPERATOR_NAMESPACE = "prefleet-system"
HELM_TIMEOUT_S = 90
RESOURCES = {
    "configmap": ("api/v1", "configmaps"),
    "deployment": ("apis/apps/v1", "deployments"),
    "hpa": ("apis/autoscaling/v2", "horizontalpodautoscalers"),
    "leaderworkerset": ("apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
    "pod": ("api/v1", "pods"),
    "poddisruptionbudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "pp": ("apis/prefleet.dev/v1alpha1", "prefillpolicies"),
    "scaledobject": ("apis/keda.sh/v1alpha1", "scaledobjects"),
    "service": ("api/v1", "services"),
}
"""Where the API server has what a fleet is made of, by kubectl's names."""
_TURNS = "prefleet_operator_loop_seconds_count"

Json = dict[str, Any]


class HelmFailed(RuntimeError):
    """Helm ended with an error; the message is what it wrote."""


class Helm:
    """The helm program, with its caches in a folder of its own."""

    def __init__(self, binary: Path, folder: Path, kubeconfig: Path | None = None) -> None:
        self._binary = binary
        homes = {f"HELM_{name}_HOME": str(folder / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        self._environment = {**os.environ, **homes}
        if kubeconfig is not None:
            self._environment["KUBECONFIG"] = str(kubeconfig)

    def __call__(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """The output of one command; `values` go in through standard input."""
        given = ("--values", "-") if values is not None else ()
        done = subprocess.run(
            [str(self._binary), *arguments, *given],
            input=json.dumps(values) if values is not None else None,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=HELM_TIMEOUT_S + 30,
            check=False,
        )
        if done.returncode:
            raise HelmFailed(f"helm {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def install(self, values: Mapping[str, Any], chart: Path = CHART, upgrade: bool = False) -> str:
        """Install or upgrade the release and wait for it."""
        verb = ("upgrade",) if upgrade else ("install", "--create-namespace")
        wait = ("--wait", "--timeout", f"{HELM_TIMEOUT_S}s")
        return self(*verb, RELEASE, str(chart), "--namespace", OPERATOR_NAMESPACE, *wait, values=values)

    def uninstall(self) -> str:
        """Uninstall the release and wait."""
        return self("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait")


@contextmanager
def installed(plane: ControlPlane, helm: Helm, values: Mapping[str, Any]) -> Iterator[None]:
    """The release, for as long as the context lasts; the CRD outlives it."""
    helm.install(values)
    try:
        plane.await_established("prefillpolicies.prefleet.dev")
        yield
    finally:
        helm.uninstall()


def service_account_kubeconfig(
    plane: ControlPlane, folder: Path, namespace: str = OPERATOR_NAMESPACE, account: str = RELEASE
) -> Path:
    """A kubeconfig by tokenFile, as the agent's pods have one, for a service account: the operator's unless named."""
    token = plane.kubectl("-n", namespace, "create", "token", account, "--duration=1h")
    (folder / "token").write_text(token)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "pod",
        "clusters": [
            {"name": "plane", "cluster": {"server": plane.server, "certificate-authority": str(plane.ca_file)}}
        ],
        "contexts": [{"name": "pod", "context": {"cluster": "plane", "user": "account"}}],
        "users": [{"name": "account", "user": {"tokenFile": "token"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def only_child(guard: int) -> int:
    """The pid of the command under a guard."""
    return int(eventually(lambda: Path(f"/proc/{guard}/task/{guard}/children").read_text().split())[0])


class OperatorProcess:
    """`prefleet run` as a child process. `name` is its identity in the Lease: the same name takes over at once."""

    def __init__(
        self, plane: ControlPlane, folder: Path, config: Mapping[str, Any] | None = None, name: str = "operator"
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = name
        self._kubeconfig = service_account_kubeconfig(plane, folder)
        self._config = folder / "config.yaml"
        defaults = {"runtimeImage": "prefleet/runtime:test", "loopInterval": "1s"}
        self._config.write_text(json.dumps(defaults | dict(config or {})))
        self.log = folder / "operator.log"
        self.process: Process | None = None
        (self.port,) = free_ports(1)  # kept by every start, as whoever scrapes it expects

    def start(self, wait: bool = True, flags: Sequence[str] = ()) -> OperatorProcess:
        """Start it; with `wait`, return when it leads and knows the cluster."""
        program = [str(Path(sys.executable).with_name("prefleet")), "run"]
        arguments = ["--config", str(self._config), "--lease", RELEASE, "--port", str(self.port), *flags]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("KUBE")},
            "KUBECONFIG": str(self._kubeconfig),
            "POD_NAME": self._name,
            "POD_NAMESPACE": OPERATOR_NAMESPACE,
        }
        self.process = Process.start("operator", [*program, *arguments], self.log, env=environment, grace_s=15)
        if wait:
            self.process.wait_ready(self.leads, 60)
        return self

    def leads(self) -> bool:
        """Whether it says that it leads and is ready."""
        return "prefleet_operator_leader 1.0" in self.get("/metrics") and self.get("/readyz") == "ok\n"

    def get(self, path: str) -> str:
        """What its endpoint answers; "" while it does not."""
        try:
            with direct_opener().open(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def await_turns(self, count: int = 3) -> None:
        """Until it has gone round its fleets so many times more: what it would do by itself it has done by then."""
        before = self._turns()
        eventually(lambda: self._turns() >= before + count, 60)

    def _turns(self) -> float:
        (line,) = (each for each in self.get("/metrics").splitlines() if each.startswith(f"{_TURNS} "))
        return float(line.split()[1])

    def kill(self) -> None:
        """SIGKILL, with nothing tidied up."""
        assert self.process is not None
        self.process.kill()

    def stop(self) -> int | None:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.process.stop()
        return self.process.exit_status

    def pause(self) -> None:
        """SIGSTOP the operator itself."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT the operator itself."""
        os.kill(self.pid, signal.SIGCONT)

    @property
    def pid(self) -> int:
        """The operator's own pid."""
        assert self.process is not None
        return only_child(self.process.pid)

    def __enter__(self) -> OperatorProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.stop()


class Fleet:
    """One PrefillPolicy in one namespace, and what became of it."""

    def __init__(self, plane: ControlPlane, namespace: str, name: str = "chat") -> None:
        self.plane = plane
        self.namespace = namespace
        self.name = name

    def apply(self, **spec: Any) -> None:
        """kubectl apply of a simulated fleet with these parts of the spec."""
        self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(self.document(**spec)))

    def document(self, **spec: Any) -> Json:
        """The PrefillPolicy of a simulated fleet with these parts of the spec."""
        base = {
            "model": {"source": {"hub": {"repo": "example/model"}}, "servedName": "chat"},
            "engine": {"type": "Simulator"},
        }
        return {
            "apiVersion": "prefleet.dev/v1alpha1",
            "kind": "PrefillPolicy",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": base | spec,
        }

    def delete(self) -> None:
        """kubectl delete, without waiting for the children."""
        self.plane.kubectl("-n", self.namespace, "delete", "pp", self.name)

    def diff(self, document: str, *flags: str) -> tuple[int, str, str]:
        """`prefleet diff` of a document against what runs: its exit code, its output and its errors."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("prefleet")), "diff", "-f", "-", "-n", self.namespace, *flags],
            input=document,
            env=os.environ | {"KUBECONFIG": str(self.plane.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def get(self, kind: str, name: str) -> Json | None:
        """One object of the fleet's namespace as kubectl shows it, without its managed fields; or None."""
        found: Json | None = self.plane.read(f"{self._path(kind)}/{name}")
        if found is not None:
            found["metadata"].pop("managedFields", None)
        return found

    def _path(self, kind: str) -> str:
        group, plural = RESOURCES[kind]
        return f"/{group}/namespaces/{self.namespace}/{plural}"

    def status(self) -> Json:
        """The policy's status."""
        found = self.get("pp", self.name)
        return {} if found is None else found.get("status") or {}

    def condition(self, kind: str) -> Json:
        """One condition; empty if it is not there."""
        conditions = self.status().get("conditions") or []
        return next((each for each in conditions if each["type"] == kind), {})

    def replicas(self, workload: str, kind: str = "deployment") -> int:
        """What a workload is to have; -1 where it is not there."""
        found = self.get(kind, workload)
        return -1 if found is None else int(found["spec"]["replicas"])

    def ready(self, workload: str) -> int:
        """How many pods of a Deployment serve."""
        found = self.get("deployment", workload) or {}
        return int((found.get("status") or {}).get("readyReplicas", 0))

    def scaled_by(self, workload: str, kind: str = "deployment") -> set[str]:
        """Which field managers hold the number of a workload's replicas."""
        entries = self.plane.read(f"{self._path(kind)}/{workload}")["metadata"].get("managedFields", [])
        return {each["manager"] for each in entries if "f:replicas" in each["fieldsV1"].get("f:spec", {})}

    def pods(self) -> list[Json]:
        """The pods of the fleet's namespace that are there to stay."""
        pods = self.plane.read(self._path("pod"))["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def await_condition(self, kind: str, status: str, reason: str | None = None, timeout_s: float = 30) -> Json:
        """The condition once it has that status (and reason)."""

        def met() -> Json:
            found = self.condition(kind)
            fits = found.get("status") == status and reason in (None, found.get("reason"))
            return found if fits else {}

        return eventually(met, timeout_s)

    def runtime_policy(self) -> Json:
        """What the pods read; empty if it is not there."""
        found = self.get("configmap", f"{self.name}-policy")
        return {} if found is None else json.loads(found["data"]["policy.json"])

    def children(self) -> set[str]:
        """Kind/name of everything that carries the fleet's label, pods left out."""
        label = f"labelSelector=prefleet.dev/fleet%3D{self.name}"
        found = {
            kind: self.plane.read(f"{self._path(kind)}?{label}") for kind in ("configmap", "deployment", "service")
        }
        return {f"{kind}/{each['metadata']['name']}" for kind, listed in found.items() for each in listed["items"]}
