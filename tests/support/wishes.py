"""A number of replicas that a test wishes, exported as the operator would, and the Deployment that is to follow it.

Around it everything is real: Prometheus scrapes the gauge, and what the product renders for an actuator (an HPA, or
KEDA's ScaledObject) is applied. No node runs the pods: an autoscaler on an external metric looks at the metric and at
the count of replicas alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefleet_operator.api import Actuator, PrefillPolicySpec, Role
from prefleet_operator.render.actuators import DESIRED_METRIC, render_actuators
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from tests.support.installation import Fleet
from tests.support.plane.components import HOST
from tests.support.plane.plane import ControlPlane
from tests.support.plane.processes import free_ports
from tests.support.plane.prometheus import Prometheus, operator_scrape
from tests.support.waiting import eventually

POLICY = "chat"
ROLE = Role.PREFILL
WORKLOAD = f"{POLICY}-{ROLE.value}"
SCRAPE_S = 0.5
START = 2

Json = dict[str, Any]


@dataclass(frozen=True)
class Wish:
    """The gauge of one role, the Prometheus that scrapes it, and the Deployment."""

    plane: ControlPlane
    namespace: str
    prometheus: Prometheus
    gauge: Gauge

    def set(self, replicas: float) -> None:
        """Export this number."""
        self.gauge.labels(self.namespace, POLICY, ROLE.value).set(replicas)

    def forget(self) -> None:
        """Export nothing, as the operator does of a policy that is gone."""
        self.gauge.remove(self.namespace, POLICY, ROLE.value)

    def hand_to(self, actuator: Actuator) -> None:
        """Apply what the product renders for the actuator."""
        spec = PrefillPolicySpec.model_validate(_spec(actuator))
        for each in render_actuators(
            POLICY, self.namespace, spec, {ROLE: _deployment(self.namespace)}, {"local": self.prometheus.url}
        ):
            self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(each))

    def replicas(self) -> int:
        """What the Deployment is to have."""
        return self._fleet.replicas(WORKLOAD)

    def comes_true(self, replicas: int) -> None:
        """Wish a number, and wait until the Deployment has it."""
        self.set(replicas)
        eventually(lambda: self.replicas() == replicas, 60)

    def failed(self, kind: str, name: str, condition: str) -> str:
        """Wait until that condition of what sets the number is False; the reason that it gives."""

        def reason() -> str:
            status = (self._fleet.get(kind, name) or {}).get("status", {})
            conditions = status.get("conditions") or []
            told = (each for each in conditions if (each["type"], each["status"]) == (condition, "False"))
            return next((str(each["reason"]) for each in told), "")

        return eventually(reason, 90)

    @property
    def _fleet(self) -> Fleet:
        return Fleet(self.plane, self.namespace, POLICY)


@contextmanager
def a_wish(plane: ControlPlane, namespace: str, prometheus: Path, folder: Path) -> Iterator[Wish]:
    """A wish that nothing follows yet. `prometheus`: the program."""
    registry = CollectorRegistry()
    gauge = Gauge(DESIRED_METRIC, "Set by a test", ["namespace", "policy", "role"], registry=registry)
    (port,) = free_ports(1)
    server, thread = start_http_server(port, HOST, registry)
    config: Mapping[str, Any] = {
        "global": {"scrape_interval": f"{round(SCRAPE_S * 1000)}ms"},
        "scrape_configs": [operator_scrape(port)],
    }
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(_deployment(namespace)))
    try:
        with Prometheus(folder, prometheus, config) as running:
            yield Wish(plane, namespace, running, gauge)
    finally:
        server.shutdown()
        thread.join()


def _spec(actuator: Actuator) -> Json:
    return {
        "model": {"servedName": "chat"},
        "engine": {"type": "Simulator"},
        "prefill": {"replicas": START},
        "decode": {"replicas": 1},
        "metricsSource": "local",
        "autoscaling": {"actuator": actuator.value, "prefill": {"minReplicas": 1, "maxReplicas": 40}},
    }


def _deployment(namespace: str) -> Json:
    labels = {"app": WORKLOAD}
    pod = {
        "metadata": {"labels": labels},
        "spec": {"nodeSelector": {"test": "none"}, "containers": [{"name": "sample", "image": "sample"}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": WORKLOAD, "namespace": namespace},
        "spec": {"replicas": START, "selector": {"matchLabels": labels}, "template": pod},
    }
