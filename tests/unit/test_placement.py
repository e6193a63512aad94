"""Where pods stand, and how many may be taken down on purpose: drains, nodes and zones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rendering import SIMULATOR, VLLM, render, template

NODE, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
GROUPS: dict[str, Any] = VLLM | {"prefill": {"replicas": 2, "nodesPerReplica": 2}}


def budget(spec: dict[str, Any], name: str) -> Any:
    return render(spec).get(f"PodDisruptionBudget/{name}")


@pytest.mark.parametrize(
    ("replicas", "protected"),
    [
        pytest.param(0, False, id="no pods need no protection"),
        pytest.param(1, False, id="a single one is protected by nothing, and would only hold up drains"),
        pytest.param(2, True, id="of two one stays up"),
    ],
)
def test_a_budget_exists_where_it_keeps_something_up(replicas: int, protected: bool) -> None:
    assert (budget(SIMULATOR | {"mixed": {"replicas": replicas}}, "chat-mixed") is not None) is protected


def test_one_replica_may_go_at_once_and_what_is_not_ready_always() -> None:
    spec = budget(VLLM, "chat-prefill")["spec"]
    assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert spec["selector"]["matchLabels"].items() <= template(VLLM, "prefill")["metadata"]["labels"].items()


def test_of_groups_the_budget_counts_the_workers_too() -> None:
    selector = budget(GROUPS, "chat-prefill")["spec"]["selector"]["matchLabels"]
    assert selector == {"prefleet.dev/fleet": "chat", "leaderworkerset.sigs.k8s.io/name": "chat-prefill-group"}


def test_replicas_spread_over_nodes_and_zones_if_they_can() -> None:
    spreads = template(VLLM, "prefill")["spec"]["topologySpreadConstraints"]
    assert [spread["topologyKey"] for spread in spreads] == [NODE, ZONE]
    assert {spread["whenUnsatisfiable"] for spread in spreads} == {"ScheduleAnyway"}
    for spread in spreads:
        own = template(VLLM, "prefill")["metadata"]["labels"]
        assert spread["labelSelector"]["matchLabels"].items() <= own.items()


REPLACED: tuple[tuple[Any, list[tuple[str, str]]], ...] = (
    (None, []),
    (
        [{"topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}],
        [(NODE, "ScheduleAnyway"), (ZONE, "DoNotSchedule")],
    ),
    (
        [{"topologyKey": "rack", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}],
        [(NODE, "ScheduleAnyway"), (ZONE, "ScheduleAnyway"), ("rack", "DoNotSchedule")],
    ),
)


@pytest.mark.parametrize(("given", "left"), REPLACED, ids=["none at all", "a stricter zone", "racks beside"])
def test_pod_template_replaces_the_wishes(given: Any, left: list[tuple[str, str]]) -> None:
    spec = VLLM | {"decode": {"podTemplate": {"spec": {"topologySpreadConstraints": given}}}}
    spreads = template(spec, "decode")["spec"].get("topologySpreadConstraints", [])
    assert [(spread["topologyKey"], spread["whenUnsatisfiable"]) for spread in spreads] == left


def test_the_pods_of_a_group_stay_together_rather_than_spread() -> None:
    templates = render(GROUPS)["LeaderWorkerSet/chat-prefill-group"]["spec"]["leaderWorkerTemplate"]
    worker, leader = templates["workerTemplate"]["spec"], templates["leaderTemplate"]["spec"]
    assert "topologySpreadConstraints" not in worker
    assert "topologySpreadConstraints" in leader
    (wish,) = worker["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish["podAffinityTerm"]["matchLabelKeys"] == ["leaderworkerset.sigs.k8s.io/group-index"]


def test_a_change_of_replicas_changes_no_pod_template() -> None:
    """So that scaling from one to two, where a budget appears, restarts nothing."""
    one, two = (template(SIMULATOR | {"mixed": {"replicas": count}}, "mixed") for count in (1, 2))
    assert one == two
