"""A simulated fleet that is sized from a real Prometheus while clients load it, as one story on a local control plane.

    with sized_fleet(plane, prometheus, folder) as fleet:
        fleet.hand_to(Actuator.DIRECT)
        fleet.follows_a_load_that_triples_and_falls()

The engine's steps cost what makes a few requests a second a load: a prompt of 4,000 tokens is 0.4 s of work. Clients
ask for 8 tokens over a connection of their own, through the role's Service. All that decides is the product's:
nothing here sets a number of pods, and only what was seen in the API is judged, by order and not by time.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefleet_operator.api import Actuator

from tests.support.clients import StreamingClients
from tests.support.installation import Fleet, OperatorProcess
from tests.support.node_agent.launch import start_agent
from tests.support.plane.components import HOST
from tests.support.plane.plane import ControlPlane
from tests.support.plane.processes import free_ports
from tests.support.plane.prometheus import Prometheus, fleet_scrape, operator_scrape
from tests.support.waiting import eventually

SOURCE = "local"
WORKLOAD = "chat-mixed"
START = 2
LEAST, MOST = 1, 6
SCRAPE_S = 1.0
WINDOWS = {"window": "10s", "fastWindow": "5s"}
DOWN_WINDOW = "10s"

COST = {"fixed_s": 0.005, "per_prefill_token_s": 1e-4, "per_decode_token_s": 1e-4}
# Within two of the buckets that a fleet shows its lengths by.
SHORTEST_PROMPT, PROMPTS = 3500, 500
# Requests a second: 0.7 of what one pod does, then three times as many, which two pods could not do.
CALM_RATE, BURST_RATE = 1.8, 3.6
BURST_PODS = 3

FOLLOW_TIMEOUT_S = 120.0

Json = dict[str, Any]


@dataclass(frozen=True)
class SizedFleet:
    """The fleet, under a load that begins with the first story."""

    fleet: Fleet
    prometheus: Prometheus
    operator: OperatorProcess

    def hand_to(self, actuator: Actuator) -> None:
        """Apply the fleet with this actuator, and wait until the operator has taken it in."""
        self.fleet.apply(**spec(actuator))
        eventually(lambda: self.sizing().get("actuator") == actuator.value, 30)

    def sizing(self) -> Json:
        """`.status.autoscaling`; empty while there is none."""
        return self.fleet.status().get("autoscaling") or {}

    def told(self) -> str:
        """What the operator says of its last decision."""
        return json.dumps(self.sizing().get("roles", "no decision yet"))

    def replicas(self) -> int:
        """What the Deployment is to have."""
        return int((self.fleet.get("deployment", WORKLOAD) or {"spec": {"replicas": -1}})["spec"]["replicas"])

    def ready(self) -> int:
        """What the Deployment has."""
        found = self.fleet.get("deployment", WORKLOAD) or {}
        return int((found.get("status") or {}).get("readyReplicas", 0))

    def scaled_by(self) -> set[str]:
        """Which managers have set the number of replicas through the scale subresource."""
        found = json.loads(
            self.fleet.plane.kubectl(
                "-n", self.fleet.namespace, "get", "deployment", WORKLOAD, "--show-managed-fields", "-o", "json"
            )
        )
        entries = found["metadata"].get("managedFields", [])
        return {each["manager"] for each in entries if "f:replicas" in each["fieldsV1"].get("f:spec", {})}

    def clients(self, rate: float, order: int) -> StreamingClients:
        """Clients of the role's Service; `order` keeps the lengths of several of them apart."""
        address = (self.fleet.get("service", WORKLOAD) or {})["spec"]["clusterIP"]
        shortest = SHORTEST_PROMPT + order * PROMPTS
        return StreamingClients(f"http://{address}:8000", rate=rate, limit=PROMPTS, shortest_prompt=shortest)

    def restart_operator(self) -> None:
        """Kill the operator, and start it again."""
        self.operator.kill()
        self.operator.start()

    def follows_a_load_that_triples_and_falls(self, as_it_rises: Callable[[], None] = lambda: None) -> None:
        """The story. Raises AssertionError where the fleet does not follow, or a client was not served."""
        eventually(lambda: self.ready() >= 1, 60)
        with self.clients(CALM_RATE, 0) as calm:
            calm_pods = self.settled(lambda pods: pods < BURST_PODS)
            with self.clients(BURST_RATE, 1) as burst:
                as_it_rises()
                self.settled(lambda pods: pods >= BURST_PODS)
            self.settled(lambda pods: pods <= calm_pods)
        for clients in (calm, burst):
            assert not clients.tally.failed, clients.tally.failed
            assert len(clients.tally.answered) == len(clients.tally.sent)

    def settled(self, fits: Callable[[int], bool]) -> int:
        """Wait for a decision made on numbers, and for all pods that the fleet is to have: a count that fits."""

        def pods() -> int:
            wanted = self.replicas()
            decided = all(role.get("numbers") for role in self.sizing().get("roles", [{}]))
            return wanted if decided and fits(wanted) and self.ready() == wanted else 0

        try:
            return eventually(pods, FOLLOW_TIMEOUT_S, poll_s=0.5)
        except AssertionError as error:
            raise AssertionError(f"{self.replicas()} pods, {self.ready()} ready, {error}: {self.told()}") from error


def spec(actuator: Actuator) -> Json:
    """A fleet whose scheduling stays as it is, so that its size alone moves."""
    return {
        "mixed": {"replicas": START, "args": ["--cost-model", json.dumps(COST)]},
        "metricsSource": SOURCE,
        "scheduling": {"policy": "FCFS"},
        "tuning": {"mode": "Off"},
        "autoscaling": {
            "actuator": actuator.value,
            "mixed": {"minReplicas": LEAST, "maxReplicas": MOST},
            "downWindow": DOWN_WINDOW,
        },
    }


@contextmanager
def sized_fleet(plane: ControlPlane, prometheus: Path, folder: Path) -> Iterator[SizedFleet]:
    """A node, Prometheus (`prometheus`: the program), the operator, and a namespace without a fleet.

    The chart is installed already.
    """
    namespace = f"sized-{secrets.token_hex(4)}"
    plane.create_namespace(namespace)
    with ExitStack() as stack:
        stack.callback(plane.kubectl, "delete", "namespace", namespace, "--wait=false")
        agent = start_agent(plane, folder / "node", name="sized", default_image=Path(sys.prefix))
        stack.callback(agent.leave)
        (port,) = free_ports(1)
        source = {"name": SOURCE, "type": "Prometheus", "url": f"http://{HOST}:{port}"}
        config = {"metricsSources": [source], "sizing": WINDOWS}
        operator = stack.enter_context(OperatorProcess(plane, folder / "operator", config)).start()
        scrape = fleet_scrape(plane.kubeconfig, SCRAPE_S)
        scrape["scrape_configs"].append(operator_scrape(operator.port))
        running = stack.enter_context(Prometheus(folder / "prometheus", prometheus, scrape, port))
        yield SizedFleet(Fleet(plane, namespace), running, operator)
