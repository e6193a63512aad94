"""What a policy would have done with a trace: its requests through a simulated fleet, and what came of them.

The split between short and long requests is fixed for a comparison and not the policy's threshold, so that a request
is in the same lane whatever policy it meets. TTFT is counted from arrival to the end of the step that gave the first
token, waits from arrival to the first step that computes something of the request.

Memory is bounded by what waits and runs: what is measured goes into sketches (`sketch`, within 1%) and into a timeline
whose bins become wider as the trace becomes longer.

Left out: what a client does while it waits (it neither gives up nor asks again).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prefleet_runtime.contract import RuntimePolicy
from prefleet_runtime.queueing import Dispatch, Lane
from prefleet_runtime.sim.fleet import FleetShape, VirtualFleet
from prefleet_runtime.sim.sketch import Sketch
from prefleet_runtime.sim.state import SimRequest
from prefleet_runtime.sim.traces import TraceRequest

BINS = 240


@dataclass(frozen=True)
class Targets:
    """What is promised: the short TTFT, and how long a long request may queue, in seconds."""

    short_ttft_s: float = 0.5
    long_wait_s: float = 8.0


class Timeline:
    """The longest wait by time of dispatch, in at most `BINS` bins of equal width, which doubles when they are full."""

    def __init__(self) -> None:
        self.width_s = 1.0
        self.longest_s: list[float] = []

    def add(self, now: float, wait_s: float) -> None:
        while now >= BINS * self.width_s:
            self.width_s *= 2
            self.longest_s = [max(self.longest_s[i : i + 2]) for i in range(0, len(self.longest_s), 2)]
        place = int(now / self.width_s)
        if place >= len(self.longest_s):
            self.longest_s += [0.0] * (place + 1 - len(self.longest_s))
        if wait_s > self.longest_s[place]:
            self.longest_s[place] = wait_s


@dataclass
class LaneFigures:
    """What the requests of one lane met. Seconds; `within_target` counts those that got what was promised."""

    ttft: Sketch = field(default_factory=Sketch)
    wait: Sketch = field(default_factory=Sketch)
    latency: Sketch = field(default_factory=Sketch)
    timeline: Timeline = field(default_factory=Timeline)
    within_target: int = 0

    @property
    def attainment(self) -> float:
        """Share of the requests that got what was promised; NaN of none."""
        return self.within_target / self.ttft.count if self.ttft.count else math.nan


@dataclass
class Replay:
    """One policy over one trace. `lasted_s`: from the first arrival to the last answer.

    `lengths`: what the policy compares, or would compare, with a threshold; `long_lane_wait`: of the requests that its
    own threshold calls long. Both as the runtime's histograms show them.
    """

    policy: RuntimePolicy | None
    short: LaneFigures = field(default_factory=LaneFigures)
    long: LaneFigures = field(default_factory=LaneFigures)
    lengths: Sketch = field(default_factory=Sketch)
    long_lane_wait: Sketch = field(default_factory=Sketch)
    lasted_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    promotions: int = 0
    degradations: int = 0
    preemptions: int = 0
    refused: int = 0

    @property
    def requests(self) -> int:
        """Answered ones."""
        return self.short.ttft.count + self.long.ttft.count

    @property
    def tokens_per_s(self) -> float:
        """Prompt and output tokens a second."""
        return (self.prompt_tokens + self.output_tokens) / self.lasted_s if self.lasted_s else math.nan


class _Observer:
    """Books what the fleet tells into a `Replay`."""

    def __init__(self, replay: Replay, split_tokens: int, targets: Targets, progress: Callable[[int], None]) -> None:
        self._replay = replay
        self._split = split_tokens
        self._targets = targets
        self._progress = progress
        self._answered = 0

    def dispatched(self, request: SimRequest, dispatch: Dispatch, now: float) -> None:
        if request.remote_kv:  # a decode pod's queue
            return
        lane = self._replay.long if request.prompt_tokens > self._split else self._replay.short
        lane.wait.add(dispatch.wait_s)
        lane.timeline.add(now, dispatch.wait_s)
        self._replay.cached_tokens += request.cached_tokens
        self._replay.lengths.add(dispatch.length)
        if dispatch.lane is Lane.LONG:
            self._replay.long_lane_wait.add(dispatch.wait_s)
        if lane is self._replay.long and dispatch.wait_s <= self._targets.long_wait_s:
            lane.within_target += 1

    def answered(self, request: SimRequest, now: float) -> None:
        replay = self._replay
        lane = replay.long if request.prompt_tokens > self._split else replay.short
        ttft_s = (now if request.first_token_s is None else request.first_token_s) - request.arrival_s
        lane.ttft.add(ttft_s)
        lane.latency.add(now - request.arrival_s)
        if lane is replay.short and ttft_s <= self._targets.short_ttft_s:
            lane.within_target += 1
        replay.prompt_tokens += request.prompt_tokens
        replay.output_tokens += request.generated
        self._answered += 1
        if not self._answered % 1024:
            self._progress(self._answered)


def replay(
    requests: Iterable[TraceRequest],
    shape: FleetShape,
    policy: RuntimePolicy | None,
    split_tokens: int,
    targets: Targets = Targets(),
    progress: Callable[[int], None] = lambda answered: None,
) -> Replay:
    """Run `requests`, whose times ascend, through a fleet under `policy`, or (None) against the clairvoyant bound.

    Exact: equal input gives equal output.

    `progress` is called now and then with the number of requests answered.
    """
    result = Replay(policy)
    fleet = VirtualFleet(shape, policy, _Observer(result, split_tokens, targets, progress))
    result.lasted_s = fleet.run(as_sim_requests(requests, shape.limits.prefix_block_tokens))
    counters = [pod.engine.waiting.queue.counters for pod in fleet.prefill]
    result.promotions = sum(counter.promotions for counter in counters)
    result.degradations = sum(counter.degradations for counter in counters)
    result.preemptions = sum(pod.engine.preemptions for pod in (*fleet.prefill, *fleet.decode))
    result.refused = fleet.refused
    return result


def as_sim_requests(requests: Iterable[TraceRequest], prefix_block_tokens: int) -> Iterator[SimRequest]:
    """What an engine is asked for; without a prefix cache (0) the blocks' hashes are dropped."""
    for number, request in enumerate(requests):
        prefix = request.blocks[: request.prompt_tokens // prefix_block_tokens] if prefix_block_tokens else ()
        yield SimRequest(str(number), request.prompt_tokens, request.output_tokens, request.at_s, prefix=prefix)
