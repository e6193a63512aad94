"""The PromQL by which tuning reads fleets of one window: the runtime's series, and those of each engine of its own.

Rows come back by namespace and pod, and perhaps by one more label. Of an engine's own series all spellings are asked
for at once, and of the fleets' pods alone, since some names are nobody's in particular (`native_reading`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prefleet_operator.adapters import fleet_reading as names
from prefleet_operator.adapters import native_reading
from prefleet_operator.adapters.metrics_source import FleetQuery
from prefleet_operator.adapters.vocabulary import read_pods
from prefleet_operator.api import LengthMeasure
from prefleet_operator.core.engine_metrics import EngineMetrics

AGE = "age"
"""The key of the time at which a pod was last read."""


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression by namespace, pod and perhaps one more label.

    `name` is the key of its rows; where it is empty, each row's own name is.
    """

    name: str
    expression: str
    label: str | None = None


def tuning_queries(fleets: Sequence[FleetQuery], window_s: float) -> Iterator[Query]:
    """What is asked for fleets of one window: the runtime's series, and those of each engine."""
    runtimes = {names.LENGTHS[fleet.length] for fleet in fleets if fleet.engine is None}
    if runtimes:
        yield from _queries(window_s, runtimes)
    natives: dict[tuple[EngineMetrics, LengthMeasure], list[FleetQuery]] = defaultdict(list)
    for fleet in fleets:
        if fleet.engine is not None and read_pods(fleet):
            natives[fleet.engine, fleet.length].append(fleet)
    for (engine, length), group in natives.items():
        yield from _native_queries(engine, length, matchers_of(_read(group)), window_s)


def _native_queries(engine: EngineMetrics, length: LengthMeasure, matchers: str, window_s: float) -> Iterator[Query]:
    window = range_of(window_s)
    for spellings in (native_reading.length_names(engine, length), native_reading.wait_names(engine)):
        if spellings:
            sums = [f"sum by (namespace, pod, le) (increase({name}{matchers}{window}))" for name in spellings]
            yield Query(spellings[0], first_shown(sums), "le")
    ages = [f"min by (namespace, pod) (timestamp({name}{matchers}))" for name in native_reading.life_names(engine)]
    yield Query(AGE, first_shown(ages))


def _read(fleets: Sequence[FleetQuery]) -> Iterator[tuple[str, str]]:
    return ((fleet.namespace, pod.name) for fleet in fleets for pod in read_pods(fleet))


def first_shown(expressions: Sequence[str]) -> str:
    """Of each pod what the first expression gives that gives anything of it."""
    return " or on (namespace, pod) ".join(expressions)


def range_of(seconds: float) -> str:
    """A range selector."""
    return f"[{round(seconds * 1000)}ms]"


def matchers_of(pods: Iterable[tuple[str, str]]) -> str:
    """The label matchers of pods, by namespace and name, which hold nothing but letters, digits, dashes and dots."""
    found = set(pods)
    columns = ({namespace for namespace, _ in found}, {name for _, name in found})
    either = ["|".join(sorted(column)).replace(".", "[.]") for column in columns]
    return f'{{namespace=~"{either[0]}",pod=~"{either[1]}"}}'


def _queries(window_s: float, lengths: set[str]) -> Iterator[Query]:
    window = range_of(window_s)
    for name in sorted(lengths):
        yield Query(name, f"sum by (namespace, pod, le) (increase({name}{window}))", "le")
    long_waits = f'{names.LONG_WAITS}{{lane="{names.LONG_LANE}"}}'
    yield Query(names.LONG_WAITS, f"sum by (namespace, pod, le) (increase({long_waits}{window}))", "le")
    yield Query(names.WAIT_COUNTS, f"sum by (namespace, pod, lane) (increase({names.WAIT_COUNTS}{window}))", "lane")
    yield Query(names.PROMOTION_WAITS, f"sum by (namespace, pod, le) (increase({names.PROMOTION_WAITS}{window}))", "le")
    for name in (names.PROMOTIONS, names.DEGRADATIONS):
        yield Query(name, f"sum by (namespace, pod) (increase({name}{window}))")
    yield Query(names.OLDEST_WAITS, f"max by (namespace, pod, lane) ({names.OLDEST_WAITS})", "lane")
    yield Query(names.UNFINISHED, f"max by (namespace, pod) ({names.UNFINISHED})")
    yield Query(names.GENERATION, f"min by (namespace, pod) ({names.GENERATION})")
    yield Query(AGE, f"min by (namespace, pod) (timestamp({names.GENERATION}))")
