"""A list and watch of our own: objects of one kind become records in a store.

    1. list page by page; the store then holds exactly what the list says, or later writes
    2. watch from there; every change goes to the store, and on to `on_change` if the record has changed
    3. the server ends a watch every few minutes: watch again from the last version; if that is too old (410),
       list again; if the server is away, or says so again and again, try again with growing pauses

The answer to a write of our own is put into the store at once (`Store.put`), so that no decision is taken on
an object older than the last write. Versions decide which is newer; they are numbers that rise within a kind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

from prefleet_operator.adapters.kube import (
    GoneError,
    Kube,
    KubeError,
    NotFoundError,
    Object,
    RefusedError,
    Resource,
)

logger = logging.getLogger(__name__)

RECONNECT_PAUSE_S = 0.1
UNSERVED_PAUSE_S = 10.0
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True, slots=True)
class Identity:
    """What every record carries. `version` is the resource version: within one kind a number that rises."""

    namespace: str
    name: str
    uid: str
    version: int
    fleet: str


class Record(Protocol):
    """What a store holds."""

    @property
    def identity(self) -> Identity:
        """Which object this is a record of."""


R = TypeVar("R", bound=Record)


class Store(Generic[R]):
    """Records by fleet and name; the newest version of each."""

    def __init__(self) -> None:
        self._by_fleet: dict[tuple[str, str], dict[str, R]] = {}
        self._fleet_of: dict[tuple[str, str], str] = {}

    def of(self, namespace: str, fleet: str) -> tuple[R, ...]:
        """All records of one fleet, by name."""
        records = self._by_fleet.get((namespace, fleet), {})
        return tuple(records[name] for name in sorted(records))

    def get(self, namespace: str, name: str) -> R | None:
        """The record of one object."""
        fleet = self._fleet_of.get((namespace, name))
        return None if fleet is None else self._by_fleet[(namespace, fleet)][name]

    def put(self, record: R) -> bool:
        """Keep a record unless a newer one is there; whether it differs from the last in more than its version."""
        identity = record.identity
        known = self.get(identity.namespace, identity.name)
        if known is not None and known.identity.version >= identity.version:
            return False
        if known is not None:
            self._forget(known.identity)
        self._fleet_of[(identity.namespace, identity.name)] = identity.fleet
        self._by_fleet.setdefault((identity.namespace, identity.fleet), {})[identity.name] = record
        return known is None or not _same(known, record)

    def remove(self, identity: Identity) -> bool:
        """Drop the record of a deleted object, unless a later object of that name is there."""
        known = self.get(identity.namespace, identity.name)
        if known is None or known.identity.version > identity.version:
            return False
        self._forget(known.identity)
        return True

    def everything(self, namespace: str | None) -> tuple[R, ...]:
        """All records of one namespace, or of all."""
        fleets = (r for (space, _), r in self._by_fleet.items() if namespace in (None, space))
        return tuple(record for records in fleets for record in records.values())

    def _forget(self, identity: Identity) -> None:
        del self._fleet_of[(identity.namespace, identity.name)]
        records = self._by_fleet[(identity.namespace, identity.fleet)]
        del records[identity.name]
        if not records:
            del self._by_fleet[(identity.namespace, identity.fleet)]


def _same(known: Any, record: Any) -> bool:
    return bool(replace(known, identity=record.identity) == record and known.identity.uid == record.identity.uid)


class Watcher(Generic[R]):
    """Keeps one store up to date with one kind in one namespace (or all). `run` never returns."""

    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        namespace: str | None,
        selector: str,
        read: Callable[[Object], R],
        store: Store[R],
        on_change: Callable[[str, str], None],
    ) -> None:
        self._kube = kube
        self._resource = resource
        self._namespace = namespace
        self._selector = selector
        self._read = read
        self._store = store
        self._on_change = on_change
        self.synced = asyncio.Event()
        self.refused: str | None = None
        """The API server's sentence while it refuses what is asked, which will not pass by itself."""

    async def run(self) -> None:
        """List and watch for ever."""
        version: str | None = None
        failures = 0
        while True:
            try:
                if version is None:
                    version = await self._list()
                    self.refused = None
                    self.synced.set()
                async for change, found in self._kube.watch(self._resource, self._namespace, self._selector, version):
                    version = found["metadata"]["resourceVersion"]
                    self._take(change, found)
                    self.refused, failures = None, 0
                await asyncio.sleep(RECONNECT_PAUSE_S)
            except GoneError as error:
                version = None
                await asyncio.sleep(self._pause(failures, error) if failures else RECONNECT_PAUSE_S)
                failures += 1
            except KubeError as error:
                version = None if isinstance(error, NotFoundError) else version
                self.refused = str(error) if isinstance(error, RefusedError) else self.refused
                await asyncio.sleep(self._pause(failures, error))
                failures += 1

    async def _list(self) -> str:
        records, version, token = [], "", ""
        while True:
            page, version, token = await self._kube.list_page(self._resource, self._namespace, self._selector, token)
            records += [record for found in page if (record := self._record(found)) is not None]
            if not token:
                break
        self._replace(records, int(version))
        return version

    def _replace(self, records: Iterable[R], version: int) -> None:
        listed = {(r.identity.namespace, r.identity.name) for r in records}
        for known in self._store.everything(self._namespace):
            key = (known.identity.namespace, known.identity.name)
            if key not in listed and known.identity.version <= version and self._store.remove(known.identity):
                self._on_change(known.identity.namespace, known.identity.fleet)
        for record in records:
            if self._store.put(record):
                self._on_change(record.identity.namespace, record.identity.fleet)

    def _take(self, change: str, found: Object) -> None:
        if change == "BOOKMARK":
            return
        record = self._record(found)
        if record is None:
            return
        changed = self._store.remove(record.identity) if change == "DELETED" else self._store.put(record)
        if changed:
            self._on_change(record.identity.namespace, record.identity.fleet)

    def _record(self, found: Object) -> R | None:
        """One object as a record. What one object holds must never end the watch of all the others."""
        try:
            return self._read(found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            where = found.get("metadata") or {}
            named = f"{self._resource.plural} {where.get('namespace')}/{where.get('name')}"
            logger.warning("%s cannot be read and is passed over: %s: %s", named, type(error).__name__, error)
            return None

    def _pause(self, failures: int, error: KubeError) -> float:
        level = logging.WARNING if isinstance(error, RefusedError) or failures == 2 else logging.DEBUG
        logger.log(level, "watching %s fails, trying again: %s", self._resource.plural, error)
        return PAUSES_S[min(failures, len(PAUSES_S) - 1)]


class OptionalWatcher(Watcher[R]):
    """Watches a kind that the API server need not know, since somebody else installs it, or removes it again.

    While it does not, the store is empty and `on_served(False)` has been called, and the API server is asked
    again every `UNSERVED_PAUSE_S`.
    """

    def __init__(self, *args: Any, on_served: Callable[[bool], None]) -> None:
        super().__init__(*args)
        self._on_served = on_served

    async def _list(self) -> str:
        while True:
            try:
                if await self._kube.served(self._resource):
                    version = await super()._list()
                    self._on_served(True)
                    return version
            except NotFoundError:
                logger.debug("%s went away while they were listed", self._resource.plural)
            self._on_served(False)
            self._forget_everything()
            self.synced.set()
            await asyncio.sleep(UNSERVED_PAUSE_S)

    def _forget_everything(self) -> None:
        for known in self._store.everything(self._namespace):
            self._store.remove(known.identity)
            self._on_change(known.identity.namespace, known.identity.fleet)


class Watchers:
    """All watchers of one kind: one for every namespace that is served, over one store."""

    def __init__(self, watchers: Iterable[Watcher[Any]]) -> None:
        self._watchers = tuple(watchers)

    async def run(self) -> None:
        """Run all for ever."""
        await asyncio.gather(*(watcher.run() for watcher in self._watchers))

    async def synced(self) -> Self:
        """Wait until every store holds what the API server has."""
        await asyncio.gather(*(watcher.synced.wait() for watcher in self._watchers))
        return self
