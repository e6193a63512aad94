"""A simulated fleet that is sized from a real Prometheus while clients load it, as one story on a local control plane.

    with sized_fleet(plane, prometheus, folder, Role.PREFILL) as fleet:
        fleet.hand_to(Actuator.DIRECT)
        fleet.follows_a_load_that_triples_and_falls()

The engine's steps cost what makes a few requests a second a load: a prompt of 4,000 tokens is 0.4 s of work. Clients
ask for 8 tokens over a connection of their own, through the Services of the roles: where there are two, they hand over
from prefill to decode as a router does. All that decides is the product's: nothing here sets a number of pods, and only
what was seen in the API is judged, by order and not by time.
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

from prefleet_operator.api import Actuator, Role

from tests.support.clients import StreamingClients
from tests.support.installation import Fleet, OperatorProcess
from tests.support.node_agent.launch import start_agent
from tests.support.plane.components import HOST
from tests.support.plane.plane import ControlPlane
from tests.support.plane.processes import free_ports
from tests.support.plane.prometheus import Prometheus, fleet_scrape, operator_scrape
from tests.support.waiting import eventually

SOURCE = "local"
# One pod cannot do what is calm: the first decision that rests on numbers makes a step, which is told at once. Why a
# number stays is told a minute later.
START = 1
LEAST, MOST = 1, 6
SCRAPE_S = 1.0
WINDOWS = {"window": "10s", "fastWindow": "5s"}
DOWN_WINDOW = "10s"

COST = {"fixed_s": 0.002, "per_prefill_token_s": 1e-4, "per_decode_token_s": 1e-4}
# A prompt is many steps, so that what a step costs is learnt in seconds.
STEP_TOKENS = 512
# Within two of the buckets that a fleet shows its lengths by.
SHORTEST_PROMPT, PROMPTS = 3500, 1000
# Requests a second: 1.2 of what one pod does, then three times as many, which three pods could not do. Counts over some
# seconds deviate by a fifth, and a pod goes only where fewer could do a good deal more: two pods or three are calm.
CALM_RATE, BURST_RATE = 3.0, 6.0
BURST_PODS = 4

FOLLOW_TIMEOUT_S = 120.0

Json = dict[str, Any]


@dataclass(frozen=True)
class SizedFleet:
    """A fleet of the role MIXED, or of PREFILL and DECODE, under a load that begins with the first story.

    It is the first role whose work the load is; decode pods have little to do, and are sized all the same.
    """

    role: Role
    fleet: Fleet
    prometheus: Prometheus
    operator: OperatorProcess

    def hand_to(self, actuator: Actuator) -> None:
        """Apply the fleet with this actuator, and wait until the operator has taken it in."""
        self.fleet.apply(**spec(actuator, self.role))
        eventually(lambda: self.sizing().get("actuator") == actuator.value, 30)

    def sizing(self) -> Json:
        """`.status.autoscaling`; empty while there is none."""
        return self.fleet.status().get("autoscaling") or {}

    def told(self) -> str:
        """What the operator says of its last decision."""
        return json.dumps(self.sizing().get("roles", "no decision yet"))

    @property
    def workload(self) -> str:
        """The name of the Deployment that the story is about."""
        return f"{self.fleet.name}-{self.role.value}"

    def replicas(self) -> int:
        """What the Deployment is to have."""
        return self.fleet.replicas(self.workload)

    def ready(self) -> int:
        """What the Deployment has."""
        return self.fleet.ready(self.workload)

    def scaled_by(self) -> set[str]:
        """Which managers have set the number of replicas."""
        return self.fleet.scaled_by(self.workload)

    def clients(self, rate: float, order: int) -> StreamingClients:
        """Clients of the fleet's Services; `order` keeps the lengths of several of them apart."""
        shortest = SHORTEST_PROMPT + order * PROMPTS
        decode_url = self._url(Role.DECODE) if self.role is Role.PREFILL else None
        return StreamingClients(
            self._url(self.role), decode_url=decode_url, rate=rate, limit=PROMPTS, shortest_prompt=shortest
        )

    def _url(self, role: Role) -> str:
        address = (self.fleet.get("service", f"{self.fleet.name}-{role.value}") or {})["spec"]["clusterIP"]
        return f"http://{address}:8000"

    def restart_operator(self) -> None:
        """Kill the operator, and start it again."""
        self.operator.kill()
        self.operator.start()

    def follows_a_load_that_triples_and_falls(self, as_it_rises: Callable[[], None] = lambda: None) -> None:
        """The story. Raises AssertionError where the fleet does not follow, or a client was not served."""
        self.fleet.await_condition("Ready", "True", timeout_s=60)
        with self.clients(CALM_RATE, 0) as calm:
            self.settled(lambda pods: pods < BURST_PODS)
            with self.clients(BURST_RATE, 1) as burst:
                as_it_rises()
                self.settled(lambda pods: pods >= BURST_PODS)
            self.settled(lambda pods: pods < BURST_PODS)
        for clients in (calm, burst):
            assert not clients.tally.failed, clients.tally.failed
            assert len(clients.tally.answered) == len(clients.tally.sent)

    def settled(self, fits: Callable[[int], bool]) -> None:
        """Wait for a decision made on numbers, and for all pods that the fleet is to have: a count that fits."""

        def are_there() -> bool:
            wanted = self.replicas()
            decided = [bool(role.get("numbers")) for role in self.sizing().get("roles", [])]
            return bool(decided) and all(decided) and fits(wanted) and self.ready() == wanted

        try:
            eventually(are_there, FOLLOW_TIMEOUT_S, poll_s=0.5)
        except AssertionError as error:
            raise AssertionError(f"{self.replicas()} pods, {self.ready()} ready, {error}: {self.told()}") from error


def spec(actuator: Actuator, role: Role) -> Json:
    """A fleet whose scheduling stays as it is, so that its size alone moves."""
    pods: Json = {
        "replicas": START,
        "args": ["--cost-model", json.dumps(COST), "--max-num-batched-tokens", str(STEP_TOKENS)],
    }
    bounds = {"minReplicas": LEAST, "maxReplicas": MOST}
    roles = [role, Role.DECODE] if role is Role.PREFILL else [role]
    return {
        **{each.value: pods | ({"replicas": 1} if each is Role.DECODE else {}) for each in roles},
        "metricsSource": SOURCE,
        "scheduling": {"policy": "FCFS"},
        "tuning": {"mode": "Off"},
        "autoscaling": {
            "actuator": actuator.value,
            **{each.value: bounds for each in roles},
            "downWindow": DOWN_WINDOW,
        },
    }


@contextmanager
def sized_fleet(plane: ControlPlane, prometheus: Path, folder: Path, role: Role) -> Iterator[SizedFleet]:
    """A node, Prometheus (`prometheus`: the program), the operator, and a namespace without a fleet as yet.

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
        yield SizedFleet(role, Fleet(plane, namespace), running, operator)
