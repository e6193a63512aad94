"""The real HPA controller follows the operator's metric, brought to it by a server that stands for an adapter.

The operator does not run here: a test exports the number of replicas in its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prefleet_operator.api import Actuator
from prefleet_operator.render.actuators import DESIRED_METRIC

from tests.support.external_metrics import ROOT, external_metrics
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
