"""From one pod's series to what it adds to the load of its role: of the runtime, or of an engine by its own names.

A source gives for each pod one mapping of series: gauges as they are now, counters as their increase over the slow
window, and under `fast(name)` as that over the fast one. Three values it makes itself: `WATCHED`, the seconds of the
slow window in which the pod's counters were watched; `WAITED`, the requests that waited in it, on average; `QUEUED`,
the part of it in which any did.

A value that is no finite number, or that cannot be (less than nothing, a share of more than 1), counts as not shown. Of
a fitted cost terms may be negative. The one gap that is none is a pod of which no counter was seen twice yet: it is
new, and has added nothing so far.

An engine of its own counts lengths as requests end, not as they come, and shows no tokens of what waits: that is taken
as so many requests of the mean length. What its pods computed are the lengths of what ended, and the time that they
were busy is that in which requests waited at them. All of it makes the size an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from prefleet_operator.adapters import native_reading
from prefleet_operator.adapters.fleet_reading import (
    GENERATION,
    LENGTHS,
    UNFINISHED,
    Key,
    Series,
    to_bound,
    to_histogram,
)
from prefleet_operator.adapters.metrics_source import FleetQuery
from prefleet_operator.core.engine_metrics import EngineMetrics
from prefleet_operator.core.histogram import closed_buckets, mean_between
from prefleet_operator.core.observed import HistogramSnapshot
from prefleet_operator.core.sizing.values import StepCost

WATCHED, WAITED, QUEUED = "watched", "waited", "queued"
UPTIME = "prefleet_uptime_seconds_total"
"""Read of Prometheus alone: who scrapes by himself knows for how long."""
PREFILL_TOKENS = "prefleet_prefill_tokens_total"
DECODE_TOKENS = "prefleet_decode_tokens_total"
DECODE_GAPS = "prefleet_decode_gap_seconds_total"
STEP_SECONDS = "prefleet_step_seconds_sum"
WAITING = "prefleet_waiting_requests"
WAITING_TOKENS = "prefleet_waiting_tokens"
RUNNING = "prefleet_running_requests"
KV_USAGE = "prefleet_kv_usage_ratio"
KV_TOKENS = "prefleet_kv_capacity_tokens"
STEP_TOKENS = "prefleet_step_token_budget"
COST = "prefleet_step_cost_seconds"
COST_SAMPLES = "prefleet_step_cost_samples"

COUNTERS = (PREFILL_TOKENS, DECODE_TOKENS, DECODE_GAPS, STEP_SECONDS)
LANE_GAUGES = (WAITING, WAITING_TOKENS)
GAUGES = (RUNNING, UNFINISHED, KV_USAGE, KV_TOKENS, STEP_TOKENS, COST_SAMPLES)

TERMS = ("fixed", "prefill_token", "decode_token", "attention_pair", "decode_context_token")
"""Those of `prefleet_runtime.stage.cost_model`, in the order of `StepCost`."""

MOST_S = 60.0
"""No term of a step's cost is so great."""
MOST = 2.0**53
"""Nor is anything that is counted: from here on a number is not one more than the last."""

Gaps = tuple[float, float]

NOTHING = HistogramSnapshot((), (0.0,))


@dataclass(frozen=True, slots=True)
class PodLoad:
    """What one pod adds; None where it shows nothing.

    `recent` and `recent_gaps` are of the fast window, what else is counted is of the slow one. `gaps`: the sum of the
    gaps before decode tokens, and those tokens. `busy`, `waited`: the part of the slow window that it spent in steps,
    and the requests that waited in it on average. `cost_samples`: steps from which `cost` was fitted.
    """

    watched_s: float | None = None
    lengths: HistogramSnapshot | None = None
    recent: HistogramSnapshot | None = None
    prefill_tokens: float | None = None
    decode_tokens: float | None = None
    gaps: Gaps | None = None
    recent_gaps: Gaps | None = None
    busy: float | None = None
    waited: float | None = None
    waiting: float | None = None
    waiting_tokens: float | None = None
    running: float | None = None
    unfinished: float | None = None
    kv_usage: float | None = None
    kv_tokens: float | None = None
    step_tokens: float | None = None
    cost: StepCost | None = None
    cost_samples: float = 0.0


def fast(name: str) -> str:
    """The name of a counter's increase over the fast window."""
    return f"fast:{name}"


def to_pod_load(query: FleetQuery, series: Series) -> PodLoad:
    """Sort one pod's series."""
    shown = {key: value if _can_be(key, value) else math.nan for key, value in series.items()}
    finite = {key: value for key, value in shown.items() if math.isfinite(value)}
    if query.engine is not None:
        return _native(query, query.engine, shown, finite)
    return _runtime(LENGTHS[query.length], shown, finite)


