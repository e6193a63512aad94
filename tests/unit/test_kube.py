"""The API adapter without an API: credentials that rotate, paths, and which failure is which exception."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client import ApiClient, Configuration
from prefleet_operator.adapters.kube import (
    DEPLOYMENTS,
    MAX_MESSAGE,
    PODS,
    POLICIES,
    TOKEN_REFRESH_S,
    WRITE_TIMEOUT_S,
    ConflictError,
    GoneError,
    Kube,
    KubeError,
    NotFoundError,
    RefusedError,
    TerminatingError,
    TokenFile,
    UnavailableError,
    connect,
    find_token_file,
    to_error,
    until_answered,
    whole_lines,
)

WAITS_TO_BE_SENT = 1_000_000
"""Bytes, more than a server that does not read takes in."""
SLACK_S = 1.0
"""In which a kernel notices that a connection's time is over."""


def kubeconfig(
    path: Path, user: dict[str, Any], current: str | None = "here", cluster: dict[str, str] | None = None
) -> str:
    content = {
        "clusters": [{"name": "c", "cluster": cluster or {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "me"}}],
        "users": [{"name": "other", "user": {"tokenFile": "wrong"}}, {"name": "me", "user": user}],
    }
    path.write_text(json.dumps(content | ({"current-context": current} if current else {})))
    return str(path)


def test_a_token_file_is_found_beside_the_kubeconfig_that_names_it(tmp_path: Path) -> None:
    location = kubeconfig(tmp_path / "config", {"tokenFile": "token"})
    assert find_token_file(location) == tmp_path / "token"


def test_an_absolute_token_file_stays_as_it_is(tmp_path: Path) -> None:
    location = kubeconfig(tmp_path / "config", {"tokenFile": "/var/run/token"})
    assert find_token_file(location) == Path("/var/run/token")


def test_of_several_kubeconfigs_the_first_current_context_wins(tmp_path: Path) -> None:
    first = kubeconfig(tmp_path / "first", {"token": "inline"})
    second = kubeconfig(tmp_path / "second", {"tokenFile": "token"}, current=None)
    assert find_token_file(os.pathsep.join((first, "/not/there", second))) == tmp_path / "token"


def test_a_user_without_a_token_file_has_none(tmp_path: Path) -> None:
    assert find_token_file(kubeconfig(tmp_path / "config", {"client-certificate": "x"})) is None


def test_a_rotated_token_is_read_within_a_minute(tmp_path: Path) -> None:
    now = 0.0
    path, configuration = tmp_path / "token", Configuration()
    token = TokenFile(path, clock=lambda: now)
    path.write_text("one\n")
    token.refresh(configuration)
    path.write_text("two\n")
    token.refresh(configuration)
    assert configuration.api_key["BearerToken"] == "Bearer one"
    now = TOKEN_REFRESH_S
    token.refresh(configuration)
    assert configuration.api_key["BearerToken"] == "Bearer two"


UNKNOWN_FIELD = '{"message": "failed to create typed patch object (ns/a): .spec.b: field not declared in schema"}'
TERMINATING = json.dumps({"message": "no", "details": {"causes": [{"reason": "NamespaceTerminating"}]}})


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        pytest.param(404, "{}", NotFoundError, id="not found"),
        pytest.param(409, "{}", ConflictError, id="conflict"),
        pytest.param(410, "{}", GoneError, id="gone"),
        pytest.param(401, "{}", UnavailableError, id="an expired token is renewed and tried again"),
        pytest.param(429, "{}", UnavailableError, id="too many requests"),
        pytest.param(500, UNKNOWN_FIELD, RefusedError, id="an apply of a field that this release does not know"),
        pytest.param(500, '{"message": "etcd"}', UnavailableError, id="a fault of the server's own"),
        pytest.param(503, "not json", UnavailableError, id="a proxy's error page"),
        pytest.param(403, '{"message": "no rights"}', RefusedError, id="forbidden"),
        pytest.param(403, TERMINATING, TerminatingError, id="a namespace that is going"),
        pytest.param(422, '{"message": "invalid"}', RefusedError, id="invalid"),
    ],
)
def test_failures_by_status(status: int, body: str, kind: type[KubeError]) -> None:
    assert type(to_error(status, body.encode())) is kind


