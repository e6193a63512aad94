"""Every rendered object is valid by Kubernetes' own schema, with no field that it does not know."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.golden.cases import CASES, render_case
from tests.support.kubernetes_schema import find_fault


@pytest.mark.parametrize("case", CASES)
def test_every_rendered_object_is_valid_by_kubernetes_own_schema(case: str) -> None:
    faults = {f"{item['kind']} {item['metadata']['name']}": find_fault(item) for item in render_case(case)}
    assert not {name: fault for name, fault in faults.items() if fault}


def _deployment() -> Any:
    rendered = copy.deepcopy(render_case("vllm-prefill-decode"))
    return next(item for item in rendered if item["kind"] == "Deployment")


FAULTS = (
    ("an unknown field", lambda pod: pod.update(tolerance=[]), "'tolerance' was unexpected"),
    ("a field of another place", lambda pod: pod["containers"][0].update(replicas=1), "'replicas' was unexpected"),
    ("a number in quotes", lambda pod: pod["containers"][0]["ports"][0].update(containerPort="1"), "is not of type"),
    ("a required field left out", lambda pod: pod["volumes"][0].pop("name"), "'name' is a required property"),
)


@pytest.mark.parametrize(("change", "message"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_the_schema_finds(change: Any, message: str) -> None:
    deployment = _deployment()
    assert find_fault(deployment) is None
    change(deployment["spec"]["template"]["spec"])
    assert message in str(find_fault(deployment))
