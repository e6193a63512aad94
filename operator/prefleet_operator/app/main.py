"""The operator's life: wait for the Lease, lead, stop.

    standby   serves its health and waits for the Lease
    leading   kopf watches policies, watchers keep pods (those that policies attach, too) and children, the fleet loop
              measures, the queue reconciles; all of it ends the process if any of it ends
    stopping  (SIGTERM) nothing new is begun, what is being written ends, and only then the Lease is released; a turn
              that takes too long is cut off between two writes, never in one

A process that loses its Lease ends at once, without tidying up: everything it might tidy could be a write.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, cast

import kopf
from prometheus_client import CollectorRegistry

from prefleet_operator.adapters.events import Recorder
from prefleet_operator.adapters.kube import (
    INSTALL_HINTS,
    PODS,
    POLICIES,
    RESOURCES_BY_KIND,
    WRITE_TIMEOUT_S,
    Kube,
    KubeError,
    connect,
    until_answered,
)
from prefleet_operator.adapters.metrics_source import MetricsSource
from prefleet_operator.adapters.serve import serve
from prefleet_operator.adapters.watch import OptionalWatcher, Store, Watcher, Watchers
from prefleet_operator.app.apply import Applier
from prefleet_operator.app.attachments import Attachments
from prefleet_operator.app.config import OperatorConfig
from prefleet_operator.app.decision import Installation
from prefleet_operator.app.fleet_loop import FleetLoop
from prefleet_operator.app.gather import Cluster
from prefleet_operator.app.handlers import make_registry, make_settings
from prefleet_operator.app.leader import Election, LeadershipLostError
from prefleet_operator.app.lease_store import LeaseStore
from prefleet_operator.app.policies import PolicyIndex, PolicyRecord
from prefleet_operator.app.readings import Readings
from prefleet_operator.app.reconcile import Reconciler, reasons_by_condition
from prefleet_operator.app.records import AutoscalerRecord, ChildRecord, PodRecord
from prefleet_operator.app.sizings import Sizings
from prefleet_operator.app.sources import make_sources
from prefleet_operator.app.telemetry import Telemetry
from prefleet_operator.app.workqueue import Workqueue
from prefleet_operator.render import FIELD_MANAGER, FLEET_LABEL, InstallationDefaults

logger = logging.getLogger(__name__)

CHILD_SELECTOR = f"{FLEET_LABEL},app.kubernetes.io/managed-by=prefleet"
STUCK_AFTER_S = 60.0
DRAIN_S = 2 * WRITE_TIMEOUT_S
EXIT_LEADERSHIP_LOST = 3
LIST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """How this process runs, as against what it does. `identity` names it in the Lease and in Events."""

    lease: str
    lease_namespace: str
    identity: str
    host: str
    port: int


class Operator:
    """One leading operator: its parts, wired."""

    def __init__(
        self,
        kube: Kube,
        config: OperatorConfig,
        sources: Mapping[str, MetricsSource],
        telemetry: Telemetry,
        identity: str,
    ) -> None:
        self.config = config
        self.policies = PolicyIndex()
        self._kube = kube
        self._cluster = Cluster()
        self.attachments = Attachments(
            self._cluster, self._watch_pods, lambda key: self.queue.mark(key), self._mark_all
        )
        readings = Readings()
        self.sizings = Sizings()
        self.queue = Workqueue(
            Reconciler(
                kube=kube,
                policies=self.policies,
                cluster=self._cluster,
                readings=readings,
                sizings=self.sizings,
                applier=Applier(kube, self._cluster),
                recorder=Recorder(kube, identity, time.time),
                installation=Installation(
                    InstallationDefaults(config.runtime_image, config.open_prometheus),
                    tuple(sources),
                    version("prefleet"),
                ),
                now=time.time,
                count=telemetry.count_reconcile,
                follow=self.attachments.follow,
            ).reconcile
        )
        self.turned_at = time.monotonic()
        self._telemetry = telemetry
        self.loop = FleetLoop(
            interval_s=config.loop_interval_s,
            policies=self.policies,
            cluster=self._cluster,
            readings=readings,
            sources=sources,
            queue=self.queue,
            now=time.time,
            clock=time.monotonic,
            observe=self._observe,
        )
        self.watchers = Watchers(self._watchers(kube))

    def on_policy(self, deleted: bool, found: dict[str, Any]) -> None:
        """kopf has seen a policy."""
        record = PolicyRecord.of(found)
        if deleted:
            self.policies.drop(record.key, record.uid)
            self.queue.mark(record.key)
        else:
            self.queue.mark(record.key, urgent=self._know(record))

    async def synced(self) -> None:
        """Wait until all that decisions rest on has been read. What a policy left paused that went while no operator
        ran is looked at, too."""
        await self.watchers.synced()
        await self.read_policies()
        for child in self._cluster.children["Deployment"].everything(None):
            key = child.identity.namespace, child.identity.fleet
            if child.held and self.policies.get(key) is None:
                self.queue.mark(key)
        self.turned_at = time.monotonic()  # however long that took, the loop has not begun yet

    async def read_policies(self) -> None:
        """Know all policies before the first is decided about: whom an older one's pods belong to must not depend on
        the order in which kopf tells of them."""
        for namespace in self.config.namespaces or (None,):
            await self._read_policies_of(namespace)

    async def _read_policies_of(self, namespace: str | None) -> None:
        token = ""
        while True:
            try:
                page, _, token = await self._kube.list_page(POLICIES, namespace, "", token)
            except KubeError as error:
                logger.warning("policies cannot be listed, trying again: %s", error)
                token = ""
                await asyncio.sleep(LIST_PAUSE_S)
                continue
            for found in page:
                self._know(PolicyRecord.of(found))
            if not token:
                return

    async def finish(self, timeout_s: float) -> None:
        """Begin no more turns and let those that are on end. One that takes longer ends with the write that it is at,
        which has its time: cut off, it could come to pass after another operator has begun to lead."""
        try:
            await self.queue.drain(timeout_s)
        except TimeoutError:
            logger.warning("some turns did not end within %.0f seconds: they write nothing more", timeout_s)
            self._kube.fence = _write_nothing
            with suppress(TimeoutError):
                await self.queue.drain(WRITE_TIMEOUT_S)

    def _mark_all(self, namespace: str) -> None:
        for policy in self.policies:
            if policy.namespace == namespace:
                self.queue.mark(policy.key)

    def _know(self, record: PolicyRecord) -> bool:
        """Take in a policy; whether its spec, or the object itself, is another than before."""
        changed = self.policies.put(record)
        if changed:
            self.attachments.follow(record)
        return changed

    def _observe(self, seconds: float) -> None:
        self._telemetry.observe_loop(seconds)
        self.attachments.keep({policy.key for policy in self.policies})
        self.sizings.keep({policy.uid for policy in self.policies})
        self.turned_at = time.monotonic()

    def _watch_pods(
        self, namespace: str, selector: str, store: Store[PodRecord], changed: Callable[[str, str], None]
    ) -> Watcher[PodRecord]:
        return Watcher(self._kube, PODS, namespace, selector, PodRecord.of, store, changed)

    def _watchers(self, kube: Kube) -> list[Watcher[Any]]:
        def changed(namespace: str, fleet: str) -> None:
            if self.policies.get((namespace, fleet)) is not None:
                self.queue.mark((namespace, fleet))

        watchers: list[Watcher[Any]] = []
        for namespace in self.config.namespaces or (None,):
            pods = Watcher(kube, PODS, namespace, FLEET_LABEL, PodRecord.of, self._cluster.pods, changed)
            watchers.append(pods)
            for kind, store in self._cluster.children.items():
                parts = (kube, RESOURCES_BY_KIND[kind], namespace, CHILD_SELECTOR, ChildRecord.of, store, changed)
                if kind in INSTALL_HINTS:
                    served = partial(self._cluster.set_served, kind)
                    watchers.append(OptionalWatcher(*parts, on_served=served))
                else:
                    watchers.append(Watcher(*parts))
            watchers += self._autoscaler_watchers(kube, namespace)
        return watchers

    def _autoscaler_watchers(self, kube: Kube, namespace: str | None) -> Iterator[Watcher[Any]]:
        """Of everybody's autoscalers, since no label says what they scale. What changes is kept small: a status that
        moves with each of their own turns is no change."""

        def changed(where: str, _: str) -> None:
            self._mark_all(where)

        for kind, store in self._cluster.autoscalers.items():
            parts = (kube, RESOURCES_BY_KIND[kind], namespace, "", AutoscalerRecord.of, store, changed)
            optional = kind in INSTALL_HINTS
            yield OptionalWatcher(*parts, on_served=lambda _: None) if optional else Watcher(*parts)


class Process:
    """One run of `prefleet run`."""

    def __init__(self, config: OperatorConfig, options: Options) -> None:
        self._config = config
        self._options = options
        self._telemetry = Telemetry(CollectorRegistry())
        self._stopped = asyncio.Event()
        self._operator: Operator | None = None
        self._synced = False

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises KubeError if there is no cluster to connect to."""
        self._listen_to_signals()
        options = self._options
        endpoint = await serve(
            options.host, options.port, self._telemetry.registry, healthy=self._fault, ready=self._not_ready
        )
        kube, lease_kube = await connect(FIELD_MANAGER), await connect(FIELD_MANAGER)
        store = LeaseStore(lease_kube, options.lease_namespace, options.lease, time.time)
        election = Election(store, options.identity, time.monotonic)
        kube.fence = election.check
        sources = make_sources(self._config)
        try:
            if await self._unless_stopped(self._stand_by(kube, election)):
                self._telemetry.leader.set(1)
                await self._lead(kube, election, sources)
                await election.release()
        finally:
            for source in sources.values():
                await source.close()
            await kube.close()
            await lease_kube.close()
            await endpoint.cleanup()

    async def _stand_by(self, kube: Kube, election: Election) -> None:
        while not await until_answered(lambda: kube.served(POLICIES)):
            logger.warning("the API server does not serve PrefillPolicy yet: is the CRD installed?")
            await asyncio.sleep(2)
        await election.acquire()

    async def _lead(self, kube: Kube, election: Election, sources: Mapping[str, MetricsSource]) -> None:
        operator = self._operator = Operator(kube, self._config, sources, self._telemetry, self._options.identity)
        self._telemetry.show_policies(lambda: reasons_by_condition(operator.policies))
        self._telemetry.show_sizes(lambda: operator.sizings.published(operator.policies))
        holding = asyncio.create_task(_hold(election))
        watching = asyncio.create_task(operator.watchers.run())
        work = [holding, watching]
        synced = asyncio.create_task(operator.synced())
        if await self._unless_stopped(_first_end(work, until=synced)):
            self._synced = True
            parts = (operator.queue.run(), operator.loop.run(), operator.attachments.run())
            work += [asyncio.create_task(part) for part in parts]
            work.append(await self._start_kopf(operator))
            await self._unless_stopped(_first_end(work))
        await self._stop(operator, work)

    async def _start_kopf(self, operator: Operator) -> asyncio.Task[None]:
        existing = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            # kopf's own guess needs a user in /etc/passwd, which a pod's user is not. The type is private there.
            identity=cast(Any, self._options.identity),
            registry=make_registry(operator.on_policy),
            settings=make_settings(),
            namespaces=list(self._config.namespaces),
            clusterwide=not self._config.namespaces,
        )
        self._listen_to_signals()  # kopf has put its own in place of ours
        return asyncio.create_task(kopf.run_tasks(tasks, ignored=existing))

    async def _stop(self, operator: Operator, work: list[asyncio.Task[Any]]) -> None:
        """End what is being written, while the Lease is still renewed; then end everything."""
        await operator.finish(DRAIN_S)
        for task in reversed(work):
            task.cancel()
        await asyncio.wait(work, timeout=DRAIN_S)

    async def _unless_stopped(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Wait for `work` or for a signal to stop; whether it was the work that ended. Its errors are raised."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self._stopped.wait())
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
            return False
        task.result()
        return True

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped.set)

    def _fault(self) -> str | None:
        if self._operator is None or not self._synced:
            return None
        silent_s = time.monotonic() - self._operator.turned_at
        limit_s = STUCK_AFTER_S + self._config.loop_interval_s
        return f"the fleet loop has not turned for {silent_s:.0f} seconds" if silent_s > limit_s else None

    def _not_ready(self) -> str | None:
        leading = self._operator is not None
        return "leads, and is still reading the cluster" if leading and not self._synced else self._fault()


def _write_nothing() -> None:
    raise LeadershipLostError("the operator stops")


async def _first_end(work: list[asyncio.Task[Any]], until: asyncio.Task[Any] | None = None) -> None:
    """Wait for `until`, or for any part to end; none should, so its error, or that it ended, is an error."""
    done, _ = await asyncio.wait([*work, until] if until else work, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    if until is None or not until.done():
        raise RuntimeError("a part of the operator ended by itself")


async def _hold(election: Election) -> None:
    """Renew the Lease; end the process when it is lost, whatever else goes on."""
    try:
        await election.hold()
    except LeadershipLostError as error:
        logger.critical("leadership is lost (%s): the process ends", error)
        logging.shutdown()
        os._exit(EXIT_LEADERSHIP_LOST)
