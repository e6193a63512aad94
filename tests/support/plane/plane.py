"""A Kubernetes control plane on 127.0.0.1, without root: etcd, API server, controller manager, scheduler.

    with ControlPlane(folder, binaries) as plane:
        plane.kubectl("apply", "-f", "-", stdin=manifest)

RBAC, the Node authoriser, ServiceAccount and NodeRestriction admission, CEL, aggregation and garbage
collection are on. There is no kubelet: pods stay as the scheduler leaves them unless an agent registers a
Node with credentials from `kubeconfig_for("system:node:NAME", ["system:nodes"])`. The API server shows a
kubelet the certificate of KUBELET_CLIENT, and does not check the kubelet's own (as most clusters do not).
There is no DNS.

The folder keeps the state: a plane started again in it has the same objects, the same authority and the same Service
addresses, on new ports. Several planes may run on one machine.
"""

import json
import os
import re
import socket
import ssl
import subprocess
import urllib.error
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.node_agent.addresses import claim
from tests.support.plane import components
from tests.support.plane.certs import Authority, Pair, signing_key
from tests.support.plane.components import HOST, Credentials, Ports
from tests.support.plane.kubeconfig import write_kubeconfig
from tests.support.plane.processes import Process, answers, direct_opener, free_ports
from tests.support.waiting import eventually

BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
READY_TIMEOUT_S = 90.0
# Orderly ends take a second. An API server whose etcd went first would wait much longer, for nothing.
GRACE_S = 3.0


class KubectlFailed(RuntimeError):
    """kubectl ended with an error; the message is what it wrote to stderr."""


