"""The real HPA controller on an external metric: the plane aggregates an API, and a count in Prometheus moves replicas.

No part of the product runs here: a test sets the gauge that the operator would export. No node runs the pods either;
the controller reads an external metric and the count of replicas alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from tests.support.external_metrics import ROOT, external_metrics
from tests.support.plane.components import HOST
from tests.support.plane.plane import ControlPlane
from tests.support.plane.processes import free_ports
from tests.support.plane.prometheus import Prometheus, operator_scrape
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

METRIC = "prefleet_desired_replicas"
SCRAPE_S = 0.5


@dataclass(frozen=True)
class Wish:
    """The gauge of one role, as Prometheus scrapes it, and the Deployment whose replicas follow it."""

    plane: ControlPlane
    namespace: str
    gauge: Gauge
    prometheus: Prometheus

    def set(self, replicas: float) -> None:
        self.gauge.labels(self.namespace, "chat", "prefill").set(replicas)

    def forget(self) -> None:
        """As the operator does with a policy that is gone."""
        self.gauge.remove(self.namespace, "chat", "prefill")

    def told(self) -> list[str]:
        """What the aggregated API says, as the controller asks it."""
        path = f"{ROOT}/namespaces/{self.namespace}/{METRIC}?labelSelector=policy%3Dchat%2Crole%3Dprefill"
        return [item["value"] for item in json.loads(self.plane.kubectl("get", "--raw", path))["items"]]

    def replicas(self) -> int:
        found = self.plane.kubectl("-n", self.namespace, "get", "deployment", "chat", "-o", "jsonpath={.spec.replicas}")
        return int(found)

    def scaling_active(self) -> Any:
        found = self.plane.kubectl("-n", self.namespace, "get", "hpa", "chat", "-o", "json")
        conditions = json.loads(found)["status"].get("conditions", [])
        return next((each for each in conditions if each["type"] == "ScalingActive"), {"status": "", "reason": ""})


@pytest.fixture
def wish(plane: ControlPlane, namespace: str, binaries: Mapping[str, Path], tmp_path: Path) -> Iterator[Wish]:
    registry = CollectorRegistry()
    gauge = Gauge(METRIC, "Set by a test", ["namespace", "policy", "role"], registry=registry)
    (port,) = free_ports(1)
    server, thread = start_http_server(port, HOST, registry)
    config = {"global": {"scrape_interval": f"{round(SCRAPE_S * 1000)}ms"}, "scrape_configs": [operator_scrape(port)]}
    with (
        Prometheus(tmp_path / "prometheus", binaries["prometheus"], config) as prometheus,
        external_metrics(plane, namespace, prometheus),
    ):
        for each in (deployment(namespace), autoscaler(namespace)):
            plane.kubectl("apply", "-f", "-", stdin=json.dumps(each))
        yield Wish(plane, namespace, gauge, prometheus)
    server.shutdown()
    thread.join()


def deployment(namespace: str) -> dict[str, Any]:
    labels = {"app": "chat"}
    pod = {
        "metadata": {"labels": labels},
        "spec": {"nodeSelector": {"test": "none"}, "containers": [{"name": "sample", "image": "sample"}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat", "namespace": namespace},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": pod},
    }


def autoscaler(namespace: str) -> dict[str, Any]:
    """As many pods as the metric says, at once in both directions."""
    metric = {"name": METRIC, "selector": {"matchLabels": {"policy": "chat", "role": "prefill"}}}
    step = {"type": "Pods", "value": 100, "periodSeconds": 15}
    at_once = {"stabilizationWindowSeconds": 0, "policies": [step], "tolerance": "0"}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "chat", "namespace": namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"},
            "minReplicas": 1,
            "maxReplicas": 40,
            "metrics": [
                {
                    "type": "External",
                    "external": {"metric": metric, "target": {"type": "AverageValue", "averageValue": "1"}},
                }
            ],
            "behavior": {"scaleUp": at_once, "scaleDown": at_once},
        },
    }


def test_replicas_follow_the_metric_up_and_down_and_stay_where_it_is_gone(wish: Wish) -> None:
    wish.set(6)
    eventually(lambda: wish.told() == ["6000m"])
    eventually(lambda: wish.replicas() == 6)
    wish.set(2)
    eventually(lambda: wish.replicas() == 2)
    wish.set(5)
    eventually(lambda: wish.replicas() == 5)
    wish.forget()
    eventually(lambda: wish.told() == [])
    failed = eventually(lambda: (found := wish.scaling_active())["status"] == "False" and found)
    assert failed["reason"] == "FailedGetExternalMetric"
    assert wish.replicas() == 5


def test_one_pod_more_than_twenty_is_followed(wish: Wish) -> None:
    """By default the controller lets a tenth more or less be."""
    wish.set(20)
    eventually(lambda: wish.replicas() == 20)
    wish.set(21)
    eventually(lambda: wish.replicas() == 21)
    wish.set(20)
    eventually(lambda: wish.replicas() == 20)
