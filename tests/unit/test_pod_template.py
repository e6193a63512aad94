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


@pytest.mark.parametrize(
    ("grace_s", "limit_s"),
    [
        pytest.param(None, 310, id="the usual time"),
        pytest.param(1800, 1790, id="longer, for requests that run longer"),
        pytest.param(60, 50, id="shorter, and still told to stop before it is killed"),
        pytest.param(5, 1, id="hardly any"),
    ],
)
def test_what_a_pod_waits_for_before_it_ends_goes_by_the_grace_period_that_the_user_gives_it(
    grace_s: int | None, limit_s: int
) -> None:
    template = {} if grace_s is None else {"podTemplate": {"spec": {"terminationGracePeriodSeconds": grace_s}}}
    hook = engine(VLLM | {"prefill": template}, "prefill")["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[-2:] == ["--limit-s", str(limit_s)]
    groups = render(VLLM | {"prefill": ROLE | template | {"nodesPerReplica": 2}})["LeaderWorkerSet/chat-prefill-group"]
    worker = groups["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]
    assert f"range({limit_s})" in worker["lifecycle"]["preStop"]["exec"]["command"][2]


def test_a_grace_period_that_is_taken_away_is_the_one_that_kubernetes_puts_there() -> None:
    """30 seconds: told to wait for longer, a pod would be killed with its requests running."""
    template = {"podTemplate": {"spec": {"terminationGracePeriodSeconds": None}}}
    hook = engine(VLLM | {"prefill": template}, "prefill")["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[-2:] == ["--limit-s", "20"]


@pytest.mark.parametrize(("own_s", "grace_s"), [(None, 30), (1800, 30), (12, 12)])
@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe"])
def test_an_engine_that_hangs_is_not_waited_for_before_it_is_restarted(
    probe: str, own_s: int | None, grace_s: int
) -> None:
    """A kubelet runs preStop first there, too, which takes a server that does not answer for a busy one."""
    template = {} if own_s is None else {"podTemplate": {"spec": {"terminationGracePeriodSeconds": own_s}}}
    container = engine(VLLM | {"prefill": template}, "prefill")
    assert container[probe]["terminationGracePeriodSeconds"] == grace_s
    assert "terminationGracePeriodSeconds" not in container["readinessProbe"], "Kubernetes refuses it there"


@pytest.mark.parametrize("resource", RESOURCES)
def test_an_accelerator_goes_by_the_name_that_its_cluster_gives_it(resource: str) -> None:
    spec = VLLM | {"prefill": {"accelerator": {"resource": resource, "count": 4}}}
    assert engine(spec, "prefill")["resources"] == {"limits": {resource: "4"}, "requests": {resource: "4"}}
    faults = {name: find_fault(item) for name, item in render(spec).items()}
    assert set(faults.values()) == {None}
