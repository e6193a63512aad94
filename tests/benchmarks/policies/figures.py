"""What one run is judged by, from when each request's tokens came."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.benchmarks.policies.cases import Job
from tests.support.demo.workload import quantile

Figures = dict[str, float]
"""By metric; what a run cannot show is left out (one token has no gap)."""

HIGHER_IS_BETTER = frozenset({"output_tokens_per_s"})


@dataclass
class Outcome:
    """A request and the times at which its tokens came, in seconds on the axis of `job.at_s`."""

    job: Job
    tokens_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.tokens_s[0] - self.job.at_s

    @property
    def e2e_s(self) -> float:
        return self.tokens_s[-1] - self.job.at_s

    @property
    def tpot_s(self) -> float:
        """Seconds per output token after the first; NaN for an answer of one token."""
        after = len(self.tokens_s) - 1
        return (self.tokens_s[-1] - self.tokens_s[0]) / after if after else math.nan

    @property
    def gaps_s(self) -> Iterable[float]:
        return (later - earlier for earlier, later in pairwise(self.tokens_s))


def figures_of(outcomes: Sequence[Outcome]) -> Figures:
    """All figures of a run in which every request was answered."""
    shorts = [outcome for outcome in outcomes if not outcome.job.is_long]
    longs = [outcome for outcome in outcomes if outcome.job.is_long]
    lasted = max(o.tokens_s[-1] for o in outcomes) - min(o.job.at_s for o in outcomes)
    figures = {
        "short_ttft_p50": quantile((o.ttft_s for o in shorts), 0.5),
        "short_ttft_p95": quantile((o.ttft_s for o in shorts), 0.95),
        "long_ttft_p95": quantile((o.ttft_s for o in longs), 0.95),
        "short_e2e_p95": quantile((o.e2e_s for o in shorts), 0.95),
        "long_e2e_p95": quantile((o.e2e_s for o in longs), 0.95),
        "e2e_p95": quantile((o.e2e_s for o in outcomes), 0.95),
        "short_tpot_p50": quantile((o.tpot_s for o in shorts), 0.5),
        "gap_p99": quantile((gap for o in outcomes for gap in o.gaps_s), 0.99),
        "output_tokens_per_s": sum(len(o.tokens_s) for o in outcomes) / lasted,
    }
    return {metric: value for metric, value in figures.items() if not math.isnan(value)}
