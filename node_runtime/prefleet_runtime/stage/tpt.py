"""Steps of decode alone between steps with prefill, by the published formula.

With r running decodes, a maximum M, and the costs p and d of one request in a step of prefill and of decode, each
step adds d (M - r) to a credit w; while p r > w the step is one of decode alone, else w returns to 0 and the step
carries prefill. In closed form max(0, ceil(p r / (d (M - r))) - 1) decode steps lie between two with prefill.

At r = M, or d = 0, the credit never grows and prefill would starve, so a run of decode steps is bounded
(`MAX_DECODE_STEPS`) and each run that the bound ends is counted. Nothing moves while no prefill is pending: decode
steps that held nobody back are neither credit nor starvation.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import TptStage
from .base import StepView

MAX_DECODE_STEPS = 256
"""So many steps of decode alone in a row at most while prefill is pending: some seconds on any accelerator."""


@dataclass(frozen=True, slots=True)
class TptMemory:
    """Between steps: the credit w (milliseconds) and the decode steps since the last one with prefill."""

    credit_ms: float = 0.0
    run: int = 0


@dataclass(frozen=True, slots=True)
class TptDecision:
    """`decode_only`, and `starved`: the bound ended a run that the formula would have gone on with."""

    decode_only: bool
    starved: bool = False


def decide(stage: TptStage, view: StepView, memory: TptMemory) -> tuple[TptDecision, TptMemory]:
    """What this step is, and what is remembered for the next."""
    if not view.prefill_is_pending:
        return TptDecision(decode_only=False), memory
    free = max(0, stage.max_batch - view.decodes)
    credit = memory.credit_ms + stage.decode_ms_per_request * free
    if stage.prefill_ms_per_request * view.decodes <= credit:
        return TptDecision(decode_only=False), TptMemory()
    if memory.run >= MAX_DECODE_STEPS:
        return TptDecision(decode_only=False, starved=True), TptMemory()
    return TptDecision(decode_only=True), TptMemory(credit, memory.run + 1)
