"""From an engine's own series of each pod to the readings of a fleet: for engines that run no runtime of ours.

Which series say what, the engine tells (`core.engine_metrics`), each in several spellings; of those that a pod shows
the first one counts, so that a scrape that spells both, or a release that renames, adds nothing up twice. Buckets
are added up over all labels but their bound. Of a gauge the greatest series of each data-parallel rank counts, since
those are of one queue; ranks are added up, but for how full a cache is, of which their mean is told.

What the engine shows of lengths becomes the fleet's lengths: uncached ones where they are asked for and shown, else
those of whole prompts. Its queue waits are of all requests together (`FleetMetrics.waits`): it knows no lanes, so
what is told by lane is Missing, with the reason, and so is the oldest wait. Only pods that were started with the
policy in force count there: waits under another one, added to these, would be waits under neither.

A gauge that the engine always shows (its waiting requests) tells that a pod is being read. Of generations an engine
says nothing.

Names without a prefix (MindIE's) may be anybody's in a Prometheus: whoever asks one names the pods.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from prefleet_operator.adapters.fleet_reading import (
    Key,
    PodMetrics,
    Series,
    combine,
    merge_histograms,
    to_bound,
    to_histogram,
)
from prefleet_operator.adapters.metrics_source import PodTarget
from prefleet_operator.api import LengthMeasure
from prefleet_operator.core.engine_metrics import EngineMetrics
from prefleet_operator.core.observed import FleetMetrics, HistogramSnapshot, Missing, Reading

Line = tuple[str, Mapping[str, str], float]
"""One sample of a pod's answer: name, labels and value."""

NO_WAITS = "the engine does not measure how long requests wait in its queue"
NOT_STARTED = "no ready pod was started with the policy in force"
NO_LANES = "the engine tells no lanes apart"
NO_OLDEST = "the engine does not show how long the request that waits longest has waited"
NO_PROMOTIONS = "the engine counts no promotions"


def length_names(engine: EngineMetrics, length: LengthMeasure) -> tuple[str, ...]:
    """Series of the buckets of lengths, the best first."""
    uncached = engine.uncached_lengths if length is LengthMeasure.UNCACHED else ()
    return _buckets((*uncached, *engine.prompt_lengths))


def wait_names(engine: EngineMetrics) -> tuple[str, ...]:
    """Series of the buckets of queue waits; none where the engine measures no waits."""
    return _buckets(engine.queue_waits)


def life_names(engine: EngineMetrics) -> tuple[str, ...]:
    """A gauge that a pod of the engine shows whatever it does: the sign that it is being read."""
    return engine.waiting or engine.running


def bucket_names(engine: EngineMetrics) -> tuple[str, ...]:
    """All series of buckets that may be read."""
    return (*length_names(engine, LengthMeasure.UNCACHED), *wait_names(engine))


def to_series(lines: Iterable[Line], engine: EngineMetrics) -> dict[Key, float]:
    """The samples of a pod's answer that are read, by key."""
    series: dict[Key, float] = defaultdict(float)
    gauges: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, labels, value in lines:
        if name in bucket_names(engine) and "le" in labels:
            series[name, to_bound(labels["le"])] += value
        elif name in engine.gauges:
            gauges[name][labels.get(engine.rank, "")].append(value)
    for name, ranks in gauges.items():
        greatest = [math.nan if any(map(math.isnan, shown)) else max(shown) for shown in ranks.values()]
        series[name, ""] = statistics.fmean(greatest) if name in engine.kv_usage else sum(greatest)
    return dict(series)


def is_alive(series: Series, engine: EngineMetrics) -> bool:
    """Whether the engine's own gauge is among them."""
    return any((name, "") in series for name in life_names(engine))


def to_pod_metrics(series: Series, engine: EngineMetrics, length: LengthMeasure) -> PodMetrics:
    """Sort one pod's series."""
    return PodMetrics(
        lengths=first_shown(series, length_names(engine, length)),
        all_waits=first_shown(series, wait_names(engine)),
    )


def to_fleet_metrics(
    pods: Sequence[tuple[PodTarget, Reading[PodMetrics]]], engine: EngineMetrics, length: LengthMeasure
) -> FleetMetrics:
    """The fleet's metrics from those of its prefill (or mixed) pods."""
    lengths_name = length_names(engine, length)[0]
    waits = _waits([(pod.name, reading) for pod, reading in pods if pod.current], engine)
    return FleetMetrics(
        lengths=combine(
            [(pod.name, reading) for pod, reading in pods], lengths_name, lambda pod: pod.lengths, merge_histograms
        ),
        long_waits=waits if isinstance(waits, Missing) else Missing(NO_LANES),
        waits=waits,
        promotion_waits=Missing(NO_PROMOTIONS),
        promotions=Missing(NO_PROMOTIONS),
        degradations=Missing(NO_PROMOTIONS),
        oldest_long_wait_s=Missing(NO_OLDEST),
    )


def _waits(pods: Sequence[tuple[str, Reading[PodMetrics]]], engine: EngineMetrics) -> Reading[HistogramSnapshot]:
    names = wait_names(engine)
    if not names:
        return Missing(NO_WAITS)
    if not pods:
        return Missing(NOT_STARTED)
    return combine(pods, names[0], lambda pod: pod.all_waits, merge_histograms)


def _buckets(bases: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{base}_bucket" for base in bases)


def first_shown(series: Series, names: Sequence[str]) -> HistogramSnapshot | None:
    """The histogram under the first of the names that the pod shows with a bound.

    Bounds of 0 and below are left out, so that their bucket is part of the next: nothing there has a logarithm.
    """
    positive = {key: value for key, value in series.items() if isinstance(key[1], float) and key[1] > 0}
    shown = {name for name, bound in positive if isinstance(bound, float) and math.isfinite(bound)}
    name = next((name for name in names if name in shown), None)
    return None if name is None else to_histogram(positive, name)
