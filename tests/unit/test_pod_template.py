"""What users ask of pods beside the spec's own fields: accelerators of any name, and podTemplate by examples."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.kubernetes_schema import find_fault
from tests.support.pod_templates import EXAMPLES, RESOURCES, PodTemplateExample, found_at
from tests.support.rendering import VLLM, engine, render

ROLE: dict[str, Any] = {"accelerator": {"resource": "nvidia.com/gpu", "count": 8}}


def overlaid(example: PodTemplateExample, nodes: int) -> list[Any]:
    """The fleet's objects with the example laid over its prefill pods."""
    role = ROLE | {"nodesPerReplica": nodes, "podTemplate": {"spec": example.spec}}
    return list(render(VLLM | {"prefill": role}).values())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_pod_template_gives(example: PodTemplateExample) -> None:
    (deployment,) = (
        item
        for item in overlaid(example, 1)
        if item["metadata"]["name"] == "chat-prefill" and item["kind"] == "Deployment"
    )
    assert found_at(deployment["spec"]["template"]["spec"], example.path) == example.value
    assert find_fault(deployment) is None


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_pod_template_gives_leaders_and_workers(example: PodTemplateExample) -> None:
    (groups,) = (item for item in overlaid(example, 2) if item["kind"] == "LeaderWorkerSet")
    templates = groups["spec"]["leaderWorkerTemplate"]
    assert found_at(templates["leaderTemplate"]["spec"], example.path) == example.value
    if example.name != "affinity":
        assert found_at(templates["workerTemplate"]["spec"], example.path) == example.value
    else:
        assert example.value.items() <= templates["workerTemplate"]["spec"]["affinity"].items()
    assert find_fault(groups) is None


@pytest.mark.parametrize("resource", RESOURCES)
def test_an_accelerator_goes_by_the_name_that_its_cluster_gives_it(resource: str) -> None:
    spec = VLLM | {"prefill": {"accelerator": {"resource": resource, "count": 4}}}
    assert engine(spec, "prefill")["resources"] == {"limits": {resource: "4"}, "requests": {resource: "4"}}
    faults = {name: find_fault(item) for name, item in render(spec).items()}
    assert set(faults.values()) == {None}
