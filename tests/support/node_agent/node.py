"""The Node object, and the Lease that keeps it alive.

A Node is created, or taken over as it is, at every start of the agent; its status (what it has to give, its address,
where its logs are served, that it is ready) is written then. After that only the Lease is renewed, which is what
the control plane goes by.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from datetime import UTC, datetime

from tests.support.node_agent.addresses import LOG_PORT
from tests.support.node_agent.api import MERGE_PATCH, Api, ApiError, Json
from tests.support.node_agent.settings import AgentSettings, Host
from tests.support.node_agent.status import timestamp

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEASE_S = 40
_RENEW_S = 10.0
_RETRY_S = 1.0

_log = logging.getLogger(__name__)


async def register(host: Host) -> None:
    """Makes the Node exist and be ready; tries until the API server lets it."""
    settings = host.settings
    node = node_object(settings, host.addresses.node, host.now())
    while True:
        try:
            await _create(host.api, node)
            path = f"/api/v1/nodes/{settings.node_name}/status"
            await host.api.request("PATCH", path, {"status": node["status"]}, content_type=MERGE_PATCH)
            return
        except ApiError as error:
            _log.warning("node %s is not registered yet: %s", settings.node_name, error)
            await asyncio.sleep(_RETRY_S)


async def _create(api: Api, node: Json) -> None:
    try:
        await api.request("POST", "/api/v1/nodes", node)
    except ApiError as error:
        if error.status != 409:
            raise


def node_object(settings: AgentSettings, address: str, now: datetime) -> Json:
    resources = {"cpu": settings.cpu, "memory": settings.memory, "pods": "500", "ephemeral-storage": "100Gi"}
    resources |= {name: str(count) for name, count in settings.accelerators.items()}
    labels = {
        "kubernetes.io/hostname": settings.node_name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        **settings.labels,
    }
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "NodeAgentReady",
        "message": "a node agent for tests: pods are processes of this machine",
        "lastHeartbeatTime": timestamp(now),
        "lastTransitionTime": timestamp(now),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": settings.node_name, "labels": labels},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": LOG_PORT}},
            "nodeInfo": _node_info(),
        },
    }


def _node_info() -> Json:
    system = os.uname()
    return {
        "machineID": system.nodename,
        "systemUUID": "",
        "bootID": "",
        "kernelVersion": system.release,
        "osImage": "processes of this machine",
        "containerRuntimeVersion": "process://1",
        "kubeletVersion": "v0.0.0-node-agent-for-tests",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": platform.machine(),
    }


async def keep_lease(host: Host) -> None:
    """Renews the node's Lease for ever."""
    while True:
        try:
            await _renew(host)
            await asyncio.sleep(_RENEW_S)
        except ApiError as error:
            _log.warning("the lease of node %s was not renewed: %s", host.settings.node_name, error)
            await asyncio.sleep(_RETRY_S)


async def _renew(host: Host) -> None:
    name = host.settings.node_name
    spec = {
        "holderIdentity": name,
        "leaseDurationSeconds": _LEASE_S,
        "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    try:
        await host.api.request("PATCH", f"{_LEASES}/{name}", {"spec": spec}, content_type=MERGE_PATCH)
    except ApiError as error:
        if error.status != 404:
            raise
        await host.api.request("POST", _LEASES, {"metadata": {"name": name}, "spec": spec})
