"""The node agent's published files, and the volumes made of them."""

from __future__ import annotations

import base64
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.node_agent.api import Api, ApiError
from tests.support.node_agent.atomic import FileContent, write_atomically
from tests.support.node_agent.volumes import VolumeError, Volumes

Json = dict[str, Any]

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def _visible(folder: Path) -> dict[str, str]:
    names = (entry.name for entry in folder.iterdir() if not entry.name.startswith(".."))
    return {name: (folder / name).read_text() for name in names}


def test_a_new_state_replaces_the_old_one_by_one_swing(tmp_path: Path) -> None:
    assert write_atomically(tmp_path, {"a": FileContent(b"1"), "b": FileContent(b"1")}, "one")
    held = (tmp_path / "a").open()
    assert write_atomically(tmp_path, {"a": FileContent(b"2"), "c": FileContent(b"2")}, "two")
    assert _visible(tmp_path) == {"a": "2", "c": "2"}
    assert os.readlink(tmp_path / "..data") == "..two"
    assert held.read() == "1", "a reader keeps the state that it opened"
    held.close()
    assert not (tmp_path / "..one").exists()


def test_nothing_is_touched_when_nothing_changed(tmp_path: Path) -> None:
    files = {"a": FileContent(b"1"), "deep/b": FileContent(b"1", 0o600)}
    write_atomically(tmp_path, files, "one")
    assert not write_atomically(tmp_path, files, "two")
    assert os.readlink(tmp_path / "..data") == "..one"


def test_a_mode_is_part_of_the_state(tmp_path: Path) -> None:
    write_atomically(tmp_path, {"a": FileContent(b"1")}, "one")
    assert write_atomically(tmp_path, {"a": FileContent(b"1", 0o600)}, "two")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


class FakeApi:
    """Serves objects by path, and counts the tokens it made."""

    def __init__(self, objects: dict[str, Json]) -> None:
        self.objects = objects
        self.tokens: list[Json] = []

    async def get(self, path: str) -> Json:
        if path not in self.objects:
            raise ApiError(404, f"{path} not found")
        return self.objects[path]

    async def request(self, method: str, path: str, body: Json) -> Json:
        assert (method, path) == ("POST", "/api/v1/namespaces/n/serviceaccounts/sa/token")
        self.tokens.append(body["spec"])
        expires = NOW + timedelta(seconds=body["spec"]["expirationSeconds"])
        return {"status": {"token": f"token-{len(self.tokens)}", "expirationTimestamp": expires.isoformat()}}


CONFIG_MAP = {"kind": "ConfigMap", "data": {"a": "1", "b": "2"}, "binaryData": {"c": "Mw=="}}
SECRET = {"kind": "Secret", "data": {"password": base64.b64encode(b"hush").decode()}}
OBJECTS = {
    "/api/v1/namespaces/n/configmaps/conf": CONFIG_MAP,
    "/api/v1/namespaces/n/secrets/secret": SECRET,
    "/api/v1/namespaces/n/persistentvolumeclaims/models": {"spec": {"volumeName": "near"}},
    "/api/v1/namespaces/n/persistentvolumeclaims/pending": {"spec": {}},
    "/api/v1/namespaces/n/persistentvolumeclaims/remote": {"spec": {"volumeName": "far"}},
    "/api/v1/persistentvolumes/near": {"spec": {"hostPath": {"path": "/models"}}},
    "/api/v1/persistentvolumes/far": {"spec": {"nfs": {}}},
}


def _volumes(folder: Path, api: FakeApi, **volume: Any) -> Volumes:
    pod = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"app": "web"}},
        "spec": {"serviceAccountName": "sa", "volumes": [{"name": "v", **volume}]},
    }
    return Volumes(cast(Api, api), lambda: pod, folder)


@pytest.mark.parametrize(
    ("volume", "files"),
    [
        pytest.param({"configMap": {"name": "conf"}}, {"a": "1", "b": "2", "c": "3"}, id="a whole ConfigMap"),
        pytest.param(
            {"configMap": {"name": "conf", "items": [{"key": "a", "path": "x"}]}}, {"x": "1"}, id="chosen keys"
        ),
        pytest.param({"configMap": {"name": "none", "optional": True}}, {}, id="an optional one that is missing"),
        pytest.param({"secret": {"secretName": "secret"}}, {"password": "hush"}, id="a Secret"),
        pytest.param(
            {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"labels": 'app="web"'},
            id="the downward API",
        ),
        pytest.param(
            {
                "projected": {
                    "sources": [
                        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                        {"configMap": {"name": "conf", "items": [{"key": "a", "path": "ca.crt"}]}},
                    ]
                }
            },
            {"token": "token-1", "ca.crt": "1"},
            id="a projection of several",
        ),
        pytest.param({"emptyDir": {}}, {}, id="an empty folder"),
    ],
)
async def test_volumes_hold_what_their_sources_say(volume: Json, files: dict[str, str], tmp_path: Path) -> None:
    await _volumes(tmp_path, FakeApi(OBJECTS), **volume).mount(NOW)
    assert _visible(tmp_path / "v") == files


@pytest.mark.parametrize(
    ("volume", "sentence"),
    [
        pytest.param(
            {"configMap": {"name": "none"}}, "configMap none could not be read", id="a ConfigMap that is missing"
        ),
        pytest.param(
            {"configMap": {"name": "conf", "items": [{"key": "z", "path": "z"}]}},
            "configMap conf has no key z; it has a, b, c",
            id="a key that is missing",
        ),
        pytest.param(
            {"nfs": {"server": "s", "path": "/"}},
            "volume v is of kind nfs, which this node does not provide",
            id="a kind that is not provided",
        ),
        pytest.param(
            {"persistentVolumeClaim": {"claimName": "none"}},
            "claim none could not be read",
            id="a claim that is missing",
        ),
        pytest.param(
            {"persistentVolumeClaim": {"claimName": "pending"}},
            "claim pending is not bound to a volume yet",
            id="a claim without a volume",
        ),
        pytest.param(
            {"persistentVolumeClaim": {"claimName": "remote"}},
            "volume far of claim remote is no hostPath",
            id="a claim on what is no folder",
        ),
    ],
)
async def test_a_volume_that_cannot_be_provided_is_said_in_a_sentence(
    volume: Json, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(VolumeError, match=sentence):
        await _volumes(tmp_path, FakeApi(OBJECTS), **volume).mount(NOW)


async def test_a_claim_is_the_folder_of_its_volume(tmp_path: Path) -> None:
    volumes = _volumes(tmp_path, FakeApi(OBJECTS), persistentVolumeClaim={"claimName": "models"})
    await volumes.mount(NOW)
    assert volumes.path("v") == Path("/models")


async def test_a_token_is_renewed_when_four_fifths_of_its_life_are_over(tmp_path: Path) -> None:
    api = FakeApi({})
    source = {"serviceAccountToken": {"path": "token", "expirationSeconds": 1000}}
    volumes = _volumes(tmp_path, api, projected={"sources": [source]})
    await volumes.mount(NOW)
    await volumes.refresh(NOW + timedelta(seconds=799))
    assert (tmp_path / "v" / "token").read_text() == "token-1"
    await volumes.refresh(NOW + timedelta(seconds=801))
    assert (tmp_path / "v" / "token").read_text() == "token-2"
    assert api.tokens[0]["boundObjectRef"] == {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "u"}
