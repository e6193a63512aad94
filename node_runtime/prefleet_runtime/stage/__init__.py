"""The step budget: how a step's tokens are shared between decodes, short prefills and long prefills.

Pure: no clock, no randomness, no I/O. Import from here.
"""

from __future__ import annotations

from .arbiter import Arbiter
from .base import UNLIMITED, Prefill, StageCounters, StepBudget, StepView
from .cost_model import TERMS, Fit, StepCostModel, StepWork, chunk_pairs

__all__ = [
    "TERMS",
    "UNLIMITED",
    "Arbiter",
    "Fit",
    "Prefill",
    "StageCounters",
    "StepBudget",
    "StepCostModel",
    "StepView",
    "StepWork",
    "chunk_pairs",
]
