"""What is replayed, from what was asked for: the trace, the fleet that it meets, and the load that it makes there.

`prefleet replay` and `prefleet advise` share it, so that one's figures can be held against the other's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from prefleet_runtime.contract import DEFAULT_AGED_SHARE
from prefleet_runtime.sim.cost_model import DEFAULT_PROFILE, parse_profile
from prefleet_runtime.sim.fleet import FleetShape
from prefleet_runtime.sim.replay import Targets
from prefleet_runtime.sim.router import RouterKind
from prefleet_runtime.sim.state import BLOCK_TOKENS, DEFAULT_MAX_NUM_BATCHED_TOKENS, Limits
from prefleet_runtime.sim.traces import Trace, TraceRequest
from prefleet_runtime.sim.traces.transforms import prefill_only, stretched
from rich.console import Console

from prefleet_operator.api import LONG_QUEUE_WAIT_RULE, SHORT_TTFT_RULE, Rule, parse_duration
from prefleet_operator.replay.setting import SettingError, capacity
from prefleet_operator.replay.study import TraceStudy, study, tell_requests

ANY_FLEET = {"model": {"servedName": "any"}, "engine": {"type": "Simulator"}, "mixed": {}}
"""What the operator's decisions need around the settings that matter here: all of those at their defaults."""


@dataclass(frozen=True)
class Asked:
    """What was asked for, as it was written; `load` None: as the trace was recorded."""

    trace: str
    aged_share: float = DEFAULT_AGED_SHARE
    load: float | None = None
    pods: int = 1
    decode_pods: int = 0
    prefill_only: bool = False
    router: str = RouterKind.ROUND_ROBIN
    engine: str = DEFAULT_PROFILE.name
    step_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
    prefix_cache: bool = True
    short_ttft: str = "500ms"
    long_wait: str = "8s"

    @property
    def targets(self) -> Targets:
        """Raises SettingError for what could not be promised."""
        return Targets(
            seconds_of("--slo-short-ttft", self.short_ttft, SHORT_TTFT_RULE),
            seconds_of("--slo-long-wait", self.long_wait, LONG_QUEUE_WAIT_RULE),
        )


@dataclass(frozen=True)
class Workload:
    """A trace at its load before its fleet; `capacity`: requests a second that the fleet serves of it at most."""

    trace: Trace
    study: TraceStudy
    shape: FleetShape
    load: float
    capacity: float
    requests: Iterable[TraceRequest]


def prepare(asked: Asked, trace: Trace, console: Console) -> Workload:
    """Read the trace once, and tell `console` what it is and what the fleet makes of it.

    Raises:
        TraceError, SettingError: something is wrong with the trace, or with what was asked for.
    """
    studied = study(trace)
    shape = _shape(asked, trace)
    _tell_trace(console, trace, studied)
    served = capacity(_limited(studied, asked), shape)
    if asked.load is not None and math.isinf(studied.rate):
        raise SettingError("--load: all requests of the trace arrive at once, which no load can stretch: leave it out")
    load = studied.rate / served if asked.load is None else asked.load
    factor = 1.0 if asked.load is None else studied.rate / (load * served)
    at = "all arriving at once" if math.isinf(load) else f"replayed at {load:.0%} of that"
    told = f"the fleet serves {served:.2f} requests a second of this trace; {at}"
    console.print(told, soft_wrap=True, highlight=False)
    return Workload(trace, studied, shape, load, served, _Retimed(trace, factor, asked.prefill_only))


def busiest(requests: Iterable[TraceRequest], at_most: int) -> list[TraceRequest]:
    """Of all stretches of `at_most` requests the one with most prompt tokens a second, from time 0; all of fewer.

    `requests` is iterated twice.
    """
    start = _busiest_start(requests, at_most)
    window = list(islice(requests, start, start + at_most))
    return [replace(request, at_s=request.at_s - window[0].at_s) for request in window]


def seconds_of(option: str, text: str, rule: Rule) -> float:
    """A duration as seconds, by the rule of the field that it stands for. Raises SettingError that names the option."""
    if not rule.holds(text):
        raise SettingError(f'{option}: is "{text}": {rule.message}')
    return parse_duration(text)


class _Retimed:
    """The trace at the load that was asked for, as often as it is iterated."""

    def __init__(self, trace: Trace, factor: float, prefill_only: bool) -> None:
        self._trace = trace
        self._factor = factor
        self._prefill_only = prefill_only

    def __iter__(self) -> Iterator[TraceRequest]:
        requests = stretched(self._trace, self._factor)
        return prefill_only(requests) if self._prefill_only else requests


def _busiest_start(requests: Iterable[TraceRequest], at_most: int) -> int:
    window: deque[TraceRequest] = deque()
    start, most, tokens = 0, -1.0, 0
    for number, request in enumerate(requests):
        window.append(request)
        tokens += request.prompt_tokens
        if len(window) < at_most:
            continue
        span_s = request.at_s - window[0].at_s
        rate = tokens / span_s if span_s else math.inf
        if rate > most:
            start, most = number + 1 - at_most, rate
        tokens -= window.popleft().prompt_tokens
    return start


def _shape(asked: Asked, trace: Trace) -> FleetShape:
    block = trace.block_tokens if asked.prefix_cache and trace.block_tokens % BLOCK_TOKENS == 0 else 0
    try:
        profile = parse_profile(asked.engine)
        limits = Limits(
            max_num_batched_tokens=asked.step_tokens,
            kv_cache_tokens=profile.kv_cache_tokens,
            prefix_block_tokens=block,
        )
    except ValueError as error:
        raise SettingError(f"--engine: {error}") from None
    if asked.prefill_only and asked.decode_pods:
        raise SettingError("--prefill-only leaves nothing for --decode-pods to do: leave one of them out")
    return FleetShape(asked.pods, asked.decode_pods, RouterKind(asked.router), profile, limits)


def _limited(studied: TraceStudy, asked: Asked) -> TraceStudy:
    if not asked.prefill_only:
        return studied
    return replace(studied, sample=tuple(prefill_only(studied.sample)))


def _tell_trace(console: Console, trace: Trace, studied: TraceStudy) -> None:
    told = f"{trace.name}: {trace.format}, {tell_requests(studied.requests)} over {studied.span_s:,.0f} s"
    told += f", {studied.prompt_tokens / studied.requests:,.0f} prompt tokens"
    told += f" and {studied.output_tokens / studied.requests:,.0f} output tokens each on average"
    console.print(told, soft_wrap=True, highlight=False)
    if trace.bad.count:
        console.print(f"{trace.bad.count} malformed: {trace.bad.reasons()}", soft_wrap=True, highlight=False)
    if trace.left_out:
        told = f"{tell_requests(trace.left_out)} that had failed: left out"
        console.print(told, soft_wrap=True, highlight=False)
