"""Whether a fleet is measured: the condition MetricsAvailable, and which gaps in its readings nobody is told of. Pure.

One scrape that fails is no news: a condition that turned with it, and back with the next, would send an Event each way
and move its lastTransitionTime for nothing. So of a fleet that was measured, a gap shorter than `GAP_S` is passed over:
what the conditions said before it goes on to stand, in MetricsAvailable and in all others that rest on readings. A
longer one is told, with the time since when. That is what is said alone: every decision goes by the readings as they
are, so nothing moves in a gap however short.

A gap is counted from the first reading that failed; of a series that has stopped moving, from its last value. What is
told under another spec, or of a fleet that was not measured before, is told at once.

Left out: what a policy generation that cannot be read means (`status`); its last report stands for as long.
"""

from __future__ import annotations

from collections.abc import Sequence

from prefleet_operator.api import Condition, ConditionType, Role
from prefleet_operator.core.observed import HistogramSnapshot, Missing, Reading, Sample, Stale
from prefleet_operator.core.reasons import UNMEASURED, Reason
from prefleet_operator.core.status import FALSE, TRUE, UNKNOWN, Facts, Verdict, find_condition
from prefleet_operator.core.tuning import format_time

GAP_S = 60.0
"""Twelve of the operator's own readings, and one of Prometheus's at its usual interval."""

FIRST_METRICS_S = 60
"""How long a pod may serve before its metrics are missed: two scrapes at Prometheus's usual interval."""

_KIND = ConditionType.METRICS_AVAILABLE

Lengths = Reading[HistogramSnapshot]


def judge_metrics(lengths: Lengths, missed_since_s: float | None, sources: Sequence[str], facts: Facts) -> Verdict:
    """MetricsAvailable: the lengths of the fleet's requests are known freshly.

    `missed_since_s`: when the first reading in a row was taken that had none; None if the last one had.
    """
    source = facts.spec.metrics_source
    if source not in sources:
        message = (
            f'There is no metrics source "{source}": name one of {", ".join(sources)}, '
            "or ask the installer to add it to metricsSources."
        )
        return Verdict(_KIND, FALSE, Reason.UNKNOWN_METRICS_SOURCE, message)
    if not any(pod.role is not Role.DECODE for pod in facts.ready_pods()):
        message = f"No prefill pod is ready, so {source} has nothing to read."
        return Verdict(_KIND, UNKNOWN, Reason.NO_READY_PODS, message)
    if isinstance(lengths, Missing):
        outcome = UNKNOWN if _just_ready(facts) else FALSE
        told = f"{source} has no request lengths"
        if missed_since_s is not None:
            told = f"{source} has had no request lengths since {format_time(missed_since_s)}"
        return Verdict(_KIND, outcome, Reason.METRICS_MISSING, f"{told}: {lengths.reason}", noisy=True)
    if isinstance(lengths, Stale):
        return Verdict(_KIND, FALSE, Reason.METRICS_STALE, _tell_stale(source, lengths), noisy=True)
    return Verdict(_KIND, TRUE, Reason.METRICS_FRESH, f"{source} answers with fresh request lengths.")


def is_brief_gap(
    lengths: Lengths, missed_since_s: float | None, standing: Sequence[Condition], generation: int, now: float
) -> bool:
    """Whether the readings of a fleet that was measured under this very spec are missing for less than `GAP_S`."""
    before = find_condition(standing, _KIND)
    if before is None or before.status is not TRUE or before.observed_generation != generation:
        return False
    if isinstance(lengths, Sample) or missed_since_s is None:
        return False
    since_s = min(missed_since_s, lengths.at_s) if isinstance(lengths, Stale) else missed_since_s
    return 0 <= now - since_s < GAP_S


def pass_over(verdicts: Sequence[Verdict], standing: Sequence[Condition]) -> tuple[Verdict, ...]:
    """The verdicts less those that tell of nothing but a gap, where another of their kind stands already."""
    return tuple(
        each for each in verdicts if each.reason not in UNMEASURED or find_condition(standing, each.type) is None
    )


def _tell_stale(source: str, lengths: Stale[HistogramSnapshot]) -> str:
    since = format_time(lengths.at_s)
    if lengths.why:
        return f"{source} has read no request lengths since {since}: {lengths.why}"
    return f"{source} answers, but its latest request lengths are of {since}: see whether it still scrapes the pods."


def _just_ready(facts: Facts) -> bool:
    """Whether every pod that could be measured has been ready for so short that it need not have been."""
    oldest = min(pod.ready_since_s or 0 for pod in facts.ready_pods() if pod.role is not Role.DECODE)
    return facts.now - oldest < FIRST_METRICS_S
