"""What replaying the fleet's own last window says of a setting, and which of several settings it prefers.

The replay itself is an argument: `core` neither simulates nor knows where the window comes from. Whoever replays takes
the busiest stretch of what was recorded, and judges all settings on the same requests, split into short and long ones
at a fixed length, so that a request counts as the same kind under every threshold.

What is preferred
- Of thresholds the one with the least mean TTFT of short requests: `THRESHOLDS` points of the band at equal ratios,
  then `HALVINGS` times the middles between the best and its neighbours, since the best often lies just above a
  cliff (a little lower, and some short requests wait with the long ones). A valley outside costs up to the price of
  the waits.
- Of wait limits those count as equal that cost short requests at most `PRICE` x (1 - bias) more than the best one.
  Among those the limit wins under which the fewest long requests wait beyond their SLO, then the better one for
  short ones, then (nothing was promoted, say) the one nearest to what would be set without replay. So `bias` keeps
  its meaning: at 0 short requests pay up to `PRICE` for the long ones, at 1 nothing.
- Under overload every long request is past any limit, and the limit decides nothing. Promotion then costs short
  requests up to `agedShare` of the capacity while they wait (a threshold whose shorts bring nearly 1 - share lets
  them pile up), and at least one long request each time that their queue has emptied, however small the share. `fits`
  says whether that leaves their P95 within `PROMOTION_LIMIT` of strict short-first's; `prefleet advise` acts on it,
  the tuner does not.

Why a mean and not a P95: the mean of a window is stable where its P95 rests on a few bursts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

PRICE = 0.04
PROMOTION_LIMIT = 1.3
THRESHOLDS = 7
HALVINGS = 2
WAITS = 5


@dataclass(frozen=True, slots=True)
class ReplayScore:
    """What the requests of one window meet under one setting. Seconds.

    `shorts` requests of at most the fixed length have a TTFT of `short_mean_s` on average and `short_p95_s` at P95.
    `late_share`: the part of all longer ones that wait beyond slo.longQueueWait. `long_waits` requests left the long
    lane, which the setting's own threshold divides off; these are the P90 and the P95 of their waits.
    """

    shorts: int
    short_mean_s: float
    short_p95_s: float
    late_share: float
    long_waits: int
    long_p90_s: float
    long_p95_s: float

    @property
    def cost_s(self) -> float:
        """What is to be small: the mean short TTFT; infinite where no short request was replayed."""
        return self.short_mean_s if self.shorts else math.inf

    def long_wait_s(self, quantile: str) -> float:
        """The wait at `spec.tuning.waitQuantile`."""
        return self.long_p90_s if quantile == "P90" else self.long_p95_s


ReplayFunction = Callable[[int, float], ReplayScore]
"""(threshold in tokens, longMaxWait in seconds, 0: no promotion) -> the score. Equal arguments, equal score."""


def search(coarse: Sequence[int], rehearse: Callable[[int], ReplayScore]) -> dict[int, ReplayScore]:
    """The scores of these thresholds, which rise, and of finer ones around the best; empty for none."""
    tried = {threshold: rehearse(threshold) for threshold in coarse}
    for _ in range(HALVINGS if tried else 0):
        places = sorted(tried)
        at = places.index(cheapest(tried))
        around = places[max(0, at - 1) : at + 2]
        for middle in (math.isqrt(low * high) for low, high in pairwise(around)):
            if middle not in tried:
                tried[middle] = rehearse(middle)
    return tried


def cheapest(scores: Mapping[int, ReplayScore]) -> int:
    """The threshold that is best for short requests; the lowest of equals."""
    return min(sorted(scores), key=lambda threshold: scores[threshold].cost_s)


def price(bias: float) -> float:
    """What short requests may pay at most, as a factor of their mean TTFT."""
    return 1 + PRICE * (1 - bias)


def prefer_wait(scores: Mapping[float, ReplayScore], bias: float, usual_s: float) -> float:
    """The preferred of several wait limits in seconds. `usual_s`: the limit without replay."""
    limit = min(score.cost_s for score in scores.values()) * price(bias)
    equals = [wait_s for wait_s, score in scores.items() if score.cost_s <= limit]
    return min(equals, key=lambda at: (scores[at].late_share, scores[at].cost_s, abs(at - usual_s)))


def fits(score: ReplayScore, strict: ReplayScore) -> bool:
    """Whether promotion leaves short requests nearly what they had under strict short-first at the same threshold."""
    return not score.short_p95_s > PROMOTION_LIMIT * strict.short_p95_s


def span_of(scores: Mapping[float, ReplayScore] | Mapping[int, ReplayScore]) -> str:
    """The numbers behind a preference, for the middle of a sentence."""
    means = [score.cost_s for score in scores.values()]
    return f"mean short TTFT {min(means):.3f} to {max(means):.3f} s"


def spread(low: float, high: float, count: int) -> list[float]:
    """`count` values from `low` to `high`, both included, at equal ratios; one where they are equal."""
    if high <= low:
        return [low]
    return [low * (high / low) ** (step / (count - 1)) for step in range(count - 1)] + [high]
