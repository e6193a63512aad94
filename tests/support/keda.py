"""The real KEDA on a local control plane: its operator and its metrics adapter as processes, under its own rights.

    with Keda(plane, folder, ensure(KEDA)):
        plane.kubectl("apply", "-f", "-", stdin=scaled_object)

The CRDs and the RBAC are the files of its Go module, in the version that the programs are built from; they are read
from Go's module cache (and fetched into it where they are not there) and applied as they are. In a cluster its pods
find a namespace, a token and certificates where the kubelet mounts them: here flags and environment say where they are.

Left out: its webhooks, which only refuse what contradicts itself, and the rotation of certificates. A plane has one
`external.metrics.k8s.io`, so it has either this one or that of external_metrics.py.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from tests.support.installation import service_account_kubeconfig
from tests.support.plane.aggregation import EXTERNAL_METRICS, Aggregated, registered, serving_pair
from tests.support.plane.components import HOST
from tests.support.plane.plane import ControlPlane
from tests.support.plane.processes import Process, answers, free_ports
from tests.support.scaled_object import CRD_NAME, keda_folder

NAMESPACE = "keda"
ACCOUNT = "keda-operator"
API = Aggregated(*EXTERNAL_METRICS, NAMESPACE, "keda-metrics-apiserver")
# Of the folder `config` in KEDA's module: what its release applies beside its Deployments and its webhooks.
RIGHTS = (
    "service_account/service_account.yaml",
    "rbac/role.yaml",
    "rbac/role_binding.yaml",
    "metrics-server/role.yaml",
    "metrics-server/role_binding.yaml",
)
READY_TIMEOUT_S = 90.0


class Keda:
    """KEDA with its logs, its token and its certificates in `folder`. `binaries` maps each of KEDA's to its program."""

    def __init__(self, plane: ControlPlane, folder: Path, binaries: Mapping[str, Path]) -> None:
        self._plane = plane
        self._folder = folder
        self._binaries = binaries
        self._running = ExitStack()

    def start(self) -> Keda:
        """Install and start it; it serves external metrics on return."""
        self._folder.mkdir(parents=True, exist_ok=True)
        install(self._plane)
        kubeconfig = service_account_kubeconfig(self._plane, self._folder, NAMESPACE, ACCOUNT)
        certificates = self._certificates()
        health, metrics, serving = free_ports(3)
        service = f"localhost:{metrics}"
        with ExitStack() as starting:
            starting.callback(self.stop)
            operator = self._run("keda-operator", operator_arguments(health, service, certificates), kubeconfig)
            operator.wait_ready(answers(f"http://{HOST}:{health}/readyz"), READY_TIMEOUT_S)
            self._run("keda-adapter", adapter_arguments(serving, service, certificates, kubeconfig), kubeconfig)
            self._running.enter_context(registered(self._plane, API, serving))
            starting.pop_all()
        return self

    def stop(self) -> None:
        """End both programs and take the API away; the CRDs stay."""
        self._running.close()

    def __enter__(self) -> Keda:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _certificates(self) -> Path:
        """A folder with the files of KEDA's Secret: both programs show each other the one certificate."""
        folder = self._folder / "certificates"
        folder.mkdir()
        pair = serving_pair(self._plane, API)
        for source, name in ((self._plane.ca_file, "ca.crt"), (pair.cert, "tls.crt"), (pair.key, "tls.key")):
            shutil.copyfile(source, folder / name)
        return folder

    def _run(self, name: str, arguments: list[str], kubeconfig: Path) -> Process:
        process = Process.start(
            name, [self._binaries[name], *arguments], self._folder / f"{name}.log", env=environment(kubeconfig)
        )
        self._running.callback(process.stop)
        return process


def install(plane: ControlPlane) -> None:
    """The namespace, the CRDs and the rights, as KEDA's own release has them."""
    config = keda_folder() / "config"
    if NAMESPACE not in plane.kubectl("get", "namespaces", "-o", "name").replace("namespace/", "").split():
        plane.create_namespace(NAMESPACE)
    # Server-side: one of the CRDs is larger than the annotation that a client-side apply writes.
    plane.kubectl("apply", "--server-side", "-k", str(config / "crd"))
    plane.await_established(CRD_NAME)
    files = [argument for each in RIGHTS for argument in ("-f", str(config / each))]
    plane.kubectl("apply", *files)


def operator_arguments(health_port: int, service: str, certificates: Path) -> list[str]:
    return [
        f"--health-probe-bind-address={HOST}:{health_port}",
        "--metrics-bind-address=0",
        f"--metrics-service-bind-address={service}",
        f"--cert-dir={certificates}",
        "--zap-log-level=info",
        "--zap-encoder=console",
    ]


def adapter_arguments(port: int, service: str, certificates: Path, kubeconfig: Path) -> list[str]:
    return [
        f"--bind-address={HOST}",
        f"--secure-port={port}",
        "--port=0",
        f"--metrics-service-address={service}",
        f"--cert-dir={certificates}",
        f"--tls-cert-file={certificates / 'tls.crt'}",
        f"--tls-private-key-file={certificates / 'tls.key'}",
        *(f"--{name}-kubeconfig={kubeconfig}" for name in ("lister", "authentication", "authorization")),
        "--zap-log-level=info",
    ]


def environment(kubeconfig: Path) -> dict[str, str]:
    """What a pod of KEDA's is given, and no proxy: all that it asks is on this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return kept | {
        "KUBECONFIG": str(kubeconfig),
        "POD_NAMESPACE": NAMESPACE,
        "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE,
        "WATCH_NAMESPACE": "",
    }
