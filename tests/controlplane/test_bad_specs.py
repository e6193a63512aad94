"""The CRD on the real API server: it is accepted, fills in defaults, and refuses with the sentences of a laptop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefleet_operator.api import GROUP, PLURAL, InvalidSpecError, parse_document, parse_spec

from tests.support.bad_specs import BAD_SPECS, GOOD, BadSpec
from tests.support.plane.plane import ControlPlane, KubectlFailed

pytestmark = pytest.mark.controlplane

ROOT = Path(__file__).parents[2]
CRD = f"{PLURAL}.{GROUP}"
SAMPLES = sorted((ROOT / "docs" / "samples").glob("*.yaml"))


@pytest.fixture(scope="module", autouse=True)
def resource(plane: ControlPlane) -> Iterator[None]:
    """The CRD: as a chart has installed it, else for these tests alone, so that a chart can still install it."""
    installed = CRD in plane.kubectl("get", "crd", "-o", "name")
    if not installed:
        plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds" / f"{GROUP}_{PLURAL}.yaml"))
    plane.await_established(CRD)
    yield
    if not installed:
        plane.kubectl("delete", "crd", CRD)


def apply(plane: ControlPlane, document: dict[str, Any]) -> Any:
    """kubectl apply; the object as the API server keeps it."""
    return json.loads(plane.kubectl("apply", "-o", "json", "-f", "-", stdin=json.dumps(document)))


@pytest.mark.parametrize("bad", BAD_SPECS, ids=lambda bad: bad.name)
def test_a_bad_spec_is_refused_at_apply_with_the_laptops_sentence(
    plane: ControlPlane, namespace: str, bad: BadSpec
) -> None:
    document = bad.document(namespace=namespace)
    with pytest.raises(KubectlFailed) as refusal:
        apply(plane, document)
    assert bad.field in str(refusal.value)
    assert bad.sentence in str(refusal.value)
    with pytest.raises(InvalidSpecError) as laptop:
        parse_document(document)
    assert bad.sentence in str(laptop.value)


def test_defaults_are_the_same_on_both_sides(plane: ControlPlane, namespace: str) -> None:
    kept = apply(plane, {**GOOD, "metadata": {"name": "chat", "namespace": namespace}})
    assert kept["spec"] == parse_spec(GOOD["spec"]).to_resource()


def test_an_unknown_field_is_refused_by_name(plane: ControlPlane, namespace: str) -> None:
    document = {**GOOD, "metadata": {"name": "chat", "namespace": namespace}}
    with pytest.raises(KubectlFailed, match=r'unknown field "spec\.canary"'):
        apply(plane, {**document, "spec": {**GOOD["spec"], "canary": {}}})


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_example_of_the_documentation_is_admitted(plane: ControlPlane, namespace: str, path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        document["metadata"]["namespace"] = namespace
        assert apply(plane, document)["spec"] == parse_document(document).spec.to_resource()


def test_what_the_operator_answers_shows_in_kubectl_get(plane: ControlPlane, namespace: str) -> None:
    apply(plane, {**GOOD, "metadata": {"name": "chat", "namespace": namespace}})
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Ready",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    status = {
        "effective": {"policy": "ShortRequestFirst", "threshold": 512, "longMaxWait": "4s", "generation": 3},
        "pods": {"prefill": "2/2", "decode": "1/1"},
        "reason": "PodsReady",
        "conditions": [ready],
    }
    patch = json.dumps({"status": status})
    plane.kubectl("patch", "pp", "chat", "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)
    header, line = plane.kubectl("get", "pp", "-n", namespace).splitlines()
    assert header.split() == ["NAME", "POLICY", "THRESHOLD", "MAXWAIT", "PREFILL", "DECODE", "READY", "REASON", "AGE"]
    assert line.split()[:-1] == ["chat", "ShortRequestFirst", "512", "4s", "2/2", "1/1", "True", "PodsReady"]
