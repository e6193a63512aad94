"""Whose series are read of a fleet, the runtime's or its engine's own: the one place that chooses between the two."""

from __future__ import annotations

from collections.abc import Mapping

from prefleet_operator.adapters import fleet_reading, native_reading
from prefleet_operator.adapters.fleet_reading import PodMetrics, Series, find_pods
from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, PodTarget
from prefleet_operator.adapters.role_load import missing_loads
from prefleet_operator.core.observed import Missing, Reading


def read_pods(query: FleetQuery) -> tuple[PodTarget, ...]:
    """The pods that a source has to read: of an engine of its own that nobody sizes, those alone whose queue counts."""
    return query.pods if query.engine is None or query.sized else tuple(pod for pod in query.pods if pod.prefills)


def to_pod_metrics(query: FleetQuery, series: Series) -> PodMetrics:
    """Sort one pod's series, dropping what is not finite."""
    if query.engine is None:
        return fleet_reading.to_pod_metrics(series, query.length)
    return native_reading.to_pod_metrics(series, query.engine, query.length)


def assemble(query: FleetQuery, pods: Mapping[str, Reading[PodMetrics]]) -> FleetReading:
    """The fleet's readings from those of its pods, by pod name; a pod that is not there was not found."""
    if query.engine is None:
        return fleet_reading.assemble(query, pods)
    found = find_pods(query, pods)
    prefills = [(pod, found[pod.name]) for pod in query.pods if pod.prefills]
    return FleetReading(native_reading.to_fleet_metrics(prefills, query.engine, query.length))


def missing_fleet(query: FleetQuery, reason: str) -> FleetReading:
    """A fleet of which nothing is known, for one reason."""
    return missing_loads(assemble(query, {pod.name: Missing(reason) for pod in query.pods}), query, reason)


def life_sign(query: FleetQuery) -> str:
    """The series by which a pod is known to be read, as a sentence names it."""
    return fleet_reading.GENERATION if query.engine is None else native_reading.life_names(query.engine)[0]
