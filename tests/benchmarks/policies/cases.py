"""What is compared: nodes, step costs, loads, and the ways to schedule them.

A *mixed* node answers with `OUTPUT_TOKENS`; a *prefill* node, as its proxy asks, with the first token alone. A
request is short or long by its prompt, whatever the policy thinks of it.

Left out: shared prefixes (each prompt is of its own) and other mixes of lengths.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from prefleet_runtime.contract import RuntimePolicy, StallBudgetStage

SHORT_TOKENS, LONG_TOKENS = 64, 4000
SHORTS_IN_BURST, LONGS_IN_BURST = 60, 24
LONG_SHARE = 0.25
OUTPUT_TOKENS = 128
THRESHOLD = 512
LONG_MAX_WAIT_MS = 5000
MAX_STALL_MS: Mapping[str, float] = {"cpu": 60, "accelerator": 30}
"""By step costs: stock engines stall decodes more than five times longer (a full step of prefill)."""

FCFS = "fcfs"
CANDIDATE = "short_request_first+yield"
STALL_BUDGET = f"{CANDIDATE}+stall_budget"

NODES: Mapping[str, int] = {"mixed": OUTPUT_TOKENS, "prefill": 1}
"""Output tokens by kind of node."""

SUSTAINED: Mapping[str, float] = {"sustained_60": 0.6, "sustained_90": 0.9, "sustained_110": 1.1}
"""Arrivals by load, as a part of the capacity."""

LOADS = ("burst", "interleaved", *SUSTAINED)


@dataclass(frozen=True)
class Job:
    """A request: when it arrives (seconds from the start), its prompt and its answer in tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def is_long(self) -> bool:
        return self.prompt_tokens > THRESHOLD


@dataclass(frozen=True)
class Contender:
    """A way to schedule: by our runtime under `policy`, or (None) by the engine itself with its own settings.

    `by_length`: the engine's priority order, each request's priority being its length. `chunk_divisor`: its
    `long_prefill_token_threshold` is the step's budget divided by this. `bounds_stalls`: the policy has a stall budget.
    """

    name: str
    policy: Mapping[str, Any] | None = None
    by_length: bool = False
    chunk_divisor: int | None = None
    nodes: tuple[str, ...] = field(default=tuple(NODES))
    bounds_stalls: bool = False

    def policy_on(self, costs: str) -> RuntimePolicy | None:
        """What the runtime is told on a node with such step costs."""
        if self.policy is None:
            return None
        policy = RuntimePolicy(generation=1, **self.policy)
        if not self.bounds_stalls:
            return policy
        stage = StallBudgetStage(type="stall_budget", max_stall_ms=MAX_STALL_MS[costs])
        return policy.model_copy(update={"stage": stage})


def _short_first(long_chunk: str) -> Mapping[str, Any]:
    fields = {"threshold": THRESHOLD, "long_max_wait_ms": LONG_MAX_WAIT_MS, "long_chunk": long_chunk}
    return MappingProxyType({"policy": "short_request_first", **fields})


CONTENDERS = (
    Contender(FCFS),
    Contender("vllm_priority", by_length=True),
    Contender("vllm_long_prefill_token_threshold", chunk_divisor=4),
    Contender("promote_shortest", {"policy": "promote_shortest"}),
    Contender("hrrn", {"policy": "hrrn"}),
    Contender("short_request_first+off", _short_first("off")),
    Contender(CANDIDATE, _short_first("yield")),
    Contender("short_request_first+cap", _short_first("cap")),
    # A decode must run beside prefill to stall at all.
    Contender(STALL_BUDGET, _short_first("yield"), nodes=("mixed",), bounds_stalls=True),
)


def burst(output_tokens: int, interleaved: bool, rng: random.Random, gap_s: float = 0.001) -> list[Job]:
    """All longs and then all shorts, or the same mixed; one arrives every `gap_s` on average."""
    lengths = [LONG_TOKENS] * LONGS_IN_BURST + [SHORT_TOKENS] * SHORTS_IN_BURST
    if interleaved:
        rng.shuffle(lengths)
    return _arriving(lengths, output_tokens, 1 / gap_s, rng)


def sustained(output_tokens: int, rate: float, count: int, rng: random.Random) -> list[Job]:
    """Poisson arrivals at `rate` requests a second; each is long with probability `LONG_SHARE`."""
    lengths = [LONG_TOKENS if rng.random() < LONG_SHARE else SHORT_TOKENS for _ in range(count)]
    return _arriving(lengths, output_tokens, rate, rng)


def _arriving(lengths: list[int], output_tokens: int, rate: float, rng: random.Random) -> list[Job]:
    jobs, now = [], 0.0
    for tokens in lengths:
        jobs.append(Job(now, tokens, output_tokens))
        now += rng.expovariate(rate)
    return jobs
