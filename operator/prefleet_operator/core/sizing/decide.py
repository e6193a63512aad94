"""How many pods a fleet needs: (inputs, memory, now) -> (decision, memory).

Algorithm, for each role
1. Signals that are needed and are not fresh hold the number of pods as it is. So does a role that is not known well
   enough: no step cost, and no pod that has shown what it can do; and one whose number somebody else's autoscaler sets.
2. Demand in seconds of work per second (`demand`), as it will be once a pod ordered now is ready (`steps.foresee`).
   A shorter window that proves a rise or a fall is believed before the slow one shows it.
3. The smallest number of pods that keeps waits (by replay, else by formula: an estimate), inter-token gaps and KV
   memory (`waits`), and drains the present backlog in time; each pod is worth what pods really did (`capacity`).
4. Small steps (`steps`): pods that start count as there; more only at `CAUTION` less demand, fewer only if those would
   serve `MARGIN` more; calm; damp; stabilise. A fleet that long waits prove short of capacity gets one pod more
   (`arbiter`).
Then over the roles: ratio, bounds, accelerators.

Invariants: pure; the same inputs give the same decision; nothing ever falls to 0 but by `maxReplicas` 0; a role that
holds keeps its number also against ratio and accelerators, though not against bounds, which the spec has given (unless
the number is somebody else's). No rise is taken back within the down window, but by bounds. A fall may be followed by a
rise within it: only by one that is no noise, since whoever holds back pods that are needed breaks the promise. How
often one asks does not matter: what is remembered changes once in a period of 15 s (`steps.began`), and damping counts
from where that began.

Left out: which pod goes; what a pod of another kind of accelerator would be worth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from prefleet_operator.api import Role
from prefleet_operator.core.observed import HistogramSnapshot, Missing, Reading, Sample, Stale
from prefleet_operator.core.reasons import UNMEASURED, Reason
from prefleet_operator.core.sizing import steps, waits
from prefleet_operator.core.sizing.arbiter import Act, arbitrate
from prefleet_operator.core.sizing.values import (
    Mark,
    RoleMemory,
    RoleSignals,
    RoleSize,
    SizingDecision,
    SizingInputs,
    SizingMemory,
    SizingRules,
)
from prefleet_operator.core.sizing.work import Work, look, start_time, value_of
from prefleet_operator.core.tuning import format_time

MARGIN = 0.25
"""A smaller fleet must be able to serve so much more than what is asked: who falls with less soon rises again."""

DOUBT = 2.0
"""And so many standard deviations of the demand more."""

BY_CHANCE = 0.1
"""So much of what decode pods show to be needed may be noise."""

CAUTION = 0.5
"""A larger one must be needed also at so many deviations less: noise raises a fleet at once, and for a whole window."""

SURE = 2.5
"""What lies so many deviations lower is sure."""

UNKNOWN_CAPACITY = "the engine shows no step cost, and no pod has yet been busy while requests waited"


@dataclass(frozen=True, slots=True)
class _Need:
    """So many pods, why; the same with the margin, and without what may be noise."""

    pods: int
    roomy: int
    sure: int
    reason: Reason
    numbers: Mapping[str, float]
    estimate: bool


def decide_size(inputs: SizingInputs, memory: SizingMemory, now: float) -> tuple[SizingDecision, SizingMemory]:
    """One decision. `now` in Unix seconds."""
    act, waits_memory, told = arbitrate(inputs.waits, memory.waits, inputs.rules.cooldown_s, now)
    # Windows open and close with a period: one that ended within it would be over for those alone who ask just then.
    now = float(steps.began(now))
    sizes: dict[Role, RoleSize] = {}
    memories: dict[Role, RoleMemory] = {}
    for role, signals in inputs.roles.items():
        known = memory.roles.get(role, RoleMemory())
        short = told if act is Act.SCALE and role is not Role.DECODE else None
        sizes[role], memories[role] = _size_role(role, signals, inputs, known, short, now)
    if act is Act.SCALE and all(size.reason is not Reason.LONG_WAITS for size in sizes.values()):
        waits_memory = memory.waits
    decided = _together(sizes, inputs)
    for role, size in decided.items():
        replicas = inputs.roles[role].replicas
        if size.desired <= replicas:
            # What bounds and accelerators have not let it grow by is not owed to it later.
            memories[role] = replace(memories[role], raised=memory.roles.get(role, RoleMemory()).raised)
        if size.desired < replicas:
            memories[role] = replace(memories[role], fell_at_s=int(now))
        elif size.desired > replicas:
            memories[role] = replace(memories[role], rose_at_s=int(now))
    return SizingDecision(decided), SizingMemory(memories, waits_memory)


# --- one role ----------------------------------------------------------------------------------------------------


def _size_role(
    role: Role, signals: RoleSignals, inputs: SizingInputs, memory: RoleMemory, short: str | None, now: float
) -> tuple[RoleSize, RoleMemory]:
    held = _hold(role, signals)
    if held is not None:
        return held, memory
    if role is Role.DECODE:
        need = _decode_need(signals, inputs.rules)
    else:
        work, memory = look(role, signals, inputs, memory, now)
        if work is None:
            return _kept(role, signals, Reason.LEARNING_CAPACITY, UNKNOWN_CAPACITY), memory
        need = _prefill_need(role, signals, inputs.rules, work)
    rules, replicas = inputs.rules, signals.replicas
    window_s = rules.down_window_s
    memory = replace(
        memory,
        needs=steps.remember(memory.needs, need.roomy, window_s, now),
        base=steps.base(memory.base, replicas, now),
    )
    calmed = steps.calm(need.pods, need.sure, replicas, memory.fell_at_s, window_s, now)
    if short is not None and calmed <= replicas:
        memory = replace(memory, raised=Mark(int(now), replicas + 1))
    return _step(role, replicas, replace(need, pods=calmed), memory, short or "as of late", rules, now), memory


def _hold(role: Role, signals: RoleSignals) -> RoleSize | None:
    """The size as it is where it is not the operator's to change, or a signal that it goes by is not fresh."""
    if signals.other:
        told = f"{signals.other} sets their number; delete it, or remove spec.autoscaling.{role.value}"
        return _kept(role, signals, Reason.SCALED_BY_ANOTHER, told)
    needed: list[tuple[str, Reading[HistogramSnapshot] | Reading[float]]] = []
    if role is not Role.DECODE:
        needed += [("lengths of arriving requests", signals.arrivals), ("waiting tokens", signals.waiting_tokens)]
    if role is not Role.PREFILL:
        needed += [("running sequences", signals.running), ("KV use", signals.kv_usage)]
    for name, reading in needed:
        if isinstance(reading, Missing):
            return _kept(role, signals, Reason.METRICS_MISSING, f"{name}: {reading.clause}")
        if isinstance(reading, Stale):
            told = f"{name}: the last reading is of {format_time(reading.at_s)}"
            return _kept(role, signals, Reason.METRICS_STALE, told)
    return None


