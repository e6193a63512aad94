"""A pod's volumes: which folder stands for each, and what a kubelet would put there.

emptyDir and hostPath are folders, and so is a persistentVolumeClaim whose volume is a hostPath. configMap, secret,
downwardAPI and projected volumes are *published*: their files are gathered and swung in atomically (`atomic`), again
on every `refresh`, whose moments are the caller's to choose.
Service account tokens come from the TokenRequest API, bound to the pod, and are renewed by a refresh once 80% of
their life is over. Objects are read one by one by name, which is all that a node may do.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from tests.support.node_agent.api import Api, ApiError, Json
from tests.support.node_agent.atomic import FileContent, write_atomically
from tests.support.node_agent.fields import field_value

_RENEW_AFTER = 0.8
_PUBLISHED = ("configMap", "secret", "downwardAPI", "projected")

Files = dict[str, FileContent]


class VolumeError(Exception):
    """A volume cannot be provided (yet); a sentence for the pod's events."""


class Volumes:
    """All volumes of one pod, below `folder`. `pod` answers with the pod as last seen."""

    def __init__(self, api: Api, pod: Callable[[], Json], folder: Path) -> None:
        self._api = api
        self._pod = pod
        self._folder = folder
        self._tokens: dict[tuple[str, int], tuple[str, datetime]] = {}
        self._claimed: dict[str, Path] = {}

    def path(self, name: str) -> Path:
        if name in self._claimed:
            return self._claimed[name]
        host_path = self._named(name).get("hostPath")
        return Path(host_path["path"]) if host_path else self._folder / name

    def is_published(self, name: str) -> bool:
        return any(kind in self._named(name) for kind in _PUBLISHED)

    def token_source(self, name: str) -> Json | None:
        """The volume's serviceAccountToken source, if it has one."""
        sources = self._named(name).get("projected", {}).get("sources", [])
        found = (source["serviceAccountToken"] for source in sources if "serviceAccountToken" in source)
        return next(found, None)

    async def mount(self, now: datetime) -> None:
        """Provides every volume; raises VolumeError."""
        for volume in self._all():
            if claim := volume.get("persistentVolumeClaim"):
                self._claimed[volume["name"]] = await self._folder_of(claim["claimName"])
            self._make_folder(volume)
        await self.refresh(now)

    async def refresh(self, now: datetime) -> None:
        """Brings the published volumes up to date; raises VolumeError for the first that cannot be."""
        for volume in self._all():
            if self.is_published(volume["name"]):
                files = await self._files(volume, now)
                stamp = now.strftime("%Y_%m_%d_%H_%M_%S.%f")
                write_atomically(self._folder / volume["name"], files, stamp)

    def _all(self) -> list[Json]:
        return list(self._pod()["spec"].get("volumes", []))

    def _named(self, name: str) -> Json:
        return next((volume for volume in self._all() if volume["name"] == name), {})

    def _make_folder(self, volume: Json) -> None:
        kinds = volume.keys() - {"name"}
        if not kinds & {"emptyDir", "hostPath", "persistentVolumeClaim", *_PUBLISHED}:
            raise VolumeError(
                f"volume {volume['name']} is of kind {', '.join(sorted(kinds))}, which this node does not provide; "
                f"use emptyDir, hostPath, persistentVolumeClaim, {', '.join(_PUBLISHED)}"
            )
        if "persistentVolumeClaim" in kinds or volume.get("hostPath", {}).get("type") not in (
            None,
            "",
            "DirectoryOrCreate",
        ):
            return
        self.path(volume["name"]).mkdir(parents=True, exist_ok=True)

    async def _folder_of(self, claim: str) -> Path:
        """The folder that a bound claim stands for."""
        namespace = self._pod()["metadata"]["namespace"]
        try:
            bound = await self._api.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")
            name = bound["spec"].get("volumeName")
            if not name:
                raise VolumeError(f"claim {claim} is not bound to a volume yet")
            volume = await self._api.get(f"/api/v1/persistentvolumes/{name}")
        except ApiError as error:
            raise VolumeError(f"claim {claim} could not be read: {error}") from error
        host_path = volume["spec"].get("hostPath")
        if host_path is None:
            raise VolumeError(f"volume {name} of claim {claim} is no hostPath, and this node provides no other")
        return Path(host_path["path"])

    async def _files(self, volume: Json, now: datetime) -> Files:
        if "projected" in volume:
            return await self._projected(volume["name"], volume["projected"], now)
        kind = next(kind for kind in _PUBLISHED if kind in volume)
        return await self._source(kind, volume[kind], volume[kind].get("defaultMode", 0o644))

    async def _projected(self, name: str, projected: Json, now: datetime) -> Files:
        mode = projected.get("defaultMode", 0o644)
        files: Files = {}
        for number, source in enumerate(projected.get("sources", [])):
            if wanted := source.get("serviceAccountToken"):
                token = await self._token((name, number), wanted, now)
                files[wanted["path"]] = FileContent(token.encode(), 0o600)
                continue
            kind = next((kind for kind in _PUBLISHED if kind in source), None)
            if kind is None:
                raise VolumeError(f"volume {name} projects {', '.join(source)}, which this node does not provide")
            files |= await self._source(kind, source[kind], mode)
        return files

    async def _source(self, kind: str, source: Json, mode: int) -> Files:
        if kind == "downwardAPI":
            return {
                item["path"]: FileContent(self._field(item).encode(), item.get("mode", mode))
                for item in source.get("items", [])
            }
        name = source.get("name") or source.get("secretName", "")
        data = await self._data(kind, name, optional=source.get("optional", False))
        items = source.get("items") or [{"key": key, "path": key} for key in data]
        missing = [item["key"] for item in items if item["key"] not in data]
        if missing and not source.get("optional"):
            raise VolumeError(f"{kind} {name} has no key {missing[0]}; it has {', '.join(sorted(data)) or 'none'}")
        return {
            item["path"]: FileContent(data[item["key"]], item.get("mode", mode))
            for item in items
            if item["key"] in data
        }

    def _field(self, item: Json) -> str:
        if "fieldRef" not in item:
            raise VolumeError(f"the file {item['path']} takes resourceFieldRef, which this node does not provide")
        return field_value(self._pod(), item["fieldRef"]["fieldPath"])

    async def _data(self, kind: str, name: str, *, optional: bool) -> dict[str, bytes]:
        plural = {"configMap": "configmaps", "secret": "secrets"}[kind]
        namespace = self._pod()["metadata"]["namespace"]
        try:
            return object_data(await self._api.get(f"/api/v1/namespaces/{namespace}/{plural}/{name}"))
        except ApiError as error:
            if error.status == 404 and optional:
                return {}
            raise VolumeError(f"{kind} {name} could not be read: {error}") from error

    async def _token(self, source: tuple[str, int], wanted: Json, now: datetime) -> str:
        token, renew_at = self._tokens.get(source, ("", now))
        if now < renew_at:
            return token
        metadata, spec = self._pod()["metadata"], self._pod()["spec"]
        account = spec.get("serviceAccountName", "default")
        body = {
            "spec": {
                "audiences": [wanted["audience"]] if wanted.get("audience") else [],
                "expirationSeconds": wanted.get("expirationSeconds", 3600),
                "boundObjectRef": {
                    "kind": "Pod",
                    "apiVersion": "v1",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            }
        }
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        try:
            status = (await self._api.request("POST", path, body))["status"]
        except ApiError as error:
            raise VolumeError(f"no token for service account {account}: {error}") from error
        expires = datetime.fromisoformat(status["expirationTimestamp"])
        self._tokens[source] = (status["token"], now + (expires - now) * _RENEW_AFTER)
        return str(status["token"])


def object_data(item: Json) -> dict[str, bytes]:
    """The content of a ConfigMap or a Secret by key."""
    encoded = {**item.get("binaryData", {})}
    plain = item.get("data", {})
    if item.get("kind") == "Secret":
        encoded, plain = {**plain}, {}
    return {key: text.encode() for key, text in plain.items()} | {
        key: base64.b64decode(text) for key, text in encoded.items()
    }
