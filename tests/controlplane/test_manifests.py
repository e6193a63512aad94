"""The golden manifests on the real API server: every field is known to it and every object valid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.golden.cases import CASES, golden_file
from tests.support import leader_worker_set, scaled_object
from tests.support.plane.plane import ControlPlane

pytestmark = pytest.mark.controlplane


@pytest.fixture(scope="module", autouse=True)
def kinds_of_others(plane: ControlPlane) -> Iterator[None]:
    with leader_worker_set.served(plane), scaled_object.served(plane):
        yield


@pytest.mark.parametrize("case", CASES)
def test_the_api_server_takes_the_golden_manifests(plane: ControlPlane, namespace: str, case: str) -> None:
    documents = [_moved(document, namespace) for document in yaml.safe_load_all(golden_file(case).read_text())]
    manifests = yaml.safe_dump_all(documents)
    answer = plane.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=manifests
    )
    assert answer.count("serverside-applied") == len(documents)


def _moved(document: dict[str, Any], namespace: str) -> dict[str, Any]:
    return {**document, "metadata": {**document["metadata"], "namespace": namespace}}
