"""One engine's step budgets under the policy in force: which rule decides, what is remembered, what is counted.

    plan(view) -> StepBudget, before each step; observe(work, seconds), after it

The stage decides first how much prefill a step may carry, then `long_chunk` how shorts and longs share that. The
cost model learns from every step whatever the stage, and outlives a change of policy, as the counters do; what a
stage remembers begins anew with a new stage.
"""

from __future__ import annotations

from dataclasses import replace

from ..contract import LongChunk, MixedStage, RuntimePolicy, StallBudgetStage, TptStage
from . import long_chunk, stall_budget, tpt
from .base import UNLIMITED, StageCounters, StepBudget, StepView
from .cost_model import StepCostModel, StepWork


class Arbiter:
    """See the module. Not thread-safe: the engine's thread owns it."""

    def __init__(self, policy: RuntimePolicy) -> None:
        self.counters = StageCounters()
        self.cost = StepCostModel()
        self.take(policy)

    def take(self, policy: RuntimePolicy) -> None:
        """Go on under another policy; to be called between steps."""
        self._stage = policy.stage
        self._long_chunk = policy.long_chunk if policy.policy.has_threshold else LongChunk.OFF
        self._chunk_tokens = policy.long_chunk_tokens
        self._tpt = tpt.TptMemory()
        self._tried = stall_budget.Tried()

    @property
    def is_idle(self) -> bool:
        """Whether every step is left to the engine, so that nobody needs to look at it."""
        return isinstance(self._stage, MixedStage) and self._long_chunk is LongChunk.OFF

    @property
    def reads_cost(self) -> bool:
        """Whether the policy decides by what steps cost; elsewhere `observe` serves metrics and a later policy."""
        return isinstance(self._stage, StallBudgetStage)

    def plan(self, view: StepView) -> StepBudget:
        """How the step that `view` shows is to be shared. Counts what it decides: one call for each step."""
        if self.is_idle:
            return UNLIMITED
        limit = self._prefill_limit(view)
        if limit == 0:
            return StepBudget(prefill_tokens=0, in_order=True)
        room = view.room if limit is None else limit
        chunk = long_chunk.chunk_of(view.budget, self._chunk_tokens)
        budget = long_chunk.share(view, self._long_chunk, chunk, room)
        if limit is not None:
            budget = replace(budget, prefill_tokens=limit, in_order=True)
        if budget.running_longs is not None:
            self.counters.held += max(0, len(view.longs) - budget.running_longs)
        return budget

    def observe(self, work: StepWork, seconds: float) -> None:
        """A step that computed `work` lasted `seconds`."""
        self.cost.observe(work, seconds)
        if isinstance(self._stage, StallBudgetStage):
            self._tried = self._tried.after(work, seconds, self._stage.max_stall_ms / 1000)

    def _prefill_limit(self, view: StepView) -> int | None:
        """Tokens of prefill that the stage allows: 0 for a step of decode alone, None for as many as there is room."""
        match self._stage:
            case TptStage() as stage:
                return 0 if self._decodes_alone(stage, view) else None
            case StallBudgetStage(max_stall_ms=max_stall_ms):
                return self._unstalled(view, max_stall_ms / 1000)
            case MixedStage():
                return None

    def _decodes_alone(self, stage: TptStage, view: StepView) -> bool:
        decision, self._tpt = tpt.decide(stage, view, self._tpt)
        self.counters.decode_only += decision.decode_only
        self.counters.starved += decision.starved
        return decision.decode_only

    def _unstalled(self, view: StepView, max_stall_s: float) -> int | None:
        allowance = stall_budget.allow(view, max_stall_s, self.cost, self._tried)
        if allowance.tokens >= view.room:
            return None
        self.counters.stall_limited += 1
        self.counters.stall_unsure += not allowance.trusted
        return allowance.tokens
