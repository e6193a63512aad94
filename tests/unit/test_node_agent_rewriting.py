"""The node agent's rewrites of text: variables, mount paths, the any-address."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.node_agent.rewriting import expand, map_any_address, map_paths, map_service_names

VARIABLES = {"PORT": "8000", "HOST": "0.0.0.0", "EMPTY": ""}

MOUNTS = {
    "/data": Path("/pod/volumes/data"),
    "/etc/policy": Path("/pod/volumes/policy"),
    "/etc/policy/extra": Path("/pod/volumes/extra"),
    "/opt/runtime": Path("/pod/volumes/runtime"),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("--port=$(PORT)", "--port=8000", id="a reference inside a flag is replaced"),
        pytest.param("$(HOST):$(PORT)", "0.0.0.0:8000", id="every reference is replaced"),
        pytest.param("$(EMPTY)", "", id="an empty value is a value"),
        pytest.param("$(MISSING)", "$(MISSING)", id="an unknown name stays as it is"),
        pytest.param("$$(PORT)", "$(PORT)", id="a doubled dollar escapes a reference"),
        pytest.param("$PORT ${PORT}", "$PORT ${PORT}", id="the shell's own forms are left to the shell"),
        pytest.param("$(PORT", "$(PORT", id="an open reference is text"),
    ],
)
def test_references_expand_as_kubernetes_expands_them(text: str, expected: str) -> None:
    assert expand(text, VARIABLES) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("/data", "/pod/volumes/data", id="the mount path itself"),
        pytest.param("/data/a/b", "/pod/volumes/data/a/b", id="a file below it"),
        pytest.param("--file=/data/a", "--file=/pod/volumes/data/a", id="after an equals sign"),
        pytest.param(
            '{"f": {"p": "/etc/policy/p.json", "n": 1}}',
            '{"f": {"p": "/pod/volumes/policy/p.json", "n": 1}}',
            id="inside JSON",
        ),
        pytest.param(
            "/opt/runtime:/data:/usr/lib", "/pod/volumes/runtime:/pod/volumes/data:/usr/lib", id="in a search path"
        ),
        pytest.param("/etc/policy/extra/x", "/pod/volumes/extra/x", id="the longest mount wins"),
        pytest.param("/etc/policy/extras", "/pod/volumes/policy/extras", id="not half a name of a nested mount"),
        pytest.param("file:///data/x", "file:///pod/volumes/data/x", id="a file URL"),
        pytest.param("cp /data/a /data/b", "cp /pod/volumes/data/a /pod/volumes/data/b", id="in a shell script"),
        pytest.param("/database", "/database", id="a longer name is another path"),
        pytest.param("/data-2/x", "/data-2/x", id="a name with a dash is another path"),
        pytest.param("/data.json", "/data.json", id="a name with a dot is another path"),
        pytest.param("/mnt/data", "/mnt/data", id="the end of another path is left alone"),
        pytest.param("http://host/data/x", "http://host/data/x", id="the path of a URL is left alone"),
        pytest.param("../data/x", "../data/x", id="a relative path is left alone"),
    ],
)
def test_mount_paths_are_mapped_at_path_boundaries(text: str, expected: str) -> None:
    assert map_paths(text, MOUNTS) == expected


def test_a_mapped_path_is_not_mapped_again() -> None:
    assert map_paths("/tmp/x", {"/tmp": Path("/tmp/agent/pod")}) == "/tmp/agent/pod/x"


def test_without_mounts_text_stays() -> None:
    assert map_paths("/data", {}) == "/data"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("0.0.0.0", "127.32.0.7", id="alone"),
        pytest.param("--host=0.0.0.0", "--host=127.32.0.7", id="in a flag"),
        pytest.param('{"host": "0.0.0.0"}', '{"host": "127.32.0.7"}', id="in JSON"),
        pytest.param("0.0.0.0:8000", "127.32.0.7:8000", id="with a port"),
        pytest.param("http://0.0.0.0:80/healthz", "http://127.32.0.7:80/healthz", id="in a URL"),
        pytest.param("serve --host 0.0.0.0 &", "serve --host 127.32.0.7 &", id="in a shell script"),
        pytest.param("0.0.0.0/0", "0.0.0.0/0", id="a network is not an address"),
        pytest.param("10.0.0.0", "10.0.0.0", id="the end of another address is left alone"),
        pytest.param("0.0.0.0.1", "0.0.0.0.1", id="a longer version number is left alone"),
        pytest.param("v0.0.0.0", "v0.0.0.0", id="a version is left alone"),
    ],
)
def test_the_any_address_becomes_the_pods_own(text: str, expected: str) -> None:
    assert map_any_address(text, "127.32.0.7") == expected


SERVICES = {"chat-prefill.serving.svc": "127.96.0.7"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("http://chat-prefill.serving.svc:8000", "http://127.96.0.7:8000", id="in a URL"),
        pytest.param("chat-prefill.serving.svc.cluster.local", "127.96.0.7", id="with the cluster's domain"),
        pytest.param(
            "http://chat-prefill.serving.svc.example.com",
            "http://chat-prefill.serving.svc.example.com",
            id="another domain is somebody else's",
        ),
        pytest.param("http://a-chat-prefill.serving.svc/", "http://a-chat-prefill.serving.svc/", id="unknown"),
        pytest.param("file.chat-prefill.serving.svc", "file.chat-prefill.serving.svc", id="part of a longer name"),
    ],
)
def test_the_names_of_services_become_their_addresses(text: str, expected: str) -> None:
    assert map_service_names(text, SERVICES) == expected
