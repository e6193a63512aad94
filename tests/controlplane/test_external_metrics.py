"""The real HPA controller follows the operator's metric, brought to it by a server that stands for an adapter.

First without the operator, in whose place a test exports a number of replicas; then with all of it under a load.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prefleet_operator.api import Actuator, Role
from prefleet_operator.render.actuators import DESIRED_METRIC

from tests.support.autoscaled import sized_fleet
from tests.support.external_metrics import ROOT, external_metrics
from tests.support.installation import Helm
from tests.support.plane.plane import ControlPlane
from tests.support.waiting import eventually
from tests.support.wishes import WORKLOAD, Wish, a_wish

pytestmark = pytest.mark.controlplane


@pytest.fixture
def wish(plane: ControlPlane, namespace: str, binaries: Mapping[str, Path], tmp_path: Path) -> Iterator[Wish]:
    with (
        a_wish(plane, namespace, binaries["prometheus"], tmp_path / "prometheus") as wish,
        external_metrics(plane, namespace, wish.prometheus),
    ):
        yield wish


def served(wish: Wish) -> list[str]:
    """What the aggregated API says, asked as the controller does."""
    path = f"{ROOT}/namespaces/{wish.namespace}/{DESIRED_METRIC}?labelSelector=policy%3Dchat%2Crole%3Dprefill"
    return [item["value"] for item in json.loads(wish.plane.kubectl("get", "--raw", path))["items"]]


def test_replicas_follow_the_metric_up_and_down_and_stay_where_it_is_gone(wish: Wish) -> None:
    wish.set(6)
    eventually(lambda: served(wish) == ["6000m"])
    wish.hand_to(Actuator.HPA)
    for replicas in (6, 2, 5):
        wish.comes_true(replicas)
    wish.forget()
    eventually(lambda: served(wish) == [])
    assert wish.failed("hpa", WORKLOAD, "ScalingActive") == "FailedGetExternalMetric"
    assert wish.replicas() == 5


def test_one_pod_more_or_fewer_of_twenty_is_followed(wish: Wish) -> None:
    """By default the controller lets a tenth more or less be."""
    wish.hand_to(Actuator.HPA)
    for replicas in (20, 21, 20):
        wish.comes_true(replicas)


def test_a_fleet_follows_a_load_though_the_operator_is_killed_as_it_rises(
    plane: ControlPlane, helm: Helm, binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    with (
        sized_fleet(plane, binaries["prometheus"], tmp_path, Role.PREFILL) as sized,
        external_metrics(plane, sized.fleet.namespace, sized.prometheus),
    ):
        sized.hand_to(Actuator.HPA)
        sized.follows_a_load_that_triples_and_falls(as_it_rises=sized.restart_operator)
        assert "kube-controller-manager" in sized.scaled_by()
