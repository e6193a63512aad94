"""The PromQL by which sizing reads fleets: every expression once for all sized fleets of one kind of engine together.

Rows are those of `pod_load`, of the fleets' pods alone: of those that there are, and of those that have gone within the
slow window, whose increases still count.

What holds of increases: Prometheus takes the first and the last sample in a window and stretches their difference to
the window's ends, if these are no farther from them than about one scrape interval. So an increase needs two samples at
least; over four intervals it rests on three quarters of the window, is right for a steady rate, and shows a change of
rate after one interval in part and after four in full. Hence a fast window of 60 s as long as pods are scraped every
15 s or more often, of four intervals where that is more (`fast_window`: 120 s at 30 s, 240 s at 60 s), and none where
they are scraped less often than every 80 s: there the slow window alone tells. How often they are scraped is
counted over `SAMPLED` fast windows, of pods that were there already when these began.

A sample is missed while Prometheus does not scrape, yet a counter goes on: an increase bridges such a gap as long as
there are samples before and after it in the window. Where there are none before, the increase is of less than the
window, and it is that time that rates are taken over: the increase of the runtime's own uptime. An engine of its own
shows none, so it counts as watched for the whole window once it has a sample in the window's first eighth, and not at
all until then.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from prefleet_operator.adapters import native_reading, pod_load
from prefleet_operator.adapters.fleet_reading import GENERATION, LENGTHS, UNFINISHED
from prefleet_operator.adapters.metrics_source import FleetQuery
from prefleet_operator.adapters.pod_load import QUEUED, WAITED, WATCHED, fast
from prefleet_operator.adapters.promql import AGE, Query, added, first_shown, matchers_of, range_of
from prefleet_operator.adapters.role_load import Windows
from prefleet_operator.api import LengthMeasure
from prefleet_operator.core.engine_metrics import EngineMetrics

SAMPLES = "samples"
"""The key of a pod's samples in `SAMPLED` fast windows."""
SAMPLED = 4
INTERVALS = 4
FEWEST = 3
"""With fewer samples in `SAMPLED` fast windows there is no fast window."""

QUEUE_STEPS = 40
"""At so many moments of the slow window it is looked whether requests waited at an engine of its own."""

Members = tuple[FleetQuery, tuple[str, ...]]
"""A fleet, and the names of the pods that it has and has had."""


def load_queries(fleets: Sequence[Members], slow_s: float, fast_s: float | None, windows: Windows) -> Iterator[Query]:
    """What is asked for sized fleets. `fast_s`: this cycle's fast window, None for none."""
    runtimes = [(fleet, names) for fleet, names in fleets if fleet.engine is None and names]
    if runtimes:
        lengths = sorted({LENGTHS[fleet.length] for fleet, _ in runtimes})
        yield from _runtime(lengths, _matchers(runtimes), slow_s, fast_s, windows)
    natives: dict[tuple[EngineMetrics, LengthMeasure], list[Members]] = defaultdict(list)
    for fleet, names in fleets:
        if fleet.engine is not None and names:
            natives[fleet.engine, fleet.length].append((fleet, names))
    for (engine, length), group in natives.items():
        yield from _native(engine, length, _matchers(group), slow_s, fast_s, windows)


def fast_window(samples: Sequence[float], known_s: float | None, windows: Windows) -> float | None:
    """The fast window that pods so often scraped allow; the one known if there is no old pod to tell."""
    if not samples:
        return known_s
    typical = statistics.median(samples)
    if typical < FEWEST:
        return None
    sampled_s = SAMPLED * windows.fast_s
    return min(sampled_s, max(windows.fast_s, INTERVALS * sampled_s / typical))


