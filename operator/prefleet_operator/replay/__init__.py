"""Replaying a trace under several policies, and telling what came of it: what `prefleet replay` does.

It joins the operator's decisions (`core`) with the runtime's virtual clock (`prefleet_runtime.sim`).
"""
