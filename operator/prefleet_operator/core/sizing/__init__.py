"""How many pods a fleet needs: see `decide`."""

from prefleet_operator.core.sizing.decide import decide_size
from prefleet_operator.core.sizing.values import (
    RoleMemory,
    RoleRules,
    RoleSignals,
    RoleSize,
    SizingDecision,
    SizingInputs,
    SizingMemory,
    SizingRules,
)

__all__ = [
    "RoleMemory",
    "RoleRules",
    "RoleSignals",
    "RoleSize",
    "SizingDecision",
    "SizingInputs",
    "SizingMemory",
    "SizingRules",
    "decide_size",
]
