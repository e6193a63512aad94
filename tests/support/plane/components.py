"""The command lines of the control plane's four servers: what a cluster has on is on, except durability.

etcd does not sync to disk (a test needs no data after a power cut, and starts and writes ten times faster),
and nothing is replicated, so nobody elects a leader. All listen on 127.0.0.1 only.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from tests.support.plane.certs import Pair

HOST = "127.0.0.1"
# The API refuses loopback addresses as endpoints, not as the addresses of Services: pods on loopback reach
# these. Each plane of a machine has a range of its own: its first two octets.
SERVICE_BASES = tuple(f"127.{second}" for second in range(96, 128))
SERVICE_ACCOUNT_ISSUER = "https://kubernetes.default.svc.cluster.local"
API_SERVER_HOSTS = (
    HOST,
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
FRONT_PROXY_CLIENT = "front-proxy-client"


@dataclass(frozen=True)
class Ports:
    service_base: str
    etcd: int
    etcd_peer: int
    api_server: int
    controller_manager: int
    scheduler: int

    @property
    def service_range(self) -> str:
        return f"{self.service_base}.0.0/16"


@dataclass(frozen=True)
class Credentials:
    ca: Path
    etcd: Pair
    etcd_client: Pair
    api_server: Pair
    kubelet_client: Pair
    front_proxy_ca: Path
    front_proxy_client: Pair
    service_account_key: Path


def etcd(data: Path, ports: Ports, credentials: Credentials) -> list[str]:
    client = f"https://{HOST}:{ports.etcd}"
    peer = f"http://{HOST}:{ports.etcd_peer}"
    return [
        "--name=plane",
        f"--data-dir={data}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=plane={peer}",
        f"--cert-file={credentials.etcd.cert}",
        f"--key-file={credentials.etcd.key}",
        "--client-cert-auth",
        f"--trusted-ca-file={credentials.ca}",
        "--log-level=warn",
    ]


def api_server(ports: Ports, credentials: Credentials) -> list[str]:
    return [
        f"--bind-address={HOST}",
        f"--advertise-address={HOST}",
        f"--secure-port={ports.api_server}",
        "--endpoint-reconciler-type=none",  # it would publish 127.0.0.1, which the API refuses
        f"--etcd-servers=https://{HOST}:{ports.etcd}",
        f"--etcd-cafile={credentials.ca}",
        f"--etcd-certfile={credentials.etcd_client.cert}",
        f"--etcd-keyfile={credentials.etcd_client.key}",
        f"--tls-cert-file={credentials.api_server.cert}",
        f"--tls-private-key-file={credentials.api_server.key}",
        f"--client-ca-file={credentials.ca}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={ports.service_range}",
        f"--service-account-issuer={SERVICE_ACCOUNT_ISSUER}",
        f"--service-account-key-file={credentials.service_account_key}",
        f"--service-account-signing-key-file={credentials.service_account_key}",
        f"--kubelet-client-certificate={credentials.kubelet_client.cert}",
        f"--kubelet-client-key={credentials.kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={credentials.front_proxy_ca}",
        f"--requestheader-allowed-names={FRONT_PROXY_CLIENT}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={credentials.front_proxy_client.cert}",
        f"--proxy-client-key-file={credentials.front_proxy_client.key}",
    ]


def audit(policy: Path, log: Path) -> list[str]:
    """Arguments of the API server for an audit log of service accounts; writes the policy file."""
    rules = [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"], "omitStages": ["RequestReceived"]},
        {"level": "None"},
    ]
    policy.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
    return [f"--audit-policy-file={policy}", f"--audit-log-path={log}"]


def controller_manager(ports: Ports, credentials: Credentials, kubeconfig: Path) -> list[str]:
    return [
        *_serving(ports.controller_manager, kubeconfig),
        "--use-service-account-credentials=true",
        f"--root-ca-file={credentials.ca}",
        f"--service-account-private-key-file={credentials.service_account_key}",
        f"--service-cluster-ip-range={ports.service_range}",
        # Its defaults (20 a second) are meant for a control plane that serves many; here they only slow the
        # tests.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        # Its default is 15 s: a test that watches an autoscaler follow a load would wait for nothing else.
        "--horizontal-pod-autoscaler-sync-period=1s",
    ]


def scheduler(ports: Ports, kubeconfig: Path) -> list[str]:
    return _serving(ports.scheduler, kubeconfig)


def _serving(port: int, kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={HOST}",
        f"--secure-port={port}",
        "--leader-elect=false",
    ]
