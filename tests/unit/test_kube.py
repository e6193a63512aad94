"""The API adapter without an API: credentials that rotate, paths, and which failure is which exception."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client import Configuration
from prefleet_operator.adapters.kube import (
    DEPLOYMENTS,
    PODS,
    POLICIES,
    TOKEN_REFRESH_S,
    ConflictError,
    GoneError,
    KubeError,
    NotFoundError,
    RefusedError,
    TerminatingError,
    TokenFile,
    UnavailableError,
    find_token_file,
    to_error,
)


def kubeconfig(path: Path, user: dict[str, Any], current: str | None = "here") -> str:
    content = {
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


TERMINATING = json.dumps({"message": "no", "details": {"causes": [{"reason": "NamespaceTerminating"}]}})


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        pytest.param(404, "{}", NotFoundError, id="not found"),
        pytest.param(409, "{}", ConflictError, id="conflict"),
        pytest.param(410, "{}", GoneError, id="gone"),
        pytest.param(401, "{}", UnavailableError, id="an expired token is renewed and tried again"),
        pytest.param(429, "{}", UnavailableError, id="too many requests"),
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
