"""Apply: make the API server's objects what was decided, and write nothing when nothing has changed.

An object is applied when it is not there, when what is desired differs from what was last applied, or when
somebody else has changed a field that is ours (the API server then says that we own fewer fields). The first
look after a start applies everything once: an apply that changes nothing is no write on the server.

The policy ConfigMap carries the resource version that the decision was made on, so that a generation never
stands for two contents. Order: what the deletion of pods costs, which counts once there are to be fewer; actuators that
are pruned, the ConfigMap, the other objects, what else is pruned, the counts of pods, and last the pods' annotations,
since those make a kubelet read the ConfigMap. An old actuator goes first, since two of them on one workload hinder each
other, and KEDA refuses to be the second.

Replicas are handed over, never dropped. A workload that is to be applied without `spec.replicas`, while that field is
ours, would fall back to one; so a second field manager applies the live count first. It is bound to the version that
the count was read from, so a count that somebody sets meanwhile is not undone. Which step is next is seen from the
object, so an end between the two is harmless. Back again one step is enough: an apply takes the field as it sets it.

ConfigMaps are never deleted: pods may mount them, and those that only the fleet's own pods mount go with the policy.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefleet_operator.adapters.kube import (
    PODS,
    RESOURCES_BY_KIND,
    ConflictError,
    Kube,
    NotFoundError,
    Object,
    RefusedError,
)
from prefleet_operator.api import Role
from prefleet_operator.app.gather import Cluster
from prefleet_operator.app.records import ChildRecord, PodRecord
from prefleet_operator.render import (
    ACTUATOR_KINDS,
    DELETION_COST_ANNOTATION,
    GENERATION_ANNOTATION,
    KEPT_ANNOTATION,
    SCALE_MANAGER,
    TEMPLATE_FIELDS,
    fleet_labels,
)

logger = logging.getLogger(__name__)

PARALLEL_ANNOTATIONS = 16
PRUNED_KINDS = tuple(kind for kind in RESOURCES_BY_KIND if kind != "ConfigMap")

_IMMUTABLE = "field is immutable"
"""How Kubernetes, and the webhooks of others that use its library, say that a field cannot change."""

ObjectKey = tuple[str, str, str]
"""Kind, namespace and name."""


@dataclass(frozen=True, slots=True)
class _Applied:
    """What was applied for a fleet, and the fields of it that the API server then said are ours."""

    fleet: str
    digest: str
    owned_fields: str


@dataclass(frozen=True, slots=True)
class Changes:
    """What has to be written for one fleet. `scales`: kind and name of a workload, and the replicas that it gets.
    `costs`: by pod, what its deletion costs."""

    namespace: str
    fleet: str
    generation: int
    applies: tuple[Object, ...] = ()
    prunes: tuple[tuple[str, ChildRecord], ...] = ()
    annotate: tuple[str, ...] = ()
    scales: tuple[tuple[str, str, int], ...] = ()
    costs: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.applies or self.prunes or self.annotate or self.scales or self.costs)


class Applier:
    """Remembers what was applied; the memory is only ever a reason not to write."""

    def __init__(self, kube: Kube, cluster: Cluster) -> None:
        self._kube = kube
        self._cluster = cluster
        self._applied: dict[ObjectKey, _Applied] = {}

    def changes(
        self,
        namespace: str,
        fleet: str,
        objects: Sequence[Object],
        annotate: tuple[str, ...],
        generation: int,
        scales: Mapping[Role, int] | None = None,
        costs: Mapping[str, int] | None = None,
        kept: Collection[Role] = (),
    ) -> Changes:
        """What differs between `objects` and what is there. `scales`: by role, the replicas of workloads that are
        applied without any; one that does not exist yet gets those it is applied with. `kept`: roles of which nothing
        is pruned yet."""
        wanted = {_key(desired) for desired in objects}
        children = (
            (kind, child) for kind in PRUNED_KINDS for child in self._cluster.children[kind].of(namespace, fleet)
        )
        return Changes(
            namespace=namespace,
            fleet=fleet,
            generation=generation,
            applies=tuple(desired for desired in objects if not self._is_applied(desired)),
            prunes=tuple(
                (kind, child)
                for kind, child in children
                if child.ours
                and not child.deleting
                and child.role not in kept
                and (kind, namespace, child.identity.name) not in wanted
            ),
            annotate=annotate,
            scales=tuple(self._scales(objects, scales or {})),
            costs=tuple((costs or {}).items()),
        )

    def _scales(self, objects: Sequence[Object], wanted: Mapping[Role, int]) -> Iterator[tuple[str, str, int]]:
        for desired in objects:
            kind, namespace, name = _key(desired)
            record = self._cluster.children[kind].get(namespace, name)
            if kind not in TEMPLATE_FIELDS or record is None or record.role is None or "replicas" in desired["spec"]:
                continue
            count = wanted.get(record.role, record.wanted_pods)
            if count != record.wanted_pods:
                yield kind, name, count

    async def carry_out(self, changes: Changes) -> None:
        """Write. Raises KubeError at the first thing that fails; what was written by then is right and stays."""
        await self._say_costs(changes)
        first = [(kind, child) for kind, child in changes.prunes if kind in ACTUATOR_KINDS]
        for kind, child in first:
            await self._prune(kind, child)
        for desired in changes.applies:
            await self._apply(desired, changes.fleet)
        for kind, child in changes.prunes:
            if (kind, child) not in first:
                await self._prune(kind, child)
        for kind, name, count in changes.scales:
            await self._scale(kind, changes.namespace, name, count)
        generation = {GENERATION_ANNOTATION: str(changes.generation)}
        await self._annotate(changes.namespace, dict.fromkeys(changes.annotate, generation))

    async def let_go(self, namespace: str, fleet: str) -> None:
        """Resume what a gate has paused and a policy that is gone has left to nobody: its deletion orphaned it. Raises
        KubeError. What is still owned goes with its owner."""
        deployments = RESOURCES_BY_KIND["Deployment"]
        for record in self._cluster.children["Deployment"].of(namespace, fleet):
            if not record.held:
                continue
            live = await self._kube.find(deployments, namespace, record.identity.name)
            if live is None or live["metadata"].get("ownerReferences"):
                continue
            bound = {"resourceVersion": live["metadata"]["resourceVersion"]}
            patch = {"metadata": bound, "spec": {"paused": None}}
            answer = await self._kube.merge_patch(deployments, namespace, record.identity.name, patch)
            self._cluster.children["Deployment"].put(ChildRecord.of(answer))
            logger.info("%s/%s: resumed, since its policy has gone and left it", namespace, record.identity.name)

    def forget(self, namespace: str, fleet: str) -> None:
        """Drop the memory of a fleet that is gone."""
        ours = [key for key, applied in self._applied.items() if (key[1], applied.fleet) == (namespace, fleet)]
        for key in ours:
            del self._applied[key]

    def _is_applied(self, desired: Object) -> bool:
        kind, namespace, name = _key(desired)
        record, applied = self._cluster.children[kind].get(namespace, name), self._applied.get(_key(desired))
        if record is None or applied is None:
            return False
        return (applied.digest, applied.owned_fields) == (_digest(desired), record.owned_fields)

    async def _apply(self, desired: Object, fleet: str) -> None:
        kind, namespace, name = _key(desired)
        store, resource = self._cluster.children[kind], RESOURCES_BY_KIND[kind]
        record, body = store.get(namespace, name), desired
        if record is not None and record.identity.fleet != fleet:
            raise RefusedError(
                f"The {kind} {name} is of the policy {record.identity.fleet}: {_other_name(desired)}, "
                "or delete it if that policy is gone and no pod mounts it."
            )
        if record is None:
            await self._refuse_a_stranger(desired, fleet)
        elif kind == "ConfigMap":
            version = {"resourceVersion": str(record.identity.version)}
            body = desired | {"metadata": desired["metadata"] | version}
        try:
            if record is not None and record.holds_replicas and "replicas" not in desired.get("spec", {}):
                await self._hand_replicas_over(desired)
            answer = ChildRecord.of(await self._kube.apply(resource, body))
        except RefusedError as error:
            raise RefusedError(f"The API server refuses the {kind} {name}: {_told(error, desired)}") from error
        store.put(answer)
        self._applied[_key(desired)] = _Applied(fleet, _digest(desired), answer.owned_fields)

    async def _hand_replicas_over(self, desired: Object) -> None:
        """Let the live count be said by another than the manager that is about to leave it out."""
        kind, namespace, name = _key(desired)
        live = await self._kube.find(RESOURCES_BY_KIND[kind], namespace, name)
        if live is None:
            raise ConflictError(f"the {kind} {name} is gone: decide again")
        said = {
            "apiVersion": desired["apiVersion"],
            "kind": kind,
            "metadata": {"namespace": namespace, "name": name, "resourceVersion": live["metadata"]["resourceVersion"]},
            "spec": {"replicas": live["spec"]["replicas"]},
        }
        answer = await self._kube.apply(RESOURCES_BY_KIND[kind], said, manager=SCALE_MANAGER)
        self._cluster.children[kind].put(ChildRecord.of(answer))

    async def _scale(self, kind: str, namespace: str, name: str, count: int) -> None:
        """By the scale subresource, which says nothing else of the workload. What became of it is watched."""
        try:
            patch = {"spec": {"replicas": count}}
            await self._kube.merge_patch(RESOURCES_BY_KIND[kind], namespace, name, patch, "scale")
        except NotFoundError as error:
            raise ConflictError(f"the {kind} {name} is gone: decide again") from error
        except RefusedError as error:
            raise RefusedError(f"The API server refuses to scale the {kind} {name} to {count}: {error}") from error

    async def _refuse_a_stranger(self, desired: Object, fleet: str) -> None:
        """An object of that name may be somebody else's, or ours and not yet heard of."""
        kind, namespace, name = _key(desired)
        found = await self._kube.find(RESOURCES_BY_KIND[kind], namespace, name)
        if found is None:
            return
        labels = found["metadata"].get("labels") or {}
        if not fleet_labels(fleet).items() <= labels.items():
            raise RefusedError(
                f"The {kind} {name} exists and is not of this policy: delete it or {_other_name(desired)}."
            )
        self._cluster.children[kind].put(ChildRecord.of(found))
        raise ConflictError(f"the {kind} {name} is there already: decide again")

    async def _prune(self, kind: str, child: ChildRecord) -> None:
        identity = child.identity
        try:
            await self._kube.delete(RESOURCES_BY_KIND[kind], identity.namespace, identity.name, identity.uid)
        except NotFoundError:
            self._cluster.children[kind].remove(identity)
        self._applied.pop((kind, identity.namespace, identity.name), None)

    async def _say_costs(self, changes: Changes) -> None:
        """A hint: where an admission webhook forbids it, all that matters more goes on without."""
        costs = {pod: {DELETION_COST_ANNOTATION: str(cost)} for pod, cost in changes.costs}
        try:
            await self._annotate(changes.namespace, costs)
        except RefusedError as error:
            told = "%s/%s: pods cannot be told what their deletion costs, so any may go first: %s"
            logger.warning(told, changes.namespace, changes.fleet, error)

    async def _annotate(self, namespace: str, pods: Mapping[str, Mapping[str, str]]) -> None:
        """Annotations by pod; one that is gone needs none."""
        gate = asyncio.Semaphore(PARALLEL_ANNOTATIONS)

        async def annotate(pod: str) -> None:
            patch = {"metadata": {"annotations": dict(pods[pod])}}
            async with gate:
                try:
                    answer = await self._kube.merge_patch(PODS, namespace, pod, patch)
                except NotFoundError:
                    return
                self._cluster.pods.put(PodRecord.of(answer))

        results = await asyncio.gather(*map(annotate, pods), return_exceptions=True)
        for failure in results:
            if failure is not None:
                raise failure


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) that turns `old` into `new`; empty if they are equal."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            nested = merge_patch(before, value)
            if nested:
                patch[key] = nested
        elif value != before:
            patch[key] = value
    return patch


def _other_name(desired: Object) -> str:
    """How to get out of the way of an object of the same name."""
    if KEPT_ANNOTATION in desired["metadata"].get("annotations", {}):
        return "name another in spec.attach.policyConfigMap"
    return "give the policy another name"


def _told(refusal: RefusedError, desired: Object) -> str:
    """The API server's sentence; where it is about a field that cannot change, what is to be done about that."""
    told = str(refusal)
    if _IMMUTABLE not in told:
        return told
    kind, _, name = _key(desired)
    pods = ", and its pods with it," if kind in TEMPLATE_FIELDS else ""
    return f"{told.rstrip('.')}: take the change back, or delete the {kind} {name}{pods} to have it made anew."


def _key(desired: Object) -> ObjectKey:
    metadata = desired["metadata"]
    return desired["kind"], metadata["namespace"], metadata["name"]


def _digest(desired: Object) -> str:
    return hashlib.sha256(json.dumps(desired, sort_keys=True).encode()).hexdigest()
