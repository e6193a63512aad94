"""Whether a fleet that runs also serves as it should: whether its capacity suffices, and its queue keeps its word.

CapacityLimited is the tuner's word here (of a fleet that may not have the pods that it needs, see `scaling`): long
requests wait so long without any promotion that no wait limit keeps `slo.longQueueWait`. Degraded is the queue's own:
at least `DEGRADATIONS` times in the window a run of aged long requests was held back, or, where agedShare is 1, went
before waiting short ones. It ends only with a window in which that did not happen once, so that a fleet at the edge
does not flap. Neither says anything on missing data.

Left out: pods that are missing, which Ready counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from prefleet_operator.api import Condition, ConditionType, PrefillPolicySpec
from prefleet_operator.core.observed import Missing, Reading, Sample
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.sizing.arbiter import CAPACITY_SHARE
from prefleet_operator.core.status import FALSE, TRUE, UNKNOWN, Verdict, find_condition
from prefleet_operator.core.tuning import TuningDecision

DEGRADATIONS = 3
"""Within one window: one may be a burst, three are a state."""

_MEASURED = (Reason.WAIT_FROM_LONG_WAITS, Reason.WITHIN_HYSTERESIS, Reason.COOLING_DOWN)
"""Reasons of a wait limit behind which stands a measured W_normal that leaves room."""


def judge_capacity(decision: TuningDecision, noisy: bool, sized: bool = False) -> Verdict:
    """CapacityLimited: no wait limit would keep the SLO of long requests. `noisy` as for Tuned. `sized`: the fleet
    grows by itself."""
    kind, finding = ConditionType.CAPACITY_LIMITED, decision.wait_finding
    if decision.capacity_limited:
        grows = f"it grows by itself once that is {CAPACITY_SHARE:.0%} of slo.longQueueWait, or allow more there"
        advice = grows if sized else "add replicas, or allow more in slo.longQueueWait"
        message = f"{finding.message}; {advice}."
        return Verdict(kind, TRUE, Reason.CAPACITY_LIMITED, message, noisy)
    if finding.reason in _MEASURED:
        return Verdict(kind, FALSE, Reason.CAPACITY_SUFFICES, f"{finding.message}.", noisy)
    if finding.reason is Reason.RESTART_BUDGET_SPENT:
        message = f"Not judged while the wait limit is held: {finding.message}."
        return Verdict(kind, UNKNOWN, finding.reason, message, noisy)
    message = f"How long requests wait without promotion is not known: {finding.message}."
    return Verdict(kind, UNKNOWN, finding.reason, message, noisy)


def judge_degraded(degradations: Reading[float], spec: PrefillPolicySpec, previous: Sequence[Condition]) -> Verdict:
    """Degraded: again and again the queue could not do for aged long requests what it is set to."""
    kind = ConditionType.DEGRADED
    if not isinstance(degradations, Sample):
        why = degradations.clause if isinstance(degradations, Missing) else "the last count is stale"
        reason = Reason.METRICS_MISSING if isinstance(degradations, Missing) else Reason.METRICS_STALE
        return Verdict(kind, UNKNOWN, reason, f"Degradations are not counted: {why}.", noisy=True)
    counted, before = round(degradations.value), find_condition(previous, kind)
    lasts = before is not None and before.status is TRUE and counted > 0
    if counted >= DEGRADATIONS or lasts:
        return Verdict(kind, TRUE, *_tell_degradations(counted, spec), noisy=True)
    message = f"Fewer than {DEGRADATIONS} runs of long requests past longMaxWait in {spec.tuning.window}."
    return Verdict(kind, FALSE, Reason.SERVING_AS_SET, message)


def _tell_degradations(counted: int, spec: PrefillPolicySpec) -> tuple[Reason, str]:
    """What the queue counts depends on the share: under the plain rule it is the shorts that suffer."""
    window = spec.tuning.window
    if spec.scheduling.aged_share == 1:
        return Reason.SHORTS_OVERTAKEN, (
            f"Long requests past longMaxWait overtook short ones, three in a row, {counted} times in {window}: "
            "add replicas, or lower agedShare."
        )
    return Reason.LONGS_HELD_BACK, (
        f"Long requests past longMaxWait were held back {counted} times in {window}, "
        "since they have had their agedShare while short ones wait: add replicas, or raise agedShare."
    )
