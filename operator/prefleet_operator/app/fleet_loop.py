"""The fleet loop: every turn asks each metrics source once for all of its fleets, then marks every fleet.

A turn comes every `interval_s`, or every second while a changed policy is on its way to the pods, or at once
when a fleet needs its first reading. A source that fails or takes too long leaves Missing for its own fleets;
nothing that happens to one source or fleet stops the loop. A source that has not answered when the next turn is due is
left to it, and is not asked again before: fleets of the others are not looked at less often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from prefleet_operator.adapters.metrics_source import FleetQuery, FleetReading, MetricsSource
from prefleet_operator.adapters.role_load import missing_loads
from prefleet_operator.api import POD_SCRAPE, ConditionType, InvalidSpecError, parse_spec
from prefleet_operator.app.claims import overlap_of
from prefleet_operator.app.gather import Cluster, query
from prefleet_operator.app.policies import PolicyIndex, PolicyRecord
from prefleet_operator.app.readings import Readings
from prefleet_operator.app.workqueue import Workqueue
from prefleet_operator.core.observed import FleetMetrics, Missing
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.status import find_condition

logger = logging.getLogger(__name__)

PROPAGATING_INTERVAL_S = 1.0
SOURCE_TIMEOUT_S = 15.0


class FleetLoop:
    """The loop. `now` gives Unix seconds, `clock` monotonic ones; `observe` is told how long each turn took."""

    def __init__(
        self,
        interval_s: float,
        policies: PolicyIndex,
        cluster: Cluster,
        readings: Readings,
        sources: Mapping[str, MetricsSource],
        queue: Workqueue,
        now: Callable[[], float],
        clock: Callable[[], float],
        observe: Callable[[float], None],
    ) -> None:
        self._interval_s = interval_s
        self._policies = policies
        self._cluster = cluster
        self._readings = readings
        self._sources = sources
        self._queue = queue
        self._now = now
        self._clock = clock
        self._observe = observe
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Turn for ever."""
        try:
            while True:
                begun = self._clock()
                self._readings.asked.clear()
                try:
                    await self.turn()
                except Exception:
                    logger.exception("a turn of the fleet loop failed; the next one follows")
                self._observe(self._clock() - begun)
                await self._pause(self._interval() - (self._clock() - begun))
        finally:
            for asking in self._asking.values():
                asking.cancel()

    async def turn(self) -> None:
        """Ask all sources that are not busy answering, then have every fleet looked at."""
        for name, queries in self._queries().items():
            if name not in self._asking:
                self._asking[name] = asyncio.create_task(self._ask(name, queries))
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=self._interval())
        answered = [self._asking.pop(name) for name, asking in list(self._asking.items()) if asking.done()]
        for asking in answered:
            asking.result()
        self._readings.keep({policy.uid for policy in self._policies})
        for policy in self._policies:
            self._queue.mark(policy.key)

    def _interval(self) -> float:
        propagating = any(map(_propagates, self._policies))
        return min(self._interval_s, PROPAGATING_INTERVAL_S) if propagating else self._interval_s

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0.05)):
                await self._readings.asked.wait()
        except TimeoutError:
            return

    def _queries(self) -> dict[str, dict[str, FleetQuery]]:
        """What to ask each source, by the policy's uid. Nothing is asked for a policy whose pods are not known yet, or
        that is refused for them."""
        queries: dict[str, dict[str, FleetQuery]] = {}
        for policy in self._policies:
            try:
                spec = parse_spec(policy.spec)
            except InvalidSpecError:
                continue
            if not self._cluster.knows_attached(policy.namespace):
                continue
            if overlap_of(policy, self._policies, self._cluster) is not None:
                continue
            queries.setdefault(spec.metrics_source, {})[policy.uid] = query(policy, spec, self._cluster)
        return queries

    async def _ask(self, name: str, queries: Mapping[str, FleetQuery]) -> None:
        answers = await self._read(name, tuple(queries.values()))
        now = self._now()
        still = {policy.uid for policy in self._policies if policy.spec.get("metricsSource", POD_SCRAPE) == name}
        for uid, asked in queries.items():
            if uid not in still:
                continue
            answer = answers.get(asked.key) or silent(asked, f"{name} said nothing of it.")
            self._readings.put(uid, answer, now, name)

    async def _read(self, name: str, queries: Sequence[FleetQuery]) -> Mapping[str, FleetReading]:
        source = self._sources.get(name)
        if source is None:
            return {q.key: silent(q, f'there is no metrics source "{name}".') for q in queries}
        try:
            async with asyncio.timeout(SOURCE_TIMEOUT_S):
                return await source.read(queries, self._now())
        except TimeoutError:
            why = f"{name} did not answer within {SOURCE_TIMEOUT_S:.0f} seconds."
        except Exception:
            logger.exception("the metrics source %s failed", name)
            why = f"the operator failed to read {name}: see its log."
        return {q.key: silent(q, why) for q in queries}


def silent(asked: FleetQuery, why: str) -> FleetReading:
    """A reading in which everything is missing, for one reason."""
    gap = Missing(why)
    reading = FleetReading(
        metrics=FleetMetrics(gap, gap, gap, gap, gap, gap),
        generations={pod.name: gap for pod in asked.pods},
    )
    return missing_loads(reading, asked, why)


def _propagates(policy: PolicyRecord) -> bool:
    """Whether a change reaches its pods within seconds; attached pods take their kubelet's time."""
    condition = find_condition(policy.status.conditions, ConditionType.POLICY_ACTIVE)
    return condition is not None and condition.reason == Reason.PROPAGATING and "attach" not in policy.spec
