"""The real KEDA follows the operator's metric in Prometheus: `make test-keda`, which builds it first.

A folder of its own, since a plane has one server of external metrics, and `make test` does without this build.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prefleet_operator.api import Actuator, Role

from tests.support.autoscaled import sized_fleet
from tests.support.binaries import KEDA, ensure
from tests.support.installation import Helm
from tests.support.keda import Keda
from tests.support.plane.plane import ControlPlane
from tests.support.wishes import WORKLOAD, Wish, a_wish

pytestmark = pytest.mark.controlplane


@pytest.fixture(scope="module", autouse=True)
def keda(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with Keda(plane, tmp_path_factory.mktemp("keda"), ensure(KEDA)):
        yield


@pytest.fixture
def wish(plane: ControlPlane, namespace: str, binaries: Mapping[str, Path], tmp_path: Path) -> Iterator[Wish]:
    with a_wish(plane, namespace, binaries["prometheus"], tmp_path / "prometheus") as wish:
        yield wish


def test_replicas_follow_the_metric_up_and_down_and_stay_where_it_is_gone(wish: Wish) -> None:
    wish.set(6)
    wish.hand_to(Actuator.KEDA)
    for replicas in (6, 2, 5):
        wish.comes_true(replicas)
    wish.forget()
    assert wish.failed("hpa", f"keda-hpa-{WORKLOAD}", "ScalingActive") == "FailedGetExternalMetric"
    assert wish.failed("scaledobject", WORKLOAD, "Ready") == "TriggerError"
    assert wish.replicas() == 5


def test_one_pod_more_or_fewer_of_twenty_is_followed(wish: Wish) -> None:
    wish.set(2)
    wish.hand_to(Actuator.KEDA)
    for replicas in (20, 21, 20):
        wish.comes_true(replicas)


def test_a_fleet_of_mixed_pods_follows_a_load_that_triples_and_falls(
    plane: ControlPlane, helm: Helm, binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    with sized_fleet(plane, binaries["prometheus"], tmp_path, Role.MIXED) as sized:
        sized.hand_to(Actuator.KEDA)
        sized.follows_a_load_that_triples_and_falls()
        assert "kube-controller-manager" in sized.scaled_by()
