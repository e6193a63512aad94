"""One pod on this node, from the moment it is bound until it is gone from the API.

Three things run side by side: the *work* (volumes, init containers in order, then all containers), during it the
*refresh* of published volumes (60-90 s jittered, and at once when labels, annotations or spec of the pod change, as
a kubelet does), and the *reporting* of the status, which is written when it differs from what was written last. A
deletion stops the containers within the grace, reports how they ended and removes the pod from the API.
"""

from __future__ import annotations

import asyncio
import logging

from tests.support.node_agent.actions import KNOWN
from tests.support.node_agent.api import MERGE_PATCH, ApiError, Json
from tests.support.node_agent.containers import Container
from tests.support.node_agent.processes import kill_trees
from tests.support.node_agent.sandbox import Sandbox
from tests.support.node_agent.settings import REFRESH_S, Host
from tests.support.node_agent.status import PodFacts, pod_status, timestamp
from tests.support.node_agent.volumes import VolumeError

_RETRY_S = 1.0

_log = logging.getLogger(__name__)


class Pod:
    """`run` is its life. `observe` and `vanished` tell it what the API server says."""

    def __init__(self, host: Host, pod: Json) -> None:
        self._dirty = asyncio.Event()
        self._deletion = asyncio.Event()
        self._changed = asyncio.Event()
        self._grace_changed = asyncio.Event()
        self.sandbox = Sandbox(host, pod, self._dirty.set)
        self._host = host
        spec, before = pod["spec"], pod.get("status", {})
        self._policy: str = spec.get("restartPolicy", "Always")
        # Init containers run anew with a new agent; the others go on from where they were.
        self._init = [Container(each, self.sandbox, is_init=True) for each in spec.get("initContainers", [])]
        statuses = {item["name"]: item for item in before.get("containerStatuses", [])}
        self._main = [Container(each, self.sandbox, previous=statuses.get(each["name"])) for each in spec["containers"]]
        self._initialized = self._init_failed = False
        self._vanished = False
        self._started_at: str = before.get("startTime") or timestamp(host.now())
        self._reported: Json = {}
        self.observe(pod)

    # --- what others ask and tell

    def container(self, name: str) -> Container | None:
        return next((each for each in (*self._init, *self._main) if each.name == name), None)

    def observe(self, pod: Json) -> None:
        """Takes the pod as the API server has it now."""
        before = self.sandbox.pod
        self.sandbox.observe(pod)
        if _meaning(before) != _meaning(pod):
            self._changed.set()
            self._grace_changed.set()
        if "deletionTimestamp" in pod["metadata"]:
            self._deletion.set()

    def vanished(self, pod: Json) -> None:
        """The pod is gone from the API: its processes have no reason to live."""
        self._vanished = True
        self.observe(pod)
        self._deletion.set()

    # --- its life

    async def run(self) -> None:
        """Returns when the pod is gone. Cancelled, it leaves processes and API object as they are."""
        work = asyncio.create_task(self._work())
        reporting = asyncio.create_task(self._keep_reported())
        try:
            await self._until_deleted(work)
            await self._end(work)
        finally:
            for task in (work, reporting):
                task.cancel()
            await asyncio.gather(work, reporting, return_exceptions=True)
        await self._delete()
        self.sandbox.remove()

    async def _until_deleted(self, work: asyncio.Task[None]) -> None:
        deletion = asyncio.create_task(self._deletion.wait())
        try:
            await asyncio.wait((work, deletion), return_when=asyncio.FIRST_COMPLETED)
            if work.done() and (error := work.exception()):
                _log.error("%s: the agent failed at its work", self.sandbox.title, exc_info=error)
            await deletion
        finally:
            deletion.cancel()

    async def _work(self) -> None:
        if problem := unsupported(self.sandbox.pod["spec"]):
            self._show_waiting("CreateContainerConfigError", problem)
            self.sandbox.event("Warning", "Failed", problem)
            return
        if self.sandbox.pod["status"].get("phase") in ("Succeeded", "Failed"):
            self._initialized = True
            return
        self._show_waiting("ContainerCreating" if not self._init else "PodInitializing")
        await self._mount()
        refreshing = asyncio.create_task(self._keep_refreshed())
        try:
            await self._run_containers()
        finally:
            refreshing.cancel()
        self._dirty.set()

    async def _run_containers(self) -> None:
        """Returns when all are over for good."""
        for container in self._init:
            await container.run()
            if container.exit_code != 0:
                self._init_failed = not container.stopping.is_set()
                return
        self._initialized = True
        self._show_waiting("ContainerCreating")
        await asyncio.gather(*(container.run() for container in self._main))

    def _show_waiting(self, reason: str, message: str = "") -> None:
        for container in (*self._init, *self._main):
            if container.exit_code is None:
                container.show_waiting(reason, message)
        self._dirty.set()

    async def _mount(self) -> None:
        told = ""
        while True:
            try:
                await self.sandbox.volumes.mount(self._host.now())
                return
            except VolumeError as error:
                if str(error) != told:
                    told = str(error)
                    _log.warning("%s: %s", self.sandbox.title, told)
                    self.sandbox.event("Warning", "FailedMount", told)
                await asyncio.sleep(_RETRY_S)

    async def _keep_refreshed(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._host.rng.uniform(*REFRESH_S)):
                    await self._changed.wait()
            except TimeoutError:
                _log.debug("%s: time to refresh volumes", self.sandbox.title)
            self._changed.clear()
            await self._refresh()

    async def _refresh(self) -> None:
        try:
            await self.sandbox.volumes.refresh(self._host.now())
        except VolumeError as error:
            _log.warning("%s: volumes stay as they are: %s", self.sandbox.title, error)
            self.sandbox.event("Warning", "FailedMount", str(error))

    # --- ending

    async def _end(self, work: asyncio.Task[None]) -> None:
        """Stops all containers within the grace; a grace that is shortened meanwhile holds at once."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        containers = (*self._init, *self._main)
        self._dirty.set()
        while True:
            grace_s = self._grace_s()
            left = began + grace_s - loop.time()
            stopping = asyncio.gather(*(container.stop(max(0.0, left)) for container in containers))
            shorter = asyncio.create_task(self._grace_below(grace_s))
            await asyncio.wait((stopping, shorter), return_when=asyncio.FIRST_COMPLETED)
            shorter.cancel()
            if stopping.done():
                await stopping
                break
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
        if not self._initialized:
            work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await asyncio.to_thread(kill_trees, self.sandbox.mark)

    def _grace_s(self) -> float:
        """A kubelet leaves at least a second, even to a pod whose deletion is forced."""
        return max(1.0, float(self.sandbox.pod["metadata"].get("deletionGracePeriodSeconds", 1)))

    async def _grace_below(self, grace_s: float) -> None:
        while self._grace_s() >= grace_s:
            self._grace_changed.clear()
            await self._grace_changed.wait()

    async def _delete(self) -> None:
        metadata = self.sandbox.pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        while not self._vanished:
            try:
                await self._report(ending=True)
                await self._host.api.request("DELETE", path, body)
                return
            except ApiError as error:
                if error.status in (404, 409):
                    return
                _log.warning("%s: could not be deleted: %s", self.sandbox.title, error)
                await asyncio.sleep(_RETRY_S)

    # --- reporting

    async def _keep_reported(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._report(ending=False)
            except ApiError as error:
                if error.status in (404, 409):
                    _log.info("%s: no longer in the API: %s", self.sandbox.title, error)
                    return
                _log.warning("%s: the status was not written: %s", self.sandbox.title, error)
                self._dirty.set()
                await asyncio.sleep(_RETRY_S)

    async def _report(self, *, ending: bool) -> None:
        """Writes the status if it differs from what was written last; raises ApiError."""
        metadata = self.sandbox.pod["metadata"]
        status = self._status(ending)
        if status == self._reported:
            return
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        answer = await self._host.api.request("PATCH", path, body, content_type=MERGE_PATCH)
        # Conditions of the answer, so that their times stay when the next report comes before the watch.
        self.sandbox.pod["status"]["conditions"] = answer["status"].get("conditions", [])
        self._reported = status

    def _status(self, ending: bool) -> Json:
        facts = PodFacts(
            init=[container.status() for container in self._init],
            main=[container.status() for container in self._main],
            restart_policy=self._policy,
            address=self.sandbox.address,
            node_address=self._host.addresses.node,
            started_at=self._started_at,
            initialized=self._initialized,
            init_failed=self._init_failed,
            ending=ending,
        )
        return pod_status(facts, self.sandbox.pod["status"], self._host.now())


def _meaning(pod: Json) -> Json:
    """What of a pod makes a kubelet look at it again: not its status, which the kubelet writes itself."""
    metadata = pod["metadata"]
    keys = ("labels", "annotations", "deletionTimestamp", "deletionGracePeriodSeconds")
    return {**{key: metadata.get(key) for key in keys}, "spec": pod["spec"]}


def unsupported(spec: Json) -> str | None:
    """Why this node does not run such a pod."""
    for container in spec.get("initContainers", []):
        if container.get("restartPolicy") == "Always":
            return f"init container {container['name']} is a native sidecar, which this node does not run"
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        if "postStart" in container.get("lifecycle", {}):
            return f"container {container['name']} has a postStart hook, which this node does not run"
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            if kind in container and not any(action in container[kind] for action in KNOWN):
                return f"container {container['name']} has a {kind} that is none of {', '.join(KNOWN)}"
    return None
