"""What is asked of a role: seconds of work per second, from rates of tokens and the fitted step cost.

    prefill   tokens x (prefill_token + fixed / tokens of a full step) + pairs x attention_pair
    decode    tokens x (decode_token + context x decode_context_token)

A step's fixed cost is shared by the tokens of a full step, as it is once that counts; a prompt of n tokens looks at
n (n + 1) / 2 pairs, inside a bucket at the mean of a mass even in the logarithm. Requests are counted as they arrive,
so a fleet that cannot follow does not look idle.

Which window is believed: the slow one, unless a shorter one is surely off it. The shorter ones are of one to
`GLANCES` fast windows, put together from what those saw (`glance`): a great change is sure after one, a lesser one
needs more. Of several that are sure it is the one whose near end is farthest from the slow window: long enough to be
sure, short enough not to hold what was before. How sure:
- a rise by `SURE` standard deviations of its own, since pods that it makes cost for a whole down window;
- by `SURE_IF_LATE` where requests wait for too long already;
- a fall by `SURE_OF_FALL`, since it is followed only where nothing else is seen for the down window. It must also be
  more than the slow window's own chance: a window without requests shows no deviation.

Where an engine shows no step cost, work is counted in tokens, and a pod's capacity is the tokens it did while requests
waited: an estimate, which knows nothing of attention's square.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from prefleet_operator.core.histogram import closed_buckets, mean_between
from prefleet_operator.core.observed import HistogramSnapshot
from prefleet_operator.core.sizing import steps
from prefleet_operator.core.sizing.values import Glance, PodServed, StepCost

SURE, SURE_IF_LATE, SURE_OF_FALL = 2.5, 1.5, 1.0
"""Standard deviations of a shorter window beyond which it is believed."""
GLANCES = 5
"""The most fast windows that make a shorter one."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Work per second, and requests; of one request the mean work and its squared coefficient of variation.

    `deviation`: the standard deviation of `per_s`, from the number of requests it rests on. `risen`: a shorter window
    proved a rise, which is no noise.
    """

    per_s: float
    request_s: float
    variation: float
    requests_per_s: float
    deviation: float
    risen: bool = False


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


def glance(past: Sequence[Glance], fast: Demand | None, fast_s: float, now: float) -> tuple[Glance, ...]:
    """What the fast windows saw, one in each part of their length, with this one; the first of a part is kept."""
    part = steps.whole_periods(fast_s)
    at_s = steps.began(now, part)
    kept = tuple(one for one in past if one.at_s > now - GLANCES * part)
    if fast is None or any(one.at_s == at_s for one in kept):
        return kept
    return (*kept, Glance(at_s, fast.per_s, fast.deviation, fast.requests_per_s))


def believe(
    slow: Demand, fast: Demand | None, past: Sequence[Glance], fast_s: float, now: float, sure: float = SURE
) -> Demand:
    """The slow window's demand, or that of a shorter one which is surely off it; `sure` deviations make a rise."""
    if fast is None:
        return slow
    windows = list(_windows(slow, fast, past, fast_s, now))
    rise = max(windows, key=lambda one: one.per_s - sure * one.deviation)
    if rise.per_s - sure * rise.deviation > slow.per_s:
        return replace(rise, risen=True)
    chances = [max(one.deviation, _chance(slow, number * fast_s)) for number, one in enumerate(windows, 1)]
    highest, fall = min(
        ((one.per_s + SURE_OF_FALL * chance, one) for one, chance in zip(windows, chances, strict=True)),
        key=lambda pair: pair[0],
    )
    return fall if highest < slow.per_s else slow


def _windows(slow: Demand, fast: Demand, past: Sequence[Glance], fast_s: float, now: float) -> Iterator[Demand]:
    """Demand of the last one, two, ... fast windows, none of which holds a part of another."""
    seen = [(fast.per_s, fast.deviation, fast.requests_per_s)]
    seen += [(one.per_s, one.deviation, one.requests_per_s) for one in reversed(past) if one.at_s <= now - fast_s]
    for number in range(1, len(seen) + 1):
        per_s, requests = (sum(one[at] for one in seen[:number]) / number for at in (0, 2))
        deviation = math.sqrt(sum(one[1] ** 2 for one in seen[:number])) / number
        request_s = per_s / requests if requests > 0 else 0.0
        # How much requests differ among themselves is better known from many.
        yield Demand(per_s, request_s, slow.variation, requests, deviation)


def _chance(slow: Demand, window_s: float) -> float:
    """The standard deviation of a window of this length, were all as the slow one saw it."""
    requests = slow.requests_per_s * window_s
    return slow.per_s * math.sqrt((1 + slow.variation) / requests) if requests > 0 else 0.0


def decode_demand(tokens_per_s: float, cost: StepCost, context: float) -> float:
    """Work per second of the answers."""
    return tokens_per_s * answer_work(cost, context)


def served_work(pod: PodServed, token_s: float, cost: StepCost, context: float) -> float:
    """Work per second that a pod did, `token_s` being what a prompt token cost on average."""
    return pod.prefill_tokens * token_s + decode_demand(pod.decode_tokens, cost, context)
