"""The operator's own metrics. Labels are bounded by enums: never a policy's, a namespace's or a pod's name.

But for `prefleet_desired_replicas`, which HorizontalPodAutoscalers and KEDA ask for by name: of each role that is sized
there is one series, as long as its policy is there and autoscaled. Only the process that leads has any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prefleet_operator.app.reconcile import Outcome

LOOP_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

ReasonCounts = Mapping[tuple[str, str, str], int]
"""Policies by (condition, status, reason)."""

DesiredReplicas = Mapping[tuple[str, str, str], int]
"""Replicas by (namespace, policy, role)."""


class Telemetry:
    """All metrics of the process, in one registry that is passed in."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.leader = Gauge("prefleet_operator_leader", "1 while this process leads.", registry=registry)
        self._loop = Histogram(
            "prefleet_operator_loop_seconds",
            "How long a turn of the fleet loop takes.",
            buckets=LOOP_BUCKETS_S,
            registry=registry,
        )
        self._reconciles = Counter(
            "prefleet_operator_reconciles_total", "Turns by how they ended.", ["result"], registry=registry
        )
        for outcome in Outcome:
            self._reconciles.labels(outcome.value)

    def count_reconcile(self, outcome: Outcome) -> None:
        """One turn of one fleet has ended."""
        self._reconciles.labels(outcome.value).inc()

    def observe_loop(self, seconds: float) -> None:
        """One turn of the fleet loop has ended."""
        self._loop.observe(seconds)

    def show_policies(self, count: Callable[[], ReasonCounts]) -> None:
        """Serve the number of policies by condition, counted when asked."""
        told = ("prefleet_policy_conditions", "Policies by condition, its status and its reason.")
        self.registry.register(_CountCollector(*told, ["condition", "status", "reason"], count))

    def show_sizes(self, count: Callable[[], DesiredReplicas]) -> None:
        """Serve the replicas that sized roles are to have, read when asked."""
        told = ("prefleet_desired_replicas", "Replicas that an autoscaled role is to have.")
        self.registry.register(_CountCollector(*told, ["namespace", "policy", "role"], count))


class _CountCollector(Collector):
    """One gauge, of which the values are asked for at each scrape."""

    def __init__(
        self, name: str, told: str, labels: Sequence[str], count: Callable[[], Mapping[tuple[str, str, str], int]]
    ) -> None:
        self._name = name
        self._told = told
        self._labels = labels
        self._count = count

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(self._name, self._told, labels=self._labels)
        for labels, number in self._count().items():
            family.add_metric(list(labels), number)
        yield family
