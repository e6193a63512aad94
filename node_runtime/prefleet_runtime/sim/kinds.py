"""What runs, by kind, as the step budget sees it and as a step serves it.

Hundreds of longs may be held while shorts contend, so nothing here does more for a held one than put it in its list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prefleet_runtime.sim.state import SimRequest
from prefleet_runtime.stage import Prefill, StepBudget


@dataclass(frozen=True, slots=True)
class Started:
    """Requests in prefill, described one by one as they are asked for."""

    requests: list[SimRequest]

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Prefill]:
        for request in self.requests:
            yield Prefill(request.prefill_until - request.computed, request.computed)


@dataclass(frozen=True, slots=True)
class Kinds:
    """Running requests, each kind in the order in which they started."""

    decodes: list[SimRequest]
    shorts: list[SimRequest]
    longs: list[SimRequest]

    @staticmethod
    def of(running: Iterable[SimRequest]) -> Kinds:
        decodes: list[SimRequest] = []
        shorts: list[SimRequest] = []
        longs: list[SimRequest] = []
        for request in running:
            if request.computed >= request.prefill_until:
                decodes.append(request)
            elif request.long:
                longs.append(request)
            else:
                shorts.append(request)
        return Kinds(decodes, shorts, longs)

    def in_order(self, limits: StepBudget) -> list[SimRequest]:
        """All of them as `limits` wants them served (`StepBudget.rank`)."""
        return self._served(self.longs, limits)

    def going(self, limits: StepBudget) -> list[SimRequest]:
        """Likewise, without the longs that are held."""
        return self._served(self.longs[: limits.running_longs], limits)

    def _served(self, longs: list[SimRequest], limits: StepBudget) -> list[SimRequest]:
        return [*self.decodes, *longs, *self.shorts] if limits.long_first else [*self.decodes, *self.shorts, *longs]
