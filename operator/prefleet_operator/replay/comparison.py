"""From what was asked for to a comparison: settle the workload and the threshold, and replay each policy.

Without a threshold it is the one that the operator would set from the trace's lengths (`core.threshold`); where those
show no spread worth splitting, or are too few, the lengths' P80, and a line says so. The lanes of the figures are split
there for all policies alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from prefleet_runtime.contract import PolicyName, RuntimePolicy
from prefleet_runtime.sim.replay import Replay
from prefleet_runtime.sim.replay import replay as run
from prefleet_runtime.sim.traces import open_trace
from rich.console import Console

from prefleet_operator.api import LONG_MAX_WAIT_RULE, MAX_THRESHOLD, PrefillPolicySpec, SchedulingPolicy
from prefleet_operator.core.observed import Sample
from prefleet_operator.core.threshold import decide_threshold
from prefleet_operator.core.tuning import TunerMemory
from prefleet_operator.replay.progress import Advance, replay_bars
from prefleet_operator.replay.setting import Scheduling, SettingError, make_policy, parse_policies, percentile_split
from prefleet_operator.replay.study import TraceStudy, tell_requests
from prefleet_operator.replay.tables import Comparison, name_of
from prefleet_operator.replay.workload import ANY_FLEET, Asked, Workload, prepare, seconds_of


@dataclass(frozen=True)
class Request(Asked):
    """What was asked for, as it was written; `threshold` None: to be found.

    `report`: also replay strict short-first, whose long waits a report shows.
    """

    policies: str = "fcfs,srf,hrrn,promote_shortest"
    threshold: str | None = None
    long_max_wait: str = "5s"
    split_tokens: int | None = None
    bound: bool = True
    report: bool = False


def compare(request: Request, console: Console) -> Comparison:
    """Run it, telling `console` what was found on the way.

    Raises:
        TraceError, SettingError: something is wrong with the trace, or with what was asked for.
    """
    names = parse_policies(request.policies)
    targets = request.targets
    long_max_wait_s = seconds_of("--long-max-wait", request.long_max_wait, LONG_MAX_WAIT_RULE)
    pinned = _pinned(request.threshold)
    trace = open_trace(request.trace)
    workload = prepare(request, trace, console)
    threshold = pinned or _learnt_threshold(workload.study, console)
    scheduling = Scheduling(threshold, long_max_wait_s, request.aged_share)
    policies: list[RuntimePolicy | None] = [make_policy(name, scheduling) for name in names]
    if request.bound:
        policies.append(None)
    comparison = Comparison(
        trace=trace.name,
        format=trace.format,
        study=workload.study,
        split_tokens=request.split_tokens or threshold,
        load=workload.load,
        capacity=workload.capacity,
        targets=targets,
        scheduling=scheduling,
        shape=workload.shape,
        replays=[],
    )
    comparison = replace(comparison, replays=list(_replays(comparison, policies, workload, console)))
    return _with_strict(comparison, workload, console) if request.report else comparison


def _with_strict(comparison: Comparison, workload: Workload, console: Console) -> Comparison:
    """The comparison with strict short-first, replayed unless it is among the policies already."""
    policy = make_policy(PolicyName.SHORT_REQUEST_FIRST, replace(comparison.scheduling, long_max_wait_s=0.0))
    for replay in comparison.replays:
        if replay.policy == policy:
            return replace(comparison, strict=replay)
    console.print("once more without promotion, for W_normal:", soft_wrap=True, highlight=False)
    return replace(comparison, strict=next(_replays(comparison, [policy], workload, console)))


def _pinned(threshold: str | None) -> int | None:
    if threshold is None:
        return None
    if not re.fullmatch("[0-9]{1,9}", threshold) or not 1 <= int(threshold) <= MAX_THRESHOLD:
        raise SettingError(f'--threshold: is "{threshold}": write tokens from 1 to {MAX_THRESHOLD:,}, or auto')
    return int(threshold)


def _learnt_threshold(studied: TraceStudy, console: Console) -> int:
    spec = PrefillPolicySpec.model_validate(ANY_FLEET)
    outcome = decide_threshold(Sample(studied.lengths, at_s=0.0), spec, None, TunerMemory(), now=0.0)
    console.print(f"threshold: {outcome.finding.message}", soft_wrap=True, highlight=False)
    if outcome.memory.threshold is None or outcome.memory.policy is SchedulingPolicy.FCFS:
        split = percentile_split(studied)
        told = f"the operator would run FCFS here; the policies are shown with the P80 of {split:,} tokens"
        console.print(told, soft_wrap=True, highlight=False)
        return split
    return outcome.memory.threshold


def _replays(
    comparison: Comparison, policies: Sequence[RuntimePolicy | None], workload: Workload, console: Console
) -> Iterator[Replay]:
    """One after the other, with a live bar in a terminal and a line each elsewhere."""
    split, targets = comparison.split_tokens, comparison.targets
    with replay_bars(console) as bar:
        for policy in policies:
            task = bar.add_task(name_of(Replay(policy)), total=comparison.study.requests)
            result = run(workload.requests, workload.shape, policy, split, targets, Advance(bar, task))
            if not console.is_terminal:
                told = f"{name_of(result)}: {tell_requests(result.requests)} replayed"
                console.print(told, soft_wrap=True, highlight=False)
            if result.refused:
                told = f"{tell_requests(result.refused)} refused: too long for any pod's KV cache"
                console.print(told, soft_wrap=True, highlight=False)
            yield result
