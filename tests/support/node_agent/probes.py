"""A container's probes: startup first, then readiness and liveness side by side.

A probe's verdict changes when successThreshold or failureThreshold outcomes in a row agree. A failed startup or
liveness probe is reported once, and the probing ends: the container is about to be killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from tests.support.node_agent.actions import Outcome
from tests.support.node_agent.api import Json

Perform = Callable[[Json, float], Awaitable[Outcome]]
"""Performs a probe's action within so many seconds."""


class Probed(Protocol):
    """The container as its probes see it."""

    def became_started(self) -> None: ...

    def became_ready(self, ready: bool, message: str) -> None: ...

    async def became_unhealthy(self, kind: str, probe: Json, message: str) -> None: ...


@dataclass(frozen=True)
class Streak:
    """Outcomes in a row. Immutable: `after` gives the next."""

    success_threshold: int
    failure_threshold: int
    ok: bool | None = None
    length: int = 0

    @classmethod
    def of(cls, probe: Mapping[str, int]) -> Streak:
        return cls(probe.get("successThreshold", 1), probe.get("failureThreshold", 3))

    def after(self, ok: bool) -> Streak:
        return replace(self, ok=ok, length=self.length + 1 if ok is self.ok else 1)

    @property
    def verdict(self) -> bool | None:
        """None while too few outcomes agree."""
        threshold = self.success_threshold if self.ok else self.failure_threshold
        return self.ok if self.length >= threshold else None


async def run_probes(container: Json, target: Probed, perform: Perform) -> None:
    """Probes until cancelled or until the container turned out unhealthy."""
    startup = container.get("startupProbe")
    if startup and not await _started(startup, target, perform):
        return
    target.became_started()
    probing = [
        run(container[key], target, perform)
        for key, run in (("readinessProbe", _keep_ready), ("livenessProbe", _keep_alive))
        if key in container
    ]
    if "readinessProbe" not in container:
        target.became_ready(True, "")
    async with asyncio.TaskGroup() as group:
        for each in probing:
            group.create_task(each)


async def _started(probe: Json, target: Probed, perform: Perform) -> bool:
    async for verdict, message in _Verdicts(probe, perform):
        if verdict is False:
            await target.became_unhealthy("Startup", probe, message)
            return False
        if verdict:
            return True
    return False


async def _keep_ready(probe: Json, target: Probed, perform: Perform) -> None:
    async for verdict, message in _Verdicts(probe, perform):
        if verdict is not None:
            target.became_ready(verdict, message)


async def _keep_alive(probe: Json, target: Probed, perform: Perform) -> None:
    async for verdict, message in _Verdicts(probe, perform):
        if verdict is False:
            await target.became_unhealthy("Liveness", probe, message)
            return


class _Verdicts:
    """Endless: one verdict a period, the first after the initial delay."""

    def __init__(self, probe: Json, perform: Perform) -> None:
        self._probe = probe
        self._perform = perform
        self._streak = Streak.of(probe)
        self._pause_s = float(probe.get("initialDelaySeconds", 0))

    def __aiter__(self) -> _Verdicts:
        return self

    async def __anext__(self) -> tuple[bool | None, str]:
        await asyncio.sleep(self._pause_s)
        self._pause_s = float(self._probe.get("periodSeconds", 10))
        outcome = await self._perform(self._probe, float(self._probe.get("timeoutSeconds", 1)))
        self._streak = self._streak.after(outcome.ok)
        return self._streak.verdict, outcome.message