def _kept(role: Role, signals: RoleSignals, reason: Reason, told: str) -> RoleSize:
    return RoleSize(role, signals.replicas, reason, f"{signals.replicas} {role.value} pods stay: {told}")


def _prefill_need(role: Role, signals: RoleSignals, rules: SizingRules, work: Work) -> _Need:
    start_s = start_time(signals)
    drain_s = steps.drain_time(rules.drain_s, signals.starting, start_s)
    drained = work.backlog / drain_s
    most = rules.roles[role].max_replicas
    by_kv = 0.0
    if role is Role.MIXED:
        by_kv = waits.pods_by_kv(
            value_of(signals.kv_usage), signals.ready, value_of(signals.waiting_tokens), value_of(signals.kv_tokens)
        )

    def pods_for(asked: float) -> int:
        found = waits.smallest(lambda pods: _keeps(pods, asked, rules, work), 1, most)
        return most + 1 if found is None else found

    noise = work.prefill.deviation
    served = pods_for(work.ahead if work.prefill.risen else max(0.0, work.ahead - CAUTION * noise))
    with_backlog = math.ceil((work.asked + drained) / work.capacity.low / waits.LOAD_MOST - 1e-9)
    memory = math.ceil(by_kv - 1e-9)
    pods = max(served, with_backlog, memory, 1)
    more = max(MARGIN * work.ahead, DOUBT * noise)
    roomy = max(pods_for(work.ahead + more), with_backlog, math.ceil(by_kv * (1 + MARGIN) - 1e-9), 1)
    sure = pods if work.prefill.risen else max(pods_for(max(0.0, work.asked - SURE * noise)), memory, 1)
    reason = Reason.DEMAND if pods == served else Reason.BACKLOG if pods == with_backlog else Reason.DECODE_LOAD
    numbers = {
        "workPerSecond": work.asked,
        "foreseen": work.ahead,
        "answers": work.answers,
        "backlogSeconds": work.backlog,
        "capacity": work.capacity.mean,
        "spread": work.capacity.spread,
        "byWaits": served,
        "byBacklog": with_backlog,
        "byKV": by_kv,
    }
    return _Need(pods, max(pods, roomy), sure, reason, numbers, estimate=work.replay is None)


def _keeps(pods: int, asked: float, rules: SizingRules, work: Work) -> bool:
    """Whether so many pods keep gaps and waits."""
    worth = work.capacity.low
    load = asked / (pods * worth)
    most = waits.LOAD_MOST
    if work.full_step_s > 0:
        most = min(most, waits.load_by_gap(rules.gap_s, work.full_step_s, work.decode_step_s))
    if load > most:
        return False
    if work.replay is not None:
        return work.replay(pods) <= rules.wait_s
    request_s = work.prefill.request_s * (1 + work.answers / work.prefill.per_s) if work.prefill.per_s > 0 else 0.0
    return waits.wait_at(rules.quantile, pods, load, request_s / worth, work.prefill.variation) <= rules.wait_s


