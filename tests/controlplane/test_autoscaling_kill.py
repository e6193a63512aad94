"""A fleet that the operator sizes from its pods' own metrics, without a Prometheus, and an operator that is killed.

The load asks for more pods than there are. The operator is killed as soon as the first step up is seen, and another
process goes on: the number that was decided stands, what is said agrees with it, and no client notices.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import StreamingClients
from tests.support.installation import Fleet, OperatorProcess
from tests.support.node_agent.launch import start_agent
from tests.support.plane.plane import ControlPlane
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]

WORKLOAD = "chat-mixed"
COST = {"fixed_s": 0.005, "per_prefill_token_s": 1e-4, "per_decode_token_s": 1e-4}
# 1.6 seconds of prefill in each second, which takes two pods at least, and more while there is a backlog.
PROMPT_TOKENS, RATE = 4000, 4.0
FIRST_STEP_S = 120
WINDOWS = {"window": "20s", "fastWindow": "10s"}


@pytest.fixture
def node(plane: ControlPlane, tmp_path: Path) -> Iterator[None]:
    handle = start_agent(plane, tmp_path / "node", name="killed", default_image=Path(sys.prefix))
    yield
    handle.leave()


@pytest.fixture(scope="module")
def operator_config() -> Json:
    return {"sizing": WINDOWS}


def decided(fleet: Fleet) -> Json:
    """What the status says of the role's size; empty while it says nothing."""
    sizes = (fleet.status().get("autoscaling") or {}).get("roles") or [{}]
    assert isinstance(sizes[0], dict)
    return sizes[0]


@pytest.mark.usefixtures("node")
def test_a_scaling_goes_on_where_a_killed_operator_left_it(operator: OperatorProcess, fleet: Fleet) -> None:
    fleet.apply(
        mixed={"replicas": 1, "args": ["--cost-model", json.dumps(COST)]},
        scheduling={"policy": "FCFS"},
        tuning={"mode": "Off"},
        autoscaling={"mixed": {"maxReplicas": 3}},
    )
    eventually(lambda: fleet.ready(WORKLOAD) == 1, 120)
    service = fleet.get("service", WORKLOAD)
    assert service is not None
    url = f"http://{service['spec']['clusterIP']}:8000"
    with StreamingClients(url, rate=RATE, shortest_prompt=PROMPT_TOKENS) as clients:
        eventually(lambda: fleet.replicas(WORKLOAD) > 1, FIRST_STEP_S)
        operator.kill()
        reached = fleet.replicas(WORKLOAD)
        operator.start()
        eventually(lambda: decided(fleet).get("desired") == fleet.replicas(WORKLOAD) == fleet.ready(WORKLOAD), 120)
        assert fleet.replicas(WORKLOAD) >= reached
        fleet.await_condition("Ready", "True")
    assert f'policy="chat",role="mixed"}} {fleet.replicas(WORKLOAD)}.0' in operator.get("/metrics")
    assert not clients.tally.failed, clients.tally.failed
    assert len(clients.tally.answered) == len(clients.tally.sent)
