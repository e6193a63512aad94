"""What is asked of a role: seconds of work per second, from rates of tokens and the fitted step cost.

    prefill   tokens x (prefill_token + fixed / tokens of a full step) + pairs x attention_pair
    decode    tokens x (decode_token + context x decode_context_token)

A step's fixed cost is shared by the tokens of a full step, as it is once that counts; a prompt of n tokens looks at
n (n + 1) / 2 pairs, inside a bucket at the mean of a mass even in the logarithm. Requests are counted as they arrive,
so a fleet that cannot follow does not look idle.

Two windows: what the slow one says holds, unless the fast one is above it by more than `SURE` standard deviations of
its own: then it is no noise, and the fast one holds.

Where an engine shows no step cost, work is counted in tokens, and a pod's capacity is the tokens it did while requests
waited: an estimate, which knows nothing of attention's square.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from prefleet_operator.core.histogram import closed_buckets, mean_between
from prefleet_operator.core.observed import HistogramSnapshot
from prefleet_operator.core.sizing.values import PodServed, StepCost

SURE = 2.5
"""Standard deviations of the fast window above which it is believed."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Work per second, and requests; of one request the mean work and its squared coefficient of variation.

    `deviation`: the standard deviation of `per_s`, from the number of requests it rests on.
    """

    per_s: float
    request_s: float
    variation: float
    requests_per_s: float
    deviation: float


NOTHING = Demand(0.0, 0.0, 0.0, 0.0, 0.0)


def prompt_work(tokens: float, cost: StepCost, step_tokens: int) -> float:
    """Seconds of full steps that the prefill of one prompt takes."""
    pairs = tokens * (tokens + 1) / 2
    each = max(0.0, cost.prefill_token) + max(0.0, cost.fixed) / step_tokens
    return tokens * each + pairs * max(0.0, cost.attention_pair)


def answer_work(cost: StepCost, context: float) -> float:
    """Seconds that one token of an answer adds to a step."""
    return max(0.0, cost.decode_token + context * cost.decode_context_token)


def prefill_demand(lengths: HistogramSnapshot, window_s: float, cost: StepCost | None, step_tokens: int) -> Demand:
    """Of requests with these lengths, counted over a window. Without a cost work is tokens."""
    count = lengths.total
    if count <= 0:
        return NOTHING
    first = second = 0.0
    for lower, upper, requests in closed_buckets(lengths):
        tokens = mean_between(lower, upper)
        work = tokens if cost is None else prompt_work(tokens, cost, step_tokens)
        first += requests * work
        second += requests * work * work
    mean = first / count
    variation = max(0.0, second / count / (mean * mean) - 1) if mean > 0 else 0.0
    per_s = first / window_s
    return Demand(per_s, mean, variation, count / window_s, per_s * math.sqrt((1 + variation) / count))


def believe(slow: Demand, fast: Demand | None) -> Demand:
    """The slow window's demand, or the fast one's where it is surely above."""
    if fast is None or fast.per_s - SURE * fast.deviation <= slow.per_s:
        return slow
    return fast


def decode_demand(tokens_per_s: float, cost: StepCost, context: float) -> float:
    """Work per second of the answers."""
    return tokens_per_s * answer_work(cost, context)


def served_work(pod: PodServed, token_s: float, cost: StepCost, context: float) -> float:
    """Work per second that a pod did, `token_s` being what a prompt token cost on average."""
    return pod.prefill_tokens * token_s + decode_demand(pod.decode_tokens, cost, context)
