"""How an engine names its own metrics. Pure: engines say it, adapters read by it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Which series of an engine say what. Each is a tuple of spellings, the first that a pod shows counts.

    `rank`: the label that tells apart the data-parallel ranks of a pod, each with a queue and a cache of its own;
    gauges that differ in other labels alone (SGLang's stages of a pipeline, or its priorities beside their total) are
    of the same queue.
    """

    port: int  # where /metrics is served
    prompt_lengths: tuple[str, ...]  # histogram base names WITHOUT _bucket
    uncached_lengths: tuple[str, ...] = ()
    queue_waits: tuple[str, ...] = ()  # unlabelled histogram, seconds
    first_token: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()  # gauge
    running: tuple[str, ...] = ()
    kv_usage: tuple[str, ...] = ()
    rank: str = ""

    @property
    def gauges(self) -> tuple[str, ...]:
        """All that is no histogram."""
        return (*self.waiting, *self.running, *self.kv_usage)
