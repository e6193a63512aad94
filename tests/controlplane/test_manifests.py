"""The golden manifests on the real API server: every field is known to it and every object valid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.golden.cases import CASES, golden_file
from tests.support import leader_worker_set, scaled_object
from tests.support.bad_pod_templates import BAD_LEAVES, BadLeaf
from tests.support.plane.plane import ControlPlane, KubectlFailed

pytestmark = pytest.mark.controlplane


@pytest.fixture(scope="module", autouse=True)
def kinds_of_others(plane: ControlPlane) -> Iterator[None]:
    with leader_worker_set.served(plane), scaled_object.served(plane):
        yield


@pytest.mark.parametrize("case", CASES)
def test_the_api_server_takes_the_golden_manifests(plane: ControlPlane, namespace: str, case: str) -> None:
    documents = [_moved(document, namespace) for document in yaml.safe_load_all(golden_file(case).read_text())]
    assert _apply(plane, documents).count("serverside-applied") == len(documents)


@pytest.mark.parametrize("bad", BAD_LEAVES, ids=lambda bad: f"{bad.field} {bad.value}")
def test_the_api_server_refuses_every_value_that_a_laptop_refuses(
    plane: ControlPlane, namespace: str, bad: BadLeaf
) -> None:
    """So that the laptop refuses nothing that a cluster would have taken."""
    documents = yaml.safe_load_all(golden_file("vllm-mixed").read_text())
    deployment = next(_moved(each, namespace) for each in documents if each["kind"] == "Deployment")
    assert "serverside-applied" in _apply(plane, [deployment])
    bad.lay_over(deployment["spec"]["template"])
    with pytest.raises(KubectlFailed):
        _apply(plane, [deployment])


def _apply(plane: ControlPlane, documents: list[dict[str, Any]]) -> str:
    return plane.kubectl(
        *("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"),
        stdin=yaml.safe_dump_all(documents),
    )


def _moved(document: dict[str, Any], namespace: str) -> dict[str, Any]:
    return {**document, "metadata": {**document["metadata"], "namespace": namespace}}