class ControlPlane:
    """One control plane in `folder`. `binaries` maps each of BINARIES to its executable.

    With `audit`, `audit_log` gets a JSON line for each request that a service account made, those of the
    plane's own controllers left out.
    """

    def __init__(self, folder: Path, binaries: Mapping[str, Path], *, audit: bool = False) -> None:
        self.folder = folder
        self.binaries = binaries
        self.audit_log = folder / "audit.log" if audit else None
        self.processes: dict[str, Process] = {}
        self._claim: socket.socket | None = None
        self._pki = folder / "pki"
        self._logs = folder / "logs"
        for each in (self._pki, self._logs, folder / "kubeconfigs"):
            each.mkdir(parents=True, exist_ok=True)
        self._pki.chmod(0o700)
        self._authority = Authority.open(self._pki, "ca")
        self.ca_file = self._authority.pair.cert

    # --- starting and stopping

    def start(self) -> "ControlPlane":
        """Start all four and return when the plane takes pods: some seconds. A failure stops what runs."""
        base, self._claim = self._claim_services()
        self.ports = Ports(base, *free_ports(5))
        self.server = f"https://{HOST}:{self.ports.api_server}"
        self._credentials = self._issue()
        self._admin = self._authority.issue("admin", "admin", ["system:masters"])
        self.kubeconfig = self._kubeconfig("admin", self._admin)
        self._opener = direct_opener(self._tls(self._admin))
        try:
            self._start_etcd()
            self._start_api_server()
            self._start_controllers()
            self._await_service_account("default")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all, clients before servers; every process is gone on return. Stopping twice is harmless."""
        for process in reversed(self.processes.values()):
            process.stop()
        self.processes.clear()
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def restart_controller_manager(self) -> None:
        """Make garbage collection know every kind now: by itself it learns a new CRD in 30 to 60 seconds."""
        self.processes.pop("kube-controller-manager").stop()
        self._start_controllers()

    def __enter__(self) -> "ControlPlane":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- using it

    def serving_pair(self, name: str, hosts: Sequence[str]) -> Pair:
        """A certificate for a server under these names, which whoever trusts `ca_file` believes."""
        return self._authority.issue(name, name, hosts=hosts)

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig whose certificate says `user` in `groups`; what those may do is for RBAC to say."""
        name = "user-" + re.sub(r"[^A-Za-z0-9.-]", "-", user)
        return self._kubeconfig(name, self._authority.issue(name, user, groups))

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        kubeconfig: Path | None = None,
        timeout_s: float = 60.0,
    ) -> str:
        """The output of kubectl, run as the administrator unless a kubeconfig is given."""
        command = [str(self.binaries["kubectl"]), f"--cache-dir={self.folder / 'kubectl-cache'}", *arguments]
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, "KUBECONFIG": str(kubeconfig or self.kubeconfig)},
            check=False,
        )
        if done.returncode:
            raise KubectlFailed(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def read(self, path: str, timeout_s: float = 60.0) -> Any:
        """What a GET of that path answers to the administrator; None where nothing is there.

        For what is asked again and again: kubectl costs thirty times as much, most of it to start.
        """
        try:
            with self._opener.open(f"{self.server}{path}", timeout=timeout_s) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def create_namespace(self, name: str) -> None:
        """A namespace in which pods can be created: its default service account is there on return."""
        self.kubectl("create", "namespace", name)
        self._await_service_account(name)

    def await_established(self, crd: str) -> None:
        """The API server serves the resource. `kubectl wait` ends with an error where it has not said so at all yet."""
        eventually(lambda: self.condition("crd", crd, "Established") == "True", 30)

    def condition(self, kind: str, name: str, condition: str) -> str:
        """The status of one condition of an object of the cluster; "" where it has none: the list may be null."""
        found = json.loads(self.kubectl("get", kind, name, "-o", "json")).get("status", {}).get("conditions") or []
        return next((str(each["status"]) for each in found if each["type"] == condition), "")

    # --- the steps of starting

    def _claim_services(self) -> tuple[str, socket.socket]:
        """A range of Service addresses that no other plane of this machine has; the state names its own."""
        known = self.folder / "service-base"
        base, listener = claim([known.read_text()] if known.exists() else components.SERVICE_BASES)
        known.write_text(base)
        return base, listener

    def _issue(self) -> Credentials:
        front_proxy = Authority.open(self._pki, "front-proxy-ca")
        return Credentials(
            ca=self.ca_file,
            etcd=self._authority.issue("etcd", "etcd", hosts=[HOST]),
            etcd_client=self._authority.issue("etcd-client", "kube-apiserver"),
            api_server=self._authority.issue(
                "apiserver", "kube-apiserver", hosts=[*components.API_SERVER_HOSTS, f"{self.ports.service_base}.0.1"]
            ),
            kubelet_client=self._authority.issue("kubelet-client", KUBELET_CLIENT),
            front_proxy_ca=front_proxy.pair.cert,
            front_proxy_client=front_proxy.issue("front-proxy-client", components.FRONT_PROXY_CLIENT),
            service_account_key=signing_key(self._pki, "service-account"),
        )

    def _start_etcd(self) -> None:
        arguments = components.etcd(self.folder / "etcd", self.ports, self._credentials)
        probe = answers(f"https://{HOST}:{self.ports.etcd}/health", self._tls(self._credentials.etcd_client))
        self._run("etcd", arguments).wait_ready(probe, READY_TIMEOUT_S)

    def _start_api_server(self) -> None:
        arguments = components.api_server(self.ports, self._credentials)
        if self.audit_log is not None:
            arguments += components.audit(self.folder / "audit-policy.json", self.audit_log)
        process = self._run("kube-apiserver", arguments)
        process.wait_ready(answers(f"{self.server}/readyz", self._tls(self._admin)), READY_TIMEOUT_S)

    def _start_controllers(self) -> None:
        """Controller manager and scheduler, where not running; nobody checks the certificates they make."""
        config = self.kubeconfig_for("system:kube-controller-manager")
        arguments = {
            "kube-controller-manager": components.controller_manager(self.ports, self._credentials, config),
            "kube-scheduler": components.scheduler(self.ports, self.kubeconfig_for("system:kube-scheduler")),
        }
        ports = {
            "kube-controller-manager": self.ports.controller_manager,
            "kube-scheduler": self.ports.scheduler,
        }
        started = [self._run(name, arguments[name]) for name in arguments if name not in self.processes]
        unchecked = ssl._create_unverified_context()
        for process in started:
            probe = answers(f"https://{HOST}:{ports[process.name]}/healthz", unchecked)
            process.wait_ready(probe, READY_TIMEOUT_S)

    def _await_service_account(self, namespace: str) -> None:
        url = f"{self.server}/api/v1/namespaces/{namespace}/serviceaccounts/default"
        controllers = self.processes["kube-controller-manager"]
        controllers.wait_ready(answers(url, self._tls(self._admin)), READY_TIMEOUT_S)

    def _run(self, name: str, arguments: Sequence[str]) -> Process:
        command = [str(self.binaries[name]), *arguments]
        process = Process.start(name, command, self._logs / f"{name}.log", grace_s=GRACE_S)
        self.processes[name] = process
        return process

    def _tls(self, client: Pair) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca_file))
        context.load_cert_chain(client.cert, client.key)
        return context

    def _kubeconfig(self, name: str, client: Pair) -> Path:
        return write_kubeconfig(self.folder / "kubeconfigs" / f"{name}.yaml", self.server, self.ca_file, client)