def test_the_message_is_the_servers_sentence() -> None:
    assert str(to_error(422, b'{"message": "spec.replicas: Invalid value"}')) == "spec.replicas: Invalid value"
    assert str(to_error(502, b"")) == "HTTP 502"


def test_paths() -> None:
    assert PODS.path(None) == "/api/v1/pods"
    assert DEPLOYMENTS.path("ns", "x") == "/apis/apps/v1/namespaces/ns/deployments/x"
    assert POLICIES.path("ns", "x", "status") == "/apis/prefleet.dev/v1alpha1/namespaces/ns/prefillpolicies/x/status"


def test_a_sentence_of_the_servers_is_bounded() -> None:
    assert len(str(to_error(422, json.dumps({"message": "x" * 100_000}).encode()))) == MAX_MESSAGE


async def test_lines_of_a_watch_are_whole_however_long_and_however_cut() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b"on", b"e\ntwo\n", b"x" * 5_000_000, b"x" * 5_000_000, b"\ncut off"):
            yield chunk

    assert [len(line) async for line in whole_lines(chunks())] == [3, 3, 10_000_000]


async def test_the_server_gives_a_write_up_when_we_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a write that hangs in the server could come to pass after another operator has begun to lead."""
    kube, sent = Kube(ApiClient(Configuration()), "prefleet"), []

    async def request(*given: Any) -> dict[str, Any]:
        sent.append(given)
        return {}

    monkeypatch.setattr(kube, "_request", request)
    await kube.delete(PODS, "ns", "x", "uid")
    await kube.merge_patch(PODS, "ns", "x", {})
    await kube.close()
    assert [given[2]["timeout"] for given in sent] == [f"{WRITE_TIMEOUT_S}s"] * 2


async def test_any_number_of_watches_leaves_connections_for_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each watch holds its connection, and the client's own bound of 100 would be one on all requests together."""
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "config", {"token": "t"}))
    kube = await connect("prefleet")
    try:
        assert kube._client.rest_client.maxsize == 0  # as aiohttp counts: no bound
    finally:
        await kube.close()


async def test_a_write_that_is_given_up_never_arrives_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As through a network that comes back: what still waits to be sent would be the write of a leader that is none."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.bind(("127.0.0.1", 0))
        server.listen()
        config = {"server": f"http://127.0.0.1:{server.getsockname()[1]}"}
        monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "config", {"token": "t"}, cluster=config))
        kube = await connect("prefleet")
        try:
            with pytest.raises(UnavailableError, match=r"/pods: no answer within 2\.5 s"):
                await kube.create(PODS, "ns", {"data": "x" * WAITS_TO_BE_SENT})
            await asyncio.sleep(SLACK_S)
            arrived = await asyncio.to_thread(read_all, server)
        finally:
            await kube.close()
    assert arrived < WAITS_TO_BE_SENT


def read_all(server: socket.socket) -> int:
    """Bytes of the first connection, until it ends or says nothing more."""
    connection, _ = server.accept()
    with connection:
        connection.settimeout(5)
        total = 0
        try:
            while chunk := connection.recv(65536):
                total += len(chunk)
        except ConnectionResetError:
            pass
        return total


async def test_who_waits_for_the_api_server_says_so_without_a_flood(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pod that is up, ready and silent tells nobody that it reaches no API server."""
    answers = iter([UnavailableError("no route to host")] * 12)

    async def ask() -> str:
        if (error := next(answers, None)) is not None:
            raise error
        return "here"

    async def sleep(_: float) -> None:
        return None

    monkeypatch.setattr("asyncio.sleep", sleep)
    assert await until_answered(ask) == "here"
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["the API server is not to be had, trying again: no route to host"] * 2
