"""The seven loads. Rates are parts of what eight pods serve; requests are drawn from a public trace's lengths.

Requests come at random (Poisson) at a rate that follows the scenario, each with the prompt and the answer of one
request of the Mooncake conversation trace. "What eight pods serve" is `PART` of their work: about the rate at which
eight pods that stay keep 95% of their promises.

Nothing is scaled down: a day has 24 hours. What makes it quick is the model: a large one, whose pods serve about one
request in four seconds, where a day is some 120,000 requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from prefleet_runtime.sim.cost_model import StepCost
from prefleet_runtime.sim.state import SimRequest
from prefleet_runtime.sim.traces import open_trace

from tests.benchmarks.sizing.fleet import LIMITS, PROFILE

TRACE = Path(__file__).parents[3].parent / "shared" / "traces" / "mooncake_conversation_trace.jsonl"
PODS = 8
PART = 0.8
DAY_H = 24.0
START_S = 120.0
TUNED, JUDGED = (1, 2, 3, 4), (101, 102, 103)
"""Seeds of the requests: with the former the pipeline's constants were chosen, by the latter it is judged."""
LONG_H = 12.0
"""A scenario longer than this has requests enough for one seed to tell."""
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """`load`: seconds -> part of eight pods. `prompts`, `answers`: seconds -> how many times as long.

    `outage`: Prometheus answers nothing between these. `quota`: pods that the cluster has room for.
    """

    name: str
    hours: float
    load: Callable[[float], float]
    prompts: Callable[[float], float] = lambda at_s: 1.0
    answers: Callable[[float], float] = lambda at_s: 1.0
    start_s: float = START_S
    outage: tuple[float, float] | None = None
    quota: int | None = None

    @property
    def seconds(self) -> float:
        return self.hours * HOUR

    def seeds(self, seeds: Sequence[int]) -> Sequence[int]:
        """Those of them that it is run with."""
        return seeds[:1] if self.hours > LONG_H else seeds


def between(begin_h: float, end_h: float, inside: float, outside: float) -> Callable[[float], float]:
    return lambda at_s: inside if begin_h * HOUR <= at_s < end_h * HOUR else outside


def ramp(*points: tuple[float, float]) -> Callable[[float], float]:
    """Straight lines between (hours, part)."""

    def at(at_s: float) -> float:
        hours = at_s / HOUR
        for (begin, low), (end, high) in pairwise(points):
            if hours < end:
                return low + (high - low) * max(0.0, hours - begin) / (end - begin)
        return points[-1][1]

    return at


def day(at_s: float) -> float:
    return 0.6 - 0.4 * math.cos(2 * math.pi * at_s / (DAY_H * HOUR))


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("diurnal", DAY_H, day),
        Scenario("flash-crowd", 2.0, between(0.75, 0.75 + 1 / 3, 1.0, 0.2)),
        Scenario("wave", 2.5, lambda at_s: 0.25, prompts=between(0.75, 1.75, 3.0, 1.0)),
        Scenario("decode-heavy", 2.5, lambda at_s: 0.3, answers=between(0.75, 1.75, 4.0, 1.0)),
        Scenario("prometheus-gone", 2.0, ramp((0.25, 0.3), (1.25, 0.9)), outage=(0.6 * HOUR, 0.6 * HOUR + 600)),
        Scenario("slow-start", 4.0, ramp((0.5, 0.3), (2.0, 0.9), (2.5, 0.9), (3.5, 0.3)), start_s=1200.0),
        Scenario("quota", 2.5, ramp((0.25, 0.3), (1.0, 1.0), (1.5, 1.0), (2.0, 0.3)), quota=6),
    )
}


def first_replicas(scenario: Scenario) -> int:
    """The fleet as it begins, for every scaler but the clairvoyant: what the first rate needs at full load."""
    return max(1, math.ceil(PODS * scenario.load(0.0)))


@cache
def trace_lengths() -> list[tuple[int, int]]:
    return [(request.prompt_tokens, request.output_tokens) for request in open_trace(str(TRACE))]


def true_work(prompt: int, answer: int, cost: StepCost = PROFILE.cost) -> float:
    """Seconds of full steps that a request takes."""
    pairs = prompt * (prompt + 1) / 2
    prefill = prompt * (cost.per_prefill_token_s + cost.fixed_s / LIMITS.max_num_batched_tokens)
    decode = answer * (cost.per_decode_token_s + (prompt + answer / 2) * cost.per_decode_context_token_s)
    return prefill + pairs * cost.per_attention_pair_s + decode


@cache
def full_rate() -> float:
    """Requests per second that eight pods serve."""
    lengths = trace_lengths()
    return PODS * PART * len(lengths) / sum(true_work(*pair) for pair in lengths)


@cache
def arrivals(scenario: Scenario, seed: int) -> list[tuple[float, int, int]]:
    """When each request comes, the tokens of its prompt and of its answer."""
    rng, lengths = random.Random(f"{scenario.name} {seed}"), trace_lengths()
    most = 1.05 * full_rate()
    found: list[tuple[float, int, int]] = []
    at_s = rng.expovariate(most)
    while at_s < scenario.seconds:
        prompt, answer = rng.choice(lengths)
        if rng.random() * most <= scenario.load(at_s) * full_rate():
            prompt = max(1, round(prompt * scenario.prompts(at_s)))
            found.append((at_s, prompt, max(1, round(answer * scenario.answers(at_s)))))
        at_s += rng.expovariate(most)
    return found


def requests(scenario: Scenario, seed: int) -> Iterator[SimRequest]:
    """In the order of their arrivals; the same for every scaler."""
    for number, (at_s, prompt, answer) in enumerate(arrivals(scenario, seed), 1):
        yield SimRequest(f"r{number}", prompt, answer, at_s)
