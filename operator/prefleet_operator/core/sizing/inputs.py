"""From a spec and what is seen of a fleet to what sizing asks for.

Rules. How long a request may wait is `slo.longQueueWait` at `tuning.waitQuantile`. It is not `slo.shortTTFT`: the order
of the queue keeps that one, and so many pods that first-come-first-served kept it would be paid for twice. Where long
requests under strict short-first wait longer than the formula says of all, the tuner's measurement of them raises the
fleet (`arbiter`). Roles that are not sized have their part of the accelerators already.

Start. How long pods take from creation to ready is the median over pods that are ready. The time that a pod tells is
that of its last turn to ready, so one whose containers were restarted tells nothing, and neither does one that took
longer than `LONGEST_START_S`: it has turned once more, which nothing else shows. The median bears the few that are
left. Waiting for a node is part of it, as it will be for the next pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields
from statistics import median

from prefleet_operator.api import PrefillPolicySpec, Role
from prefleet_operator.core.observed import Missing, PodView, Reading, Sample
from prefleet_operator.core.sizing.arbiter import WaitSignal
from prefleet_operator.core.sizing.values import RoleLoad, RoleMeasures, RoleRules, RoleSignals, SizingRules
from prefleet_operator.core.tuning import TuningDecision

LONGEST_START_S = 3600.0
DEFAULT_STEP_TOKENS = 2048
"""vLLM's own default of max_num_batched_tokens for a server."""

_QUANTILES = {"P90": 0.90, "P95": 0.95}


def rules_of(spec: PrefillPolicySpec) -> SizingRules:
    """What the spec asks of sizing. Only for a spec with `autoscaling`."""
    autoscaling = spec.autoscaling
    assert autoscaling is not None
    ratio, sized = autoscaling.ratio, spec.sized_roles()
    return SizingRules(
        roles={
            role: RoleRules(bounds.min_replicas, bounds.max_replicas, spec.roles()[role].accelerators)
            for role, bounds in sized.items()
        },
        wait_s=spec.slo.long_queue_wait_s,
        quantile=_QUANTILES[spec.tuning.wait_quantile],
        gap_s=spec.slo.inter_token_gap_s,
        drain_s=autoscaling.drain_s,
        ratio=None if ratio is None else (ratio.min, ratio.max),
        quota=_quota(spec, autoscaling.max_accelerators),
        down_window_s=autoscaling.down_window_s,
        cooldown_s=spec.tuning.cooldown_s,
    )


def _quota(spec: PrefillPolicySpec, most: int | None) -> int | None:
    """What the accelerators of the fleet leave to the roles that are sized."""
    if most is None:
        return None
    fixed = [given for role, given in spec.roles().items() if role not in spec.sized_roles()]
    return most - sum(given.replicas * given.accelerators for given in fixed)


def signals_of(role: Role, replicas: int, pods: Sequence[PodView], load: RoleLoad, now: float) -> RoleSignals:
    """What is seen of one role that is to have so many replicas now."""
    there = [pod for pod in pods if pod.role is role and not pod.terminating]
    step_tokens = DEFAULT_STEP_TOKENS if isinstance(load.step_tokens, Missing) else load.step_tokens.value
    return RoleSignals(
        replicas=replicas,
        ready=sum(pod.ready for pod in there),
        starting=sum(not pod.ready and pod.trouble is None for pod in there),
        start_s=start_time(there, now),
        step_tokens=max(1, step_tokens),
        template=_common({pod.template for pod in there if pod.ready}),
        **{measure.name: getattr(load, measure.name) for measure in fields(RoleMeasures)},
    )


def _common(templates: AbstractSet[str]) -> str | None:
    """The one that there is, if there is one alone."""
    return next(iter(templates)) if len(templates) == 1 else None


def start_time(pods: Iterable[PodView], now: float) -> Reading[float]:
    """Seconds from the creation of a pod to its turning ready; see the module."""
    took = [
        pod.ready_since_s - pod.created_s
        for pod in pods
        if pod.ready and not pod.restarted and pod.ready_since_s is not None and pod.created_s is not None
    ]
    known = [seconds for seconds in took if 0 <= seconds <= LONGEST_START_S]
    return Sample(median(known), now) if known else Missing("no pod has shown how long it takes to be ready.")


def wait_signal(decision: TuningDecision, spec: PrefillPolicySpec, unfit: bool) -> WaitSignal:
    """What the tuner says of the waits of long requests. `unfit`: it would move a setting."""
    return WaitSignal(decision.normal_wait_s, spec.slo.long_queue_wait_s, unfit)
