"""A fleet that is sized from a real Prometheus follows a load that triples and falls, and loses no request.

By the operator itself, then by the real HPA controller; KEDA's turn is in the folder keda. The tests are steps of one
story over one fleet, in their order in this file: the actuator is changed on the way, and the number of pods is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prefleet_operator.api import Actuator, Role

from tests.support.autoscaled import SizedFleet, sized_fleet
from tests.support.external_metrics import external_metrics
from tests.support.installation import Helm
from tests.support.plane.plane import ControlPlane

pytestmark = pytest.mark.controlplane


@pytest.fixture(scope="module")
def sized(
    plane: ControlPlane, helm: Helm, binaries: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SizedFleet]:
    with (
        sized_fleet(plane, binaries["prometheus"], tmp_path_factory.mktemp("sized"), Role.PREFILL) as sized,
        external_metrics(plane, sized.fleet.namespace, sized.prometheus),
    ):
        yield sized


def test_the_operator_follows_the_load_itself(sized: SizedFleet) -> None:
    sized.hand_to(Actuator.DIRECT)
    sized.follows_a_load_that_triples_and_falls()


def test_the_hpa_controller_follows_the_load_though_the_operator_is_killed_as_it_rises(sized: SizedFleet) -> None:
    sized.hand_to(Actuator.HPA)
    sized.follows_a_load_that_triples_and_falls(as_it_rises=sized.restart_operator)
    assert "kube-controller-manager" in sized.scaled_by()
