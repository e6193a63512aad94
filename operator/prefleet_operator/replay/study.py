"""What a trace is like, learnt in one pass: its lengths, its rate, and a fair sample of its requests.

The sample is a reservoir (Vitter's algorithm R) with a seed of its own, so that memory is bounded and the same trace
gives the same sample. Lengths are counted as the runtime counts them, four buckets to the octave.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass

from prefleet_runtime.sim.traces import Trace, TraceError, TraceRequest

from prefleet_operator.core.observed import HistogramSnapshot

SAMPLE = 2000
SEED = 1
BOUNDS = tuple(float(round(2 ** (step / 4))) for step in range(8, 81))
"""From 4 tokens on, below which quarter octaves are no whole tokens apart."""


@dataclass(frozen=True)
class TraceStudy:
    """`requests` that arrive over `span_s` seconds; `lengths` of their prompts; a `sample` of them in their order."""

    requests: int
    span_s: float
    prompt_tokens: int
    output_tokens: int
    lengths: HistogramSnapshot
    sample: tuple[TraceRequest, ...]

    @property
    def rate(self) -> float:
        """Requests a second, from the gaps between them; infinite if all come at once."""
        return (self.requests - 1) / self.span_s if self.span_s > 0 else float("inf")


def tell_requests(count: int) -> str:
    """So many requests, in words."""
    return "1 request" if count == 1 else f"{count:,} requests"


def study(trace: Trace) -> TraceStudy:
    """Read a trace once. Raises TraceError if it holds no request, or is not readable as what it seems to be."""
    counts = [0] * (len(BOUNDS) + 1)
    rng = random.Random(SEED)
    kept: list[tuple[int, TraceRequest]] = []
    requests = prompt_tokens = output_tokens = 0
    span_s = 0.0
    for request in trace:
        counts[bisect_left(BOUNDS, request.prompt_tokens)] += 1
        prompt_tokens += request.prompt_tokens
        output_tokens += request.output_tokens
        span_s = request.at_s
        if requests < SAMPLE:
            kept.append((requests, request))
        elif (place := rng.randrange(requests + 1)) < SAMPLE:
            kept[place] = (requests, request)
        requests += 1
    if not requests:
        raise TraceError(f"{trace.name} holds no request: give a trace of at least one")
    sample = tuple(request for _, request in sorted(kept, key=lambda entry: entry[0]))
    lengths = HistogramSnapshot(BOUNDS, tuple(map(float, counts)))
    return TraceStudy(requests, span_s, prompt_tokens, output_tokens, lengths, sample)
