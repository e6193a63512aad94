"""A reconciler over an API in memory: what the tests of reconciling share."""

from __future__ import annotations

import copy
import json
from typing import Any, cast

from prefleet_operator.adapters.events import Recorder
from prefleet_operator.adapters.kube import (
    RESOURCES_BY_KIND,
    ConflictError,
    Kube,
    NotFoundError,
    Object,
    RefusedError,
    Resource,
)
from prefleet_operator.app.apply import Applier
from prefleet_operator.app.decision import Installation
from prefleet_operator.app.gather import Cluster
from prefleet_operator.app.policies import PolicyIndex, PolicyRecord
from prefleet_operator.app.readings import Readings
from prefleet_operator.app.reconcile import Outcome, Reconciler
from prefleet_operator.app.records import ChildRecord
from prefleet_operator.app.sizings import Sizings
from prefleet_operator.render import FIELD_MANAGER, InstallationDefaults

NOW = 1_700_000_000.0
PINNED: dict[str, Any] = {"threshold": 900, "longMaxWait": "4s"}

POD: Object = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "uid-p",
        "resourceVersion": "5",
        "labels": {"prefleet.dev/fleet": "chat", "prefleet.dev/role": "prefill"},
    },
    "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": None}]},
}
"""A ready one."""


class Killed(BaseException):
    """The process has ended: nothing catches it."""


class MemoryApi:
    """The few calls that reconciling makes, over one dict; versions rise, conflicts and ownership are as real.

    `refuses`: the kind that it applies none of, for the reason `refusal`.
    `fault`: raised in place of the answer to the write of that number, which has been carried out.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.version = 100
        self.writes: list[str] = []
        self.refuses: str | None = None
        self.refusal = "no"
        self.fault: tuple[int, BaseException] | None = None
        self.contents: dict[int, set[str]] = {}

    def add_policy(self, name: str = "chat", **spec: Any) -> Object:
        base = {
            "model": {"source": {"hub": {"repo": "example/model"}}, "servedName": "chat"},
            "engine": {"type": "Simulator"},
            "prefill": {"replicas": 1},
            "decode": {"replicas": 1},
        }
        metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "generation": 1}
        asked = {key: value for key, value in (base | spec).items() if value is not None}
        return self._put("prefillpolicies", {"metadata": metadata, "spec": asked})

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        found = self.objects.get((resource.plural, name))
        if found is None:
            raise NotFoundError(f"{resource.plural} {name} not found")
        return copy.deepcopy(found)

    async def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return copy.deepcopy(self.objects.get((resource.plural, name)))

    async def apply(self, resource: Resource, desired: Object) -> Object:
        if self.refuses == desired["kind"]:
            raise RefusedError(self.refusal)
        live = self.objects.get((resource.plural, desired["metadata"]["name"]))
        self._check(live, desired)
        found = copy.deepcopy(desired)
        annotations: Object = {f"f:{key}": {} for key in desired["metadata"].get("annotations", {})}
        fields: Object = {
            "f:data": {f"f:{key}": {} for key in desired.get("data", {})},
            "f:metadata": {"f:annotations": annotations},
            "f:spec": {"f:paused": {}} if "paused" in desired.get("spec", {}) else {},
        }
        managed = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
        found["metadata"] |= {"uid": f"uid-{resource.plural}-{desired['metadata']['name']}", "managedFields": [managed]}
        answer = copy.deepcopy(self._put(resource.plural, found))
        if desired["kind"] == "ConfigMap":
            document = next(desired["data"][key] for key in ("policy.json", "engine.json") if key in desired["data"])
            self.contents.setdefault(json.loads(document)["generation"], set()).add(document)
        self._wrote(f"apply {desired['kind']} {desired['metadata']['name']}")
        return answer

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, patch: Object, subresource: str | None = None
    ) -> Object:
        live = await self.get(resource, namespace, name)
        self._check(live, patch)
        status = patched(live.get("status") or {}, patch.get("status") or {})
        metadata = patched(live["metadata"], {"annotations": patch.get("metadata", {}).get("annotations", {})})
        parts = {"metadata": metadata, "status": status}
        if subresource is None and "spec" in patch:
            parts["spec"] = patched(live["spec"], patch["spec"])
        answer = copy.deepcopy(self._put(resource.plural, live | parts))
        self._wrote(f"patch {resource.plural} {name} {subresource}")
        return answer

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        del self.objects[(resource.plural, name)]
        self._wrote(f"delete {resource.plural} {name}")

    async def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        self._wrote(f"event {body['reason']}")
        return body

    def _wrote(self, what: str) -> None:
        self.writes.append(what)
        if self.fault is not None and len(self.writes) == self.fault[0]:
            raise self.fault[1]

    def _check(self, live: Object | None, body: Object) -> None:
        version = body["metadata"].get("resourceVersion")
        if version is not None and (live is None or live["metadata"]["resourceVersion"] != version):
            raise ConflictError("the object has been modified")

    def _put(self, plural: str, found: Object) -> Object:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self.objects[(plural, found["metadata"]["name"])] = found
        return found


def patched(old: Object, patch: Object) -> Object:
    result = dict(old)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = patched(result[key], value)
        else:
            result[key] = value
    return result


class World:
    """A reconciler and the API under it. `now`: what the reconciler takes for the time."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.cluster = Cluster()
        self.policies = PolicyIndex()
        self.outcomes: list[Outcome] = []
        self.applier: Applier
        self.runtime_image = "runtime:1"
        self.now = NOW
        self.prometheus: dict[str, str] = {}
        self.restart()

    def restart(self) -> None:
        """Another process: what was watched is known again, what was remembered is not."""
        kube = cast(Kube, self.api)
        self.applier = Applier(kube, self.cluster)
        self.readings = Readings()
        self.sizings = Sizings()
        self.reconciler = Reconciler(
            kube=kube,
            policies=self.policies,
            cluster=self.cluster,
            readings=self.readings,
            sizings=self.sizings,
            applier=self.applier,
            recorder=Recorder(kube, "test", lambda: self.now),
            installation=Installation(InstallationDefaults(self.runtime_image, self.prometheus), ("PodScrape",), "1.0"),
            now=lambda: self.now,
            count=self.outcomes.append,
        )

    def rewatch(self) -> None:
        """The watchers and kopf have caught up with everything."""
        for kind, store in self.cluster.children.items():
            plural = RESOURCES_BY_KIND[kind].plural
            live = {name: found for (where, name), found in self.api.objects.items() if where == plural}
            for record in store.everything("ns"):
                if record.identity.name not in live:
                    store.remove(record.identity)
            for found in live.values():
                store.put(ChildRecord.of(copy.deepcopy(found)))
        self.watch()

    def watch(self, name: str = "chat") -> None:
        """kopf tells of the policy as it is."""
        self.policies.put(PolicyRecord.of(copy.deepcopy(self.api.objects[("prefillpolicies", name)])))

    async def turn(self, name: str = "chat") -> list[str]:
        """One turn; what it wrote."""
        before = len(self.api.writes)
        await self.reconciler.reconcile(("ns", name))
        return self.api.writes[before:]

    def status(self, name: str = "chat") -> dict[str, tuple[str, str]]:
        found = self.api.objects[("prefillpolicies", name)].get("status") or {}
        return {c["type"]: (c["status"], c["reason"]) for c in found.get("conditions", ())}
