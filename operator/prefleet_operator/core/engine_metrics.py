"""How an engine names its own metrics. Pure: engines say it, adapters read by it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Which series of an engine say what. Each is a tuple of spellings, the first that a pod shows counts."""

    port: int  # where /metrics is served
    prompt_lengths: tuple[str, ...]  # histogram base names WITHOUT _bucket
    uncached_lengths: tuple[str, ...] = ()
    queue_waits: tuple[str, ...] = ()  # unlabelled histogram, seconds
    first_token: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()  # gauge
    running: tuple[str, ...] = ()
    kv_usage: tuple[str, ...] = ()
