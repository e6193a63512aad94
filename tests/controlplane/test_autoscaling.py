"""A fleet that the operator sizes from a real Prometheus follows a load that triples and falls, and loses no request.

Where the real HPA controller sets the number is shown in test_external_metrics.py, where KEDA does in the folder keda.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from prefleet_operator.api import Actuator, Role

from tests.support.autoscaled import sized_fleet
from tests.support.installation import Helm
from tests.support.plane.plane import ControlPlane

pytestmark = pytest.mark.controlplane


def test_the_operator_follows_the_load_itself(
    plane: ControlPlane, helm: Helm, binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    with sized_fleet(plane, binaries["prometheus"], tmp_path, Role.PREFILL) as sized:
        sized.hand_to(Actuator.DIRECT)
        sized.follows_a_load_that_triples_and_falls()
        assert "prefleet" in sized.scaled_by()
