"""What the containers of one pod share: a folder, an address, the volumes and the identity of its service account.

    <workdir>/pods/<start of the uid>/home            HOME, and the working directory where none is given
                                     /root            absolute working directories that no mount covers
                                     /volumes/<name>
                                     /subpaths/<container>/<n>
                                     /logs/<container>/<restart>.log
                                     /kubeconfig

Paths are kept short: sockets in them may have no more than 107 characters.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.support.node_agent.api import ApiError, Json
from tests.support.node_agent.settings import Host
from tests.support.node_agent.status import timestamp
from tests.support.node_agent.volumes import Volumes

_log = logging.getLogger(__name__)


class Sandbox:
    """`notify` is called whenever something that the pod's status shows has changed."""

    def __init__(self, host: Host, pod: Json, notify: Callable[[], None]) -> None:
        self.host = host
        self.notify = notify
        self.address = host.addresses.take(pod.get("status", {}).get("podIP"))
        self.folder: Path = host.settings.workdir / "pods" / pod["metadata"]["uid"][:8]
        self.volumes = Volumes(host.api, lambda: self.pod, self.folder / "volumes")
        self.observe(pod)
        self._posts: set[asyncio.Task[None]] = set()
        for name in ("home", "root", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def observe(self, pod: Json) -> None:
        """Takes the pod as it is now, with the addresses that the API server may not know yet."""
        known = {
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "hostIP": self.host.addresses.node,
            "hostIPs": [{"ip": self.host.addresses.node}],
        }
        self.pod: Json = {**pod, "status": {**pod.get("status", {}), **known}}

    @property
    def title(self) -> str:
        return f"{self.pod['metadata']['namespace']}/{self.pod['metadata']['name']}"

    @property
    def mark(self) -> str:
        return f"{self.host.mark}/pods/{self.folder.name}"

    def log_file(self, container: str, restart: int) -> Path:
        path = self.folder / "logs" / container / f"{restart}.log"
        path.parent.mkdir(exist_ok=True)
        return path

    def write_kubeconfig(self, token: Path) -> Path:
        """A kubeconfig that authenticates with the token file, which may change under it."""
        credentials = self.host.api.credentials
        authority = self.folder / "ca.crt"
        authority.write_text(credentials.authority_pem or "")
        cluster = {"server": credentials.server, "certificate-authority": str(authority)}
        context = {"cluster": "node", "user": "pod", "namespace": self.pod["metadata"]["namespace"]}
        path = self.folder / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "pod",
                    "clusters": [{"name": "node", "cluster": cluster}],
                    "users": [{"name": "pod", "user": {"tokenFile": str(token)}}],
                    "contexts": [{"name": "pod", "context": context}],
                }
            )
        )
        path.chmod(0o600)
        return path

    def event(self, kind: str, reason: str, message: str) -> None:
        """Posts an Event about the pod; best effort, as a kubelet's."""
        task = asyncio.create_task(self._post_event(kind, reason, message))
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)

    async def _post_event(self, kind: str, reason: str, message: str) -> None:
        metadata = self.pod["metadata"]
        now = timestamp(self.host.now())
        node = self.host.settings.node_name
        body = {
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message[:1000],
            "source": {"component": "node-agent", "host": node},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self.host.api.request("POST", f"/api/v1/namespaces/{metadata['namespace']}/events", body)
        except ApiError as error:
            _log.debug("%s: the event %s was not posted: %s", self.title, reason, error)

    def remove(self) -> None:
        """Gives back the address and deletes the folder; nothing may run in it any more."""
        self.host.addresses.release(self.address)
        shutil.rmtree(self.folder, ignore_errors=True)
