"""A node agent whose pods are processes: TEST EQUIPMENT for a control plane on one machine, never for a cluster.

It stands where a kubelet (and kube-proxy) would: it registers a Node, takes the pods bound to it, runs their
containers as plain processes of the user who started it, probes, restarts and ends them, reports their status,
serves their logs and forwards Services. It needs no root, no container runtime and no network but loopback.

How a process is made to look like a container:

- An image is a folder (a virtual environment, say): its `bin` goes first on PATH. The command must be explicit,
  since a folder has no entrypoint.
- A pod is a folder and an address in 127.0.0.0/8. The address stands in for 0.0.0.0, and the pod's folder for mount
  paths, wherever these occur in commands, arguments, working directories and environment values (`rewriting`). A
  program that binds every address without being told so, or that finds a mount path in the contents of a file, is
  beyond this.
- A process tree is recognised by an environment variable and its session, and dies as a whole (`processes`).
- A pod with a service account token gets a KUBECONFIG that points at the token's file.

What it keeps exactly as a kubelet has it, because anything kinder would make tests prove something false: when
ConfigMap volumes are refreshed, that subPath mounts never are, restart back-off, termination (preStop, SIGTERM to
the main process alone, grace, SIGKILL for all), what is ready when, and what the service account's token may do.

What it leaves out: isolation of any kind, resource limits, cluster DNS (NAME.NAMESPACE.svc in a command, an argument
or a variable becomes the ClusterIP), UDP, persistent volumes, native sidecars, postStart hooks, gRPC probes, readiness
gates, exec, attach and port-forward, log rotation. A pod that needs one of these to run is not started, and its status
says why.

Module by module, lowest first: `rewriting`, `backoff`, `atomic`, `addresses`, `status`, `fields` decide or nearly
so; `api` speaks to the API server, `processes` to the kernel; `volumes`, `environment`, `sandbox`, `launching`,
`actions`, `probes`, `containers`, `pods` make up one pod; `node`, `logs`, `services` serve the whole node; this module
ties them, `__main__` is the command and `launch` starts it for tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import random
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import aiohttp

from tests.support.node_agent.addresses import BASES, Addresses, claim
from tests.support.node_agent.api import Api, Credentials, Json
from tests.support.node_agent.logs import LogServer
from tests.support.node_agent.node import keep_lease, register
from tests.support.node_agent.pods import Pod
from tests.support.node_agent.processes import end_trees, kill_trees
from tests.support.node_agent.services import ServiceProxy
from tests.support.node_agent.settings import AgentSettings, Host
from tests.support.node_agent.watchdog import start_watchdog

READY_FILE = "agent.json"
"""In the agent's folder while it serves: its process id, the Node's name and address."""

_BASE_FILE = "address-base"

_log = logging.getLogger(__name__)


class WorkdirInUseError(RuntimeError):
    """Another agent works in the folder, and would lose its processes to this one."""


class NodeAgent:
    """`run` serves until cancelled, and then ends every process before it returns."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._workdir = settings.workdir
        self._pods: dict[str, Pod] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        self._workdir.mkdir(parents=True, exist_ok=True)
        with _locked(self._workdir / "lock"):
            swept = await asyncio.to_thread(kill_trees, str(self._workdir))
            if swept:
                _log.warning("an earlier agent left %d processes behind: killed", swept)
            watchdog = start_watchdog(str(self._workdir))
            try:
                await self._serve()
            finally:
                await self._end_processes()
                (self._workdir / READY_FILE).unlink(missing_ok=True)
                await asyncio.to_thread(watchdog.communicate)

    async def _serve(self) -> None:
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            api = await stack.enter_async_context(Api(Credentials.from_kubeconfig(settings.kubeconfig)))
            connector = aiohttp.TCPConnector(ssl=False, force_close=True, limit=0)
            http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
            base, listener = self._claim_addresses()
            await stack.enter_async_context(LogServer(listener, settings, self._find))
            host = Host(settings, api, http, Addresses(base), random.Random())
            await register(host)
            await self._forget_strangers(host)
            async with asyncio.TaskGroup() as group:
                group.create_task(keep_lease(host))
                group.create_task(self._follow_pods(host))
                if settings.proxy_kubeconfig:
                    group.create_task(self._forward_services(settings.proxy_kubeconfig))
                facts = {"pid": os.getpid(), "node": settings.node_name, "address": host.addresses.node}
                _write_atomically(self._workdir / READY_FILE, json.dumps(facts))
                _log.info("node %s is ready", settings.node_name)

    def _claim_addresses(self) -> tuple[str, socket.socket]:
        """A range of addresses; the one that this folder's pods had before, if it can be had."""
        before = self._workdir / _BASE_FILE
        remembered = [before.read_text()] if before.exists() else []
        told = self._settings.address_base
        base, listener = claim([told] if told else [*remembered, *BASES])
        before.write_text(base)
        return base, listener

    # --- pods

    def _find(self, namespace: str, name: str) -> Pod | None:
        title = f"{namespace}/{name}"
        return next((pod for pod in self._pods.values() if pod.sandbox.title == title), None)

    async def _forget_strangers(self, host: Host) -> None:
        """Removes the folders of pods that went while no agent ran."""
        listing = await host.api.get("/api/v1/pods", self._selector)
        own = {item["metadata"]["uid"][:8] for item in listing["items"]}
        for folder in (self._workdir / "pods").glob("*"):
            if folder.name not in own:
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def _selector(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.nodeName={self._settings.node_name}"}

    async def _follow_pods(self, host: Host) -> None:
        def seen(item: Json) -> None:
            uid = item["metadata"]["uid"]
            if uid in self._pods:
                self._pods[uid].observe(item)
            else:
                self._adopt(host, item)

        def gone(item: Json) -> None:
            if pod := self._pods.get(item["metadata"]["uid"]):
                pod.vanished(item)

        await host.api.follow("/api/v1/pods", self._selector, seen, gone)

    def _adopt(self, host: Host, item: Json) -> None:
        uid = item["metadata"]["uid"]
        pod = self._pods[uid] = Pod(host, item)
        _log.info("%s: bound to this node, at %s in %s", pod.sandbox.title, pod.sandbox.address, pod.sandbox.folder)
        life = self._lives[uid] = asyncio.create_task(pod.run())
        life.add_done_callback(lambda task: self._over(uid, task))

    def _over(self, uid: str, life: asyncio.Task[None]) -> None:
        pod = self._pods.pop(uid)
        del self._lives[uid]
        if life.cancelled():
            return
        if error := life.exception():
            _log.error("%s: the agent failed", pod.sandbox.title, exc_info=error)
        else:
            _log.info("%s: gone", pod.sandbox.title)

    # --- the rest of the node

    async def _forward_services(self, kubeconfig: Path) -> None:
        async with Api(Credentials.from_kubeconfig(kubeconfig)) as api:
            await ServiceProxy(api, self._settings.service_lag_s).run()

    async def _end_processes(self) -> None:
        """SIGTERM, some seconds, SIGKILL. The pods stay in the API: the next agent starts them again."""
        lives = list(self._lives.values())
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)
        mark = str(self._workdir)
        await asyncio.to_thread(end_trees, mark, self._settings.stop_grace_s)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise WorkdirInUseError(f"another node agent works in {path.parent}; give this one its own") from error
        yield


def _write_atomically(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)
