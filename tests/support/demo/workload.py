"""What the demo replays: a list of requests with arrival times, made from a seed or from a recorded trace.

The bursty mix: a quarter of the requests are long (lognormal around 6,000 tokens, within 2,000-16,000), the
rest short (around 200, within 16-1,000). Arrivals are Poisson inside bursts: a burst lasts a third of each
cycle and carries three times the mean rate, so that the mean load is the one asked for.

A trace keeps its lengths and the shape of its arrivals; its clock is stretched so that the mean load is the
one asked for, since a fleet of two simulated pods is not the fleet that the trace was taken from.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from prefleet_runtime.sim.traces import Trace, TraceError, TraceRequest

SHORT_TOKENS, SHORT_BOUNDS = 200, (16, 1_000)
LONG_TOKENS, LONG_BOUNDS = 6_000, (2_000, 16_000)
LONG_SHARE = 0.25
OUTPUT_TOKENS = 64
BURST_FACTOR = 3.0
BURST_CYCLE_S = 25.0


def bursty_mix(
    seed: int, duration_s: float, load: float, service_s: Callable[[int], float], pods: int
) -> list[TraceRequest]:
    """Requests of the bursty mix over `duration_s` seconds.

    `service_s`: seconds of one pod's prefill time for a prompt of that many tokens; `load` is the share of
    `pods` pods' prefill time that the mix needs on average.
    """
    lengths = mix_lengths(random.Random(seed))
    sample = list(itertools.islice(mix_lengths(random.Random(seed + 1)), 4_000))
    mean_service_s = sum(map(service_s, sample)) / len(sample)
    rate = load * pods / mean_service_s
    arrivals = _burst_arrivals(random.Random(seed + 2), rate, duration_s)
    return [TraceRequest(at_s, length, OUTPUT_TOKENS) for at_s, length in zip(arrivals, lengths, strict=False)]


def mix_lengths(rng: random.Random) -> Iterator[int]:
    """Prompt lengths of the mix in tokens, without end."""
    while True:
        centre, bounds = (LONG_TOKENS, LONG_BOUNDS) if rng.random() < LONG_SHARE else (SHORT_TOKENS, SHORT_BOUNDS)
        length = round(rng.lognormvariate(math.log(centre), 0.5))
        if bounds[0] <= length <= bounds[1]:
            yield length


def _burst_arrivals(rng: random.Random, rate: float, duration_s: float) -> Iterator[float]:
    """Poisson arrivals at `BURST_FACTOR * rate`, in the first 1/BURST_FACTOR of each cycle."""
    burst_s = BURST_CYCLE_S / BURST_FACTOR
    busy_s = 0.0
    while True:
        busy_s += rng.expovariate(BURST_FACTOR * rate)
        cycle, offset = divmod(busy_s, burst_s)
        at_s = cycle * BURST_CYCLE_S + offset
        if at_s >= duration_s:
            return
        yield at_s


def trace_requests(
    trace: Trace, duration_s: float, load: float, service_s: Callable[[int], float], pods: int, longest: int
) -> list[TraceRequest]:
    """The beginning of a trace, its clock stretched to the load asked for.

    Requests longer than `longest` tokens are left out, since the fleet's model would refuse them.

    Raises:
        TraceError: too many lines of what was read are malformed, or too few requests are left.
    """
    requests: list[TraceRequest] = []
    work_s = 0.0
    for request in trace:
        if request.prompt_tokens + OUTPUT_TOKENS > longest:
            continue
        requests.append(replace(request, output_tokens=min(OUTPUT_TOKENS, request.output_tokens)))
        work_s += service_s(request.prompt_tokens)
        if work_s >= load * pods * duration_s:
            break
    trace.bad.judge()  # The trace itself does so at its end, which is seldom reached here.
    if len(requests) < 2 or requests[-1].at_s <= requests[0].at_s:
        raise TraceError(
            f"{trace.name}: a demo needs at least two requests of at most {longest} tokens at different times: "
            "give a trace that has them"
        )
    start, span = requests[0].at_s, requests[-1].at_s - requests[0].at_s
    return [replace(request, at_s=(request.at_s - start) * duration_s / span) for request in requests]


def quantile(values: Iterable[float], q: float) -> float:
    """The value at rank ceil(q n) of the sorted values (the nearest-rank quantile); NaN of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else math.nan