def _decode_need(signals: RoleSignals, rules: SizingRules) -> _Need:
    """By KV and by gaps; what starts is taken to share the load already, so readings are those of the ready pods."""
    cost = signals.step_cost.value if isinstance(signals.step_cost, Sample) else None
    fixed_s = 0.0 if cost is None else max(0.0, cost.fixed)
    kv = waits.pods_by_kv(
        value_of(signals.kv_usage), signals.ready, value_of(signals.waiting_tokens), value_of(signals.kv_tokens)
    )
    gap_s, running = value_of(signals.gap_s), value_of(signals.running)
    by_gap = waits.pods_by_gap(rules.gap_s, gap_s, running, signals.ready, fixed_s)
    most = rules.roles[Role.DECODE].max_replicas + 1

    def whole(pods: float) -> int:
        return most if pods >= most else max(1, math.ceil(pods - 1e-9))

    by_both = max(kv, by_gap)
    pods, roomy, sure = whole(by_both), whole(by_both * (1 + MARGIN)), whole(by_both * (1 - BY_CHANCE))
    numbers = {"running": running, "gapSeconds": gap_s, "byKV": kv, "byGap": by_gap}
    return _Need(pods, roomy, sure, Reason.DECODE_LOAD, numbers, estimate=cost is None)


def _step(
    role: Role,
    replicas: int,
    need: _Need,
    memory: RoleMemory,
    short: str,
    rules: SizingRules,
    now: float,
) -> RoleSize:
    """From what is needed to a number of replicas."""
    pods, reason, told = need.pods, need.reason, _told(need)
    floor = steps.floor(memory.raised, rules.down_window_s + rules.cooldown_s, now)
    if floor > pods:
        pods, reason, told = floor, Reason.LONG_WAITS, f"{floor} for long waits, {short}; {told}"
    wanted = steps.tolerate(pods, max(pods, need.roomy), replicas)
    if wanted == replicas and pods < replicas:
        reason = Reason.WITHIN_TOLERANCE
    assert memory.base is not None
    damped = steps.damp(wanted, int(memory.base.value))
    if damped != wanted:
        reason = Reason.DAMPED
    stable = steps.stabilise(damped, replicas, memory.needs, memory.rose_at_s, rules.down_window_s, now)
    if stable != damped:
        reason = Reason.STABILISING
    message = f"{stable} {role.value} pods, {need.pods} needed: {told}"
    return RoleSize(role, stable, reason, message, {**need.numbers, "needed": need.pods}, need.estimate)


def _told(need: _Need) -> str:
    told = ", ".join(f"{name} {value:.3g}" for name, value in need.numbers.items())
    return f"{told}; an estimate" if need.estimate else told


# --- all roles ---------------------------------------------------------------------------------------------------

_HOLDS = (*UNMEASURED, Reason.LEARNING_CAPACITY, Reason.SCALED_BY_ANOTHER)


def _together(sizes: Mapping[Role, RoleSize], inputs: SizingInputs) -> dict[Role, RoleSize]:
    decided = _in_ratio(dict(sizes), inputs.rules)
    for role, size in decided.items():
        decided[role] = size if inputs.roles[role].other else _bounded(size, inputs.rules)
    wanted = {role: size.desired for role, size in decided.items()}
    present = {role: signals.replicas for role, signals in inputs.roles.items()}
    given = steps.budget(wanted, present, inputs.rules.roles, inputs.rules.quota)
    for role, size in decided.items():
        if given[role] < size.desired:
            told = f"{size.message}; {given[role]} by the quota of {inputs.rules.quota} accelerators"
            decided[role] = replace(
                size, desired=given[role], reason=Reason.QUOTA_EXHAUSTED, message=told, limited=True
            )
    return decided


def _in_ratio(sizes: dict[Role, RoleSize], rules: SizingRules) -> dict[Role, RoleSize]:
    if Role.PREFILL not in sizes or Role.DECODE not in sizes:
        return sizes
    kept = steps.keep_ratio(sizes[Role.PREFILL].desired, sizes[Role.DECODE].desired, rules.ratio)
    for role, pods in zip((Role.PREFILL, Role.DECODE), kept, strict=True):
        size = sizes[role]
        if pods != size.desired and size.reason not in _HOLDS:
            told = f"{size.message}; {pods} to keep the ratio of prefill to decode pods"
            sizes[role] = replace(size, desired=pods, reason=Reason.RATIO_KEPT, message=told)
    return sizes


def _bounded(size: RoleSize, rules: SizingRules) -> RoleSize:
    bounds = rules.roles[size.role]
    pods = steps.bound(size.desired, bounds)
    short = max(size.numbers.get("needed", 0), size.desired) > bounds.max_replicas
    if pods == size.desired:
        return replace(size, limited=short)
    at_most = pods < size.desired
    reason, name = (Reason.AT_MAX_REPLICAS, "maxReplicas") if at_most else (Reason.AT_MIN_REPLICAS, "minReplicas")
    return replace(size, desired=pods, reason=reason, message=f"{size.message}; {pods} by {name}", limited=short)
