"""What is asked of prefill or mixed pods, and what one of them is worth: from a role's signals and its memory.

Work is in seconds per second, or in tokens where no step cost is known (`demand`); a pod is worth what pods really did
(`capacity`). What is learnt on the way goes into the memory that is answered: at most once in each period of damping,
so that it does not matter how often one looks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from prefleet_operator.api import Role
from prefleet_operator.core.observed import Reading, Sample
from prefleet_operator.core.sizing import steps
from prefleet_operator.core.sizing.capacity import capacity_of, learn, plausible
from prefleet_operator.core.sizing.demand import (
    SURE,
    SURE_IF_LATE,
    Demand,
    answer_work,
    believe,
    decode_demand,
    glance,
    prefill_demand,
    prompt_work,
    served_work,
)
from prefleet_operator.core.sizing.values import (
    Capacity,
    PodServed,
    ReplayFunction,
    RoleMemory,
    RoleSignals,
    SizingInputs,
    StepCost,
)

START_S = 120.0
"""How long pods take to be ready, until one has shown it."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked of a role and what one pod of it is worth. `asked` as measured, `ahead` as foreseen; per second.

    `prefill` is without the answers, whose part is `answers`; both are in `asked`.
    """

    prefill: Demand
    answers: float
    asked: float
    ahead: float
    backlog: float
    capacity: Capacity
    full_step_s: float = 0.0
    decode_step_s: float = 0.0
    replay: ReplayFunction | None = None


def look(
    role: Role, signals: RoleSignals, inputs: SizingInputs, memory: RoleMemory, now: float
) -> tuple[Work | None, RoleMemory]:
    """What is asked, and the memory with what was learnt on the way; None where no capacity is known in its unit."""
    assert isinstance(signals.arrivals, Sample)
    cost = signals.step_cost.value if isinstance(signals.step_cost, Sample) else None
    memory = _of_what_runs(memory, signals)
    if memory.in_tokens is not (cost is None):  # what the windows hold is in another unit
        memory = replace(memory, in_tokens=cost is None, demands=(), glances=())
    slow = prefill_demand(signals.arrivals.value, signals.slow_s, cost, signals.step_tokens)
    fast = None
    if isinstance(signals.recent, Sample):
        fast = prefill_demand(signals.recent.value, signals.fast_s, cost, signals.step_tokens)
    memory = replace(memory, glances=glance(memory.glances, fast, signals.fast_s, now))
    token_s = _token_work(signals, slow)
    backlog = value_of(signals.waiting_tokens) * token_s
    sure = _certainty(signals, inputs, memory, backlog, now)
    prefill = believe(slow, fast, memory.glances, signals.fast_s, now, sure)
    context = _context(signals)
    memory, capacity = _learn(signals, cost, memory, token_s, context, now)
    if capacity is None:
        return None, memory
    answers = 0.0
    if role is Role.MIXED and cost is not None:
        answers = decode_demand(value_of(signals.generated), cost, context)
    asked = prefill.per_s + answers
    ahead_s = start_time(signals)
    demands = steps.latest(memory.demands, asked, max(ahead_s, signals.slow_s), now)
    ahead = steps.foresee(asked, prefill.deviation, demands, ahead_s, now)
    work = Work(prefill, answers, asked, ahead, backlog, capacity, replay=inputs.replay)
    if cost is not None and role is Role.MIXED:
        work = _with_steps(work, signals, cost, token_s, context)
    return work, replace(memory, demands=demands)


def _of_what_runs(memory: RoleMemory, signals: RoleSignals) -> RoleMemory:
    """The memory without what was measured of pods that have all gone: of another model, engine or pod template.

    Work is in seconds by the step cost of those pods, so what windows hold of it goes with the capacity. Pods that
    differ only in the policy that their engine was started with do as much as before. Needs are numbers of pods, and
    stay.
    """
    if signals.template is None or signals.template == memory.template:
        return memory
    running = replace(memory, template=signals.template, made_of=signals.made_of)
    if memory.template is None or memory.made_of == signals.made_of:
        return running
    return replace(running, capacity=None, token_capacity=None, learnt_at_s=None, demands=(), glances=())


def start_time(signals: RoleSignals) -> float:
    """Seconds from a pod's creation until it serves."""
    return value_of(signals.start_s, START_S)


def value_of(reading: Reading[float], otherwise: float = 0.0) -> float:
    """Of a fresh reading."""
    return reading.value if isinstance(reading, Sample) else otherwise


def _certainty(signals: RoleSignals, inputs: SizingInputs, memory: RoleMemory, backlog: float, now: float) -> float:
    """How many deviations prove a rise: fewer once what waits takes the ready pods longer than a request may wait.

    Such a backlog is a second witness. Soon after a fall it is not heard: a fleet that has just shrunk may well see
    one.
    """
    fell_at_s, window_s = memory.fell_at_s, inputs.rules.down_window_s
    if fell_at_s is not None and now - fell_at_s <= window_s:
        return SURE
    late = backlog > inputs.rules.wait_s * max(1, signals.ready) * plausible(memory.capacity).mean
    return SURE_IF_LATE if late else SURE


def _learn(
    signals: RoleSignals, cost: StepCost | None, memory: RoleMemory, token_s: float, context: float, now: float
) -> tuple[RoleMemory, Capacity | None]:
    at_s = steps.began(now)
    periods = 1 if memory.learnt_at_s is None else (at_s - memory.learnt_at_s) // steps.PERIOD_S
    served = () if signals.template is None else signals.served
    if cost is None:
        seen = capacity_of(served, lambda pod: pod.prefill_tokens)
        if seen is not None and periods > 0:
            memory = replace(memory, token_capacity=learn(memory.token_capacity, seen), learnt_at_s=at_s)
        return memory, memory.token_capacity

    def work(pod: PodServed) -> float:
        return served_work(pod, token_s, cost, context)

    seen = capacity_of(served, work)
    if seen is not None and periods > 0:
        memory = replace(memory, capacity=learn(memory.capacity, seen), learnt_at_s=at_s)
    return memory, plausible(memory.capacity)


def _token_work(signals: RoleSignals, slow: Demand) -> float:
    """Work of a prompt token on average; without a request to tell, that of a token alone."""
    assert isinstance(signals.arrivals, Sample)
    if not isinstance(signals.step_cost, Sample):
        return 1.0
    tokens = prefill_demand(signals.arrivals.value, signals.slow_s, None, signals.step_tokens).request_s
    return slow.request_s / tokens if tokens > 0 else prompt_work(1, signals.step_cost.value, signals.step_tokens)


def _context(signals: RoleSignals) -> float:
    """KV entries that a running sequence holds on average."""
    running, held = value_of(signals.running), value_of(signals.kv_usage) * signals.ready * value_of(signals.kv_tokens)
    return held / running if running >= 1 else 0.0


def _with_steps(work: Work, signals: RoleSignals, cost: StepCost, token_s: float, context: float) -> Work:
    """With what a full step and a step of decodes alone take, as many sequences running as now."""
    decodes_s = value_of(signals.running) / max(1, signals.ready) * answer_work(cost, context)
    decode_s = max(0.0, cost.fixed) + decodes_s
    # Pairs of the chunks are in the mean prompt's work per token.
    full_s = signals.step_tokens * token_s + decodes_s
    return replace(work, full_step_s=full_s, decode_step_s=decode_s)