def to_key(name: str, labels: Mapping[str, str]) -> Key | None:
    """The key of one sample of the runtime's answer; None for one that is not read."""
    if name in LENGTHS.values():
        return name, to_bound(labels["le"])
    if name in LANE_GAUGES:
        return name, labels["lane"]
    if name == COST:
        return name, labels["term"]
    return (name, "") if name in COUNTERS or name in GAUGES or name == GENERATION else None


def names_of(engine: EngineMetrics | None) -> tuple[str, ...]:
    """All series that may be read."""
    if engine is not None:
        return (*native_reading.bucket_names(engine), *engine.gauges)
    return (*LENGTHS.values(), *COUNTERS, *LANE_GAUGES, *GAUGES, COST, GENERATION)


def counts_up(key: Key) -> bool:
    """Whether a series is a counter."""
    return key[0] in COUNTERS or isinstance(key[1], float)


def waiting_of(series: Series, engine: EngineMetrics | None) -> float | None:
    """Requests that wait at a pod now."""
    return _lanes(series, WAITING) if engine is None else _first(series, engine.waiting)


def _can_be(key: Key, value: float) -> bool:
    return abs(value) < MOST_S if key[0] == COST else 0 <= value < MOST


def _runtime(lengths_name: str, series: Series, finite: Series) -> PodLoad:
    lengths = to_histogram(series, lengths_name)
    new = lengths is None and RUNNING in {name for name, _ in finite} and (WATCHED, "") not in series
    watched_s = finite.get((WATCHED, ""))
    steps_s = finite.get((STEP_SECONDS, ""))

    def grown(name: str) -> float | None:
        return finite.get((name, ""), 0.0 if new else None)

    recent = to_histogram(series, fast(lengths_name))
    return PodLoad(
        watched_s=watched_s,
        lengths=NOTHING if new else lengths,
        recent=NOTHING if new else recent,
        prefill_tokens=grown(PREFILL_TOKENS),
        decode_tokens=grown(DECODE_TOKENS),
        gaps=_pair(grown(DECODE_GAPS), grown(DECODE_TOKENS)),
        recent_gaps=_pair(grown(fast(DECODE_GAPS)), grown(fast(DECODE_TOKENS))),
        busy=min(1.0, steps_s / watched_s) if steps_s is not None and watched_s else None,
        waited=finite.get((WAITED, "")),
        waiting=_lanes(series, WAITING),
        waiting_tokens=_lanes(series, WAITING_TOKENS),
        running=finite.get((RUNNING, "")),
        unfinished=finite.get((UNFINISHED, "")),
        kv_usage=_share(finite.get((KV_USAGE, ""))),
        kv_tokens=_positive(finite.get((KV_TOKENS, ""))),
        step_tokens=_positive(finite.get((STEP_TOKENS, ""))),
        cost=_cost(finite),
        cost_samples=finite.get((COST_SAMPLES, ""), 0.0),
    )


def _native(query: FleetQuery, engine: EngineMetrics, series: Series, finite: Series) -> PodLoad:
    names = native_reading.length_names(engine, query.length)
    lengths = native_reading.first_shown(series, names)
    waiting, running = _first(finite, engine.waiting), _first(finite, engine.running)
    tokens = None if lengths is None else _tokens(lengths)
    return PodLoad(
        watched_s=finite.get((WATCHED, "")),
        lengths=lengths,
        recent=native_reading.first_shown(series, [fast(name) for name in names]),
        prefill_tokens=tokens,
        busy=finite.get((QUEUED, "")),
        waited=finite.get((WAITED, "")),
        waiting=waiting,
        running=running,
        unfinished=None if waiting is None or running is None else waiting + running,
        kv_usage=_share(_first(finite, engine.kv_usage)),
    )


def _tokens(lengths: HistogramSnapshot) -> float:
    return sum(count * mean_between(lower, upper) for lower, upper, count in closed_buckets(lengths))


def _lanes(series: Series, name: str) -> float | None:
    """The sum over lanes; None without any, and where one is no number."""
    lanes = [value for (key, _), value in series.items() if key == name]
    total = sum(lanes)
    return total if lanes and math.isfinite(total) else None


def _first(series: Series, names: tuple[str, ...]) -> float | None:
    """What the first of the names says that the pod shows."""
    value = next((series[name, ""] for name in names if (name, "") in series), math.nan)
    return value if math.isfinite(value) else None


def _pair(first: float | None, second: float | None) -> Gaps | None:
    return None if first is None or second is None else (first, second)


def _share(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= 1 else None


def _positive(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None


def _cost(series: Series) -> StepCost | None:
    """All terms, or None."""
    terms = [series[COST, term] for term in TERMS if (COST, term) in series]
    return StepCost(*terms) if len(terms) == len(TERMS) else None