def _runtime(
    lengths: Sequence[str], pods: str, slow_s: float, fast_s: float | None, windows: Windows
) -> Iterator[Query]:
    slow = range_of(slow_s)
    for name in lengths:
        for key, seconds in _windows(name, slow_s, fast_s):
            yield Query(key, added(f"increase({name}{pods}{range_of(seconds)})", "le"), "le")
    yield Query(WATCHED, f"max by (namespace, pod) (increase({pod_load.UPTIME}{pods}{slow}))")
    for name in (pod_load.PREFILL_TOKENS, pod_load.DECODE_TOKENS, pod_load.DECODE_GAPS):
        yield Query(name, added(f"increase({name}{pods}{slow})"))
        if fast_s is not None and name != pod_load.PREFILL_TOKENS:
            yield Query(fast(name), added(f"increase({name}{pods}{range_of(fast_s)})"))
    steps = pod_load.STEP_SECONDS
    yield Query(steps, f"avg by (namespace, pod) (increase({steps}{pods}{slow}))")
    # Of all samples of the pod, not of each lane's own: lanes come and go with the policy.
    waited = added(f"sum_over_time({pod_load.WAITING}{pods}{slow})", over="lane")
    scrapes = f"max by (namespace, pod) (count_over_time({GENERATION}{pods}{slow}))"
    yield Query(WAITED, f"{waited} / {scrapes}")
    sums = (*pod_load.LANE_GAUGES, pod_load.RUNNING, UNFINISHED, pod_load.KV_TOKENS)
    yield Query("", added(_named(sums, pods), "lane", "__name__"), "lane")
    alike = (pod_load.KV_USAGE, pod_load.STEP_TOKENS, pod_load.COST, pod_load.COST_SAMPLES)
    yield Query("", f"max by (__name__, namespace, pod, term) ({_named(alike, pods)})", "term")
    yield from _signs((GENERATION,), pods, windows)


def _native(
    engine: EngineMetrics,
    length: LengthMeasure,
    pods: str,
    slow_s: float,
    fast_s: float | None,
    windows: Windows,
) -> Iterator[Query]:
    lengths = native_reading.length_names(engine, length)
    for key, seconds in _windows(lengths[0], slow_s, fast_s):
        sums = [f"sum by (namespace, pod, le) (increase({name}{pods}{range_of(seconds)}))" for name in lengths]
        yield Query(key, first_shown(sums), "le")
    of_ranks = f"max by (namespace, pod, {engine.rank})" if engine.rank else "max by (namespace, pod)"
    now = f"{of_ranks} ({{}})"
    for how, spellings in (("sum", engine.waiting), ("sum", engine.running), ("avg", engine.kv_usage)):
        if spellings:
            yield Query(spellings[0], _first(how, now, spellings, pods))
    slow, eighth_s = range_of(slow_s), slow_s / 8
    signs = native_reading.life_names(engine)
    if engine.waiting:
        yield Query(WAITED, _first("sum", f"{of_ranks} (avg_over_time({{}}{slow}))", engine.waiting, pods))
        steps = f"[{round(slow_s * 1000)}ms:{round(slow_s * 1000 / QUEUE_STEPS)}ms]"
        yield Query(QUEUED, f"avg_over_time((({_first('sum', now, engine.waiting, pods)}) >= bool 1){steps})")
    begun = f"count_over_time({{}}{range_of(eighth_s)} offset {round((slow_s - eighth_s) * 1000)}ms)"
    yield Query(WATCHED, f"({_first('max', begun, signs, pods)}) * 0 + {slow_s:g}")
    yield from _signs(signs, pods, windows)


def _windows(name: str, slow_s: float, fast_s: float | None) -> Iterator[tuple[str, float]]:
    """The key of a counter's increase in each window."""
    yield name, slow_s
    if fast_s is not None:
        yield fast(name), fast_s


def _signs(names: Sequence[str], pods: str, windows: Windows) -> Iterator[Query]:
    """When pods were last scraped, and how often."""
    sampled_s = SAMPLED * windows.fast_s
    before = f"offset {round(sampled_s * 1000)}ms"
    yield Query(AGE, _first("min", "timestamp({})", names, pods))
    counts = [f"(count_over_time({name}{pods}{range_of(sampled_s)}) and {name}{pods} {before})" for name in names]
    yield Query(SAMPLES, first_shown([f"max by (namespace, pod) ({count})" for count in counts]))


def _first(how: str, pattern: str, spellings: Sequence[str], pods: str) -> str:
    """One value of each pod, by the first of the spellings that it shows."""
    shown = [pattern.format(f"{name}{pods}") for name in spellings]
    return first_shown([f"{how} by (namespace, pod) ({one})" for one in shown])


def _named(names: Sequence[str], pods: str) -> str:
    """A selector of several series at once."""
    return f'{{__name__=~"{"|".join(names)}",{pods.removeprefix("{")}'


def _matchers(fleets: Sequence[Members]) -> str:
    return matchers_of((fleet.namespace, name) for fleet, names in fleets for name in names)
