"""Watching the pods that policies attach.

Attached pods carry no label of ours, so each attached role has a list and watch of its own, in the policy's namespace
and with the policy's selector: the API server does the matching, and of a namespace's other pods nothing is ever read
or kept. They start and end with the policies, and a changed selector starts anew. A spec that cannot be parsed changes
nothing: the pods stay those of the last one that could.

A policy is decided about once its pods, and those of the other attaching policies of its namespace, have been listed
(or the API server refuses to, which is then the reason why the one that asks for them is not accepted).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping
from dataclasses import dataclass

from prefleet_operator.adapters.watch import Store, Watcher
from prefleet_operator.api import InvalidSpecError, PrefillPolicySpec, Role, parse_spec
from prefleet_operator.app.gather import AttachedPods, Cluster
from prefleet_operator.app.policies import PolicyRecord
from prefleet_operator.app.records import PodRecord
from prefleet_operator.app.workqueue import Key

Changed = Callable[[str, str], None]
WatchPods = Callable[[str, str, Store[PodRecord], Changed], Watcher[PodRecord]]
"""Makes the watcher of the pods of a namespace that match a selector."""


@dataclass(frozen=True, slots=True)
class _Followed:
    """What is watched for one policy."""

    uid: str
    selectors: Mapping[Role, str]
    tasks: tuple[asyncio.Task[None], ...]


class Attachments:
    """Keeps `cluster.attached` in step with the policies. `mark` has a policy looked at, `mark_all` all policies of a
    namespace."""

    def __init__(
        self,
        cluster: Cluster,
        watch_pods: WatchPods,
        mark: Callable[[Key], None],
        mark_all: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._watch_pods = watch_pods
        self._mark = mark
        self._mark_all = mark_all
        self._followed: dict[Key, _Followed] = {}
        self._faults: asyncio.Queue[BaseException] = asyncio.Queue()

    def follow(self, policy: PolicyRecord) -> None:
        """Watch what the policy attaches, and no longer what it does not."""
        try:
            selectors = selectors_of(parse_spec(policy.spec))
        except InvalidSpecError:
            return
        known = self._followed.get(policy.key)
        if known is None and not selectors:
            return
        if known is not None and (known.uid, known.selectors) == (policy.uid, selectors):
            return
        self.drop(policy.key)
        if selectors:
            self._start(policy, selectors)

    def drop(self, key: Key) -> None:
        """Stop watching for a policy."""
        followed = self._followed.pop(key, None)
        self._cluster.attached.pop(key, None)
        for task in followed.tasks if followed is not None else ():
            task.cancel()

    def keep(self, keys: Container[Key]) -> None:
        """Stop watching for all policies but these."""
        for key in [key for key in self._followed if key not in keys]:
            self.drop(key)

    async def run(self) -> None:
        """Until one of the watchers fails, which none should: its error is raised."""
        try:
            raise await self._faults.get()
        finally:
            self.keep(())

    def _start(self, policy: PolicyRecord, selectors: Mapping[Role, str]) -> None:
        stores: dict[Role, Store[PodRecord]] = {role: Store() for role in selectors}
        watchers = [self._watch(policy.key, selector, stores[role]) for role, selector in selectors.items()]
        self._cluster.attached[policy.key] = AttachedPods(stores, tuple(watchers))
        tasks = [self._task(watcher.run()) for watcher in watchers]
        tasks.append(self._task(self._tell_when_known(policy.namespace, watchers)))
        self._followed[policy.key] = _Followed(policy.uid, selectors, tuple(tasks))

    def _watch(self, key: Key, selector: str, store: Store[PodRecord]) -> Watcher[PodRecord]:
        return self._watch_pods(key[0], selector, store, lambda *_: self._mark(key))

    async def _tell_when_known(self, namespace: str, watchers: Iterable[Watcher[PodRecord]]) -> None:
        for watcher in watchers:
            await watcher.synced.wait()
        self._mark_all(namespace)

    def _task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._note)
        return task

    def _note(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._faults.put_nowait(fault)


def selectors_of(spec: PrefillPolicySpec) -> dict[Role, str]:
    """The selectors of a spec, as the API server takes them; empty if it attaches nothing."""
    return {role: attached.pod_selector.text for role, attached in spec.attached_roles().items()}
