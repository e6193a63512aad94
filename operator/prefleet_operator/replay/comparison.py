"""From what was asked for to a comparison: read the trace, settle threshold, load and fleet, replay each policy.

Without a threshold it is the one that the operator would set from the trace's lengths (`core.threshold`); where those
show no spread worth splitting, or are too few, the lengths' P80, and a line says so. The lanes of the figures are split
there for all policies alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from prefleet_runtime.contract import PolicyName, RuntimePolicy
from prefleet_runtime.sim.cost_model import parse_profile
from prefleet_runtime.sim.fleet import FleetShape
from prefleet_runtime.sim.replay import Replay, Targets
from prefleet_runtime.sim.replay import replay as run
from prefleet_runtime.sim.router import RouterKind
from prefleet_runtime.sim.state import BLOCK_TOKENS, Limits
from prefleet_runtime.sim.traces import Trace, TraceRequest, open_trace
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from prefleet_operator.api import PrefillPolicySpec, SchedulingPolicy, parse_duration
from prefleet_operator.core.observed import Sample
from prefleet_operator.core.threshold import decide_threshold
from prefleet_operator.core.tuning import TunerMemory
from prefleet_operator.replay.setting import (
    Scheduling,
    SettingError,
    capacity,
    make_policy,
    parse_policies,
    percentile_split,
)
from prefleet_operator.replay.study import TraceStudy, study
from prefleet_operator.replay.tables import Comparison, name_of

ANY_FLEET = {"model": {"servedName": "any"}, "engine": {"type": "Simulator"}, "mixed": {}}
"""What the operator's decisions need around the settings that matter here: all of those at their defaults."""


@dataclass(frozen=True)
class Request:
    """What was asked for, as it was written; `threshold` and `load` None: to be found.

    `report`: also replay strict short-first, whose long waits a report shows.
    """

    trace: str
    policies: str = "fcfs,srf,hrrn,promote_shortest"
    threshold: str | None = None
    long_max_wait: str = "5s"
    aged_share: float = 0.25
    load: float | None = None
    pods: int = 1
    decode_pods: int = 0
    prefill_only: bool = False
    router: str = RouterKind.ROUND_ROBIN
    engine: str = "llama-3.1-8b-a100-80gb-sxm"
    step_tokens: int = 2048
    prefix_cache: bool = True
    split_tokens: int | None = None
    short_ttft: str = "500ms"
    long_wait: str = "8s"
    bound: bool = True
    report: bool = False


def compare(request: Request, console: Console) -> Comparison:
    """Run it, telling `console` what was found on the way.

    Raises:
        TraceError, SettingError: something is wrong with the trace, or with what was asked for.
    """
    names = parse_policies(request.policies)
    targets = Targets(
        seconds_of("--slo-short-ttft", request.short_ttft), seconds_of("--slo-long-wait", request.long_wait)
    )
    long_max_wait_s = seconds_of("--long-max-wait", request.long_max_wait)
    pinned = _pinned(request.threshold)
    trace = open_trace(request.trace)
    studied = study(trace)
    shape = _shape(request, trace)
    _tell_trace(console, trace, studied)
    threshold = pinned or _learnt_threshold(studied, console)
    scheduling = Scheduling(threshold, long_max_wait_s, request.aged_share)
    policies: list[RuntimePolicy | None] = [make_policy(name, scheduling) for name in names]
    if request.bound:
        policies.append(None)
    served = capacity(_limited(studied, request), shape)
    load = studied.rate / served if request.load is None else request.load
    factor = studied.rate / (load * served)
    console.print(f"the fleet serves {served:.2f} requests a second of this trace; replayed at {load:.0%} of that")
    comparison = Comparison(
        trace=trace.name,
        format=trace.format,
        study=studied,
        split_tokens=request.split_tokens or threshold,
        load=load,
        capacity=served,
        targets=targets,
        scheduling=scheduling,
        shape=shape,
        replays=[],
    )
    requests = _Retimed(trace, factor, request.prefill_only)
    comparison = replace(comparison, replays=list(_replays(comparison, policies, requests, console)))
    return _with_strict(comparison, requests, console) if request.report else comparison


def _with_strict(comparison: Comparison, requests: _Retimed, console: Console) -> Comparison:
    """The comparison with strict short-first, replayed unless it is among the policies already."""
    policy = make_policy(PolicyName.SHORT_REQUEST_FIRST, replace(comparison.scheduling, long_max_wait_s=0.0))
    for replay in comparison.replays:
        if replay.policy == policy:
            return replace(comparison, strict=replay)
    console.print("once more without promotion, for W_normal:", highlight=False)
    return replace(comparison, strict=next(_replays(comparison, [policy], requests, console)))


def seconds_of(option: str, text: str) -> float:
    """A duration as seconds. Raises SettingError that names the option."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise SettingError(f"{option}: {error}") from None


class _Retimed:
    """The trace at the load that was asked for, as often as it is iterated."""

    def __init__(self, trace: Trace, factor: float, prefill_only: bool) -> None:
        self._trace = trace
        self._factor = factor
        self._prefill_only = prefill_only

    def __iter__(self) -> Iterator[TraceRequest]:
        for request in self._trace:
            output = 1 if self._prefill_only else request.output_tokens
            yield replace(request, at_s=request.at_s * self._factor, output_tokens=output)


@dataclass(frozen=True)
class _Advance:
    """Moves a bar to the number of requests answered."""

    bar: Progress
    task: TaskID

    def __call__(self, answered: int) -> None:
        self.bar.update(self.task, completed=answered)


def _shape(request: Request, trace: Trace) -> FleetShape:
    block = trace.block_tokens if request.prefix_cache and trace.block_tokens % BLOCK_TOKENS == 0 else 0
    try:
        profile = parse_profile(request.engine)
        limits = Limits(
            max_num_batched_tokens=request.step_tokens,
            kv_cache_tokens=profile.kv_cache_tokens,
            prefix_block_tokens=block,
        )
    except ValueError as error:
        raise SettingError(f"--engine: {error}") from None
    if request.prefill_only and request.decode_pods:
        raise SettingError("--prefill-only leaves nothing for --decode-pods to do: leave one of them out")
    return FleetShape(request.pods, request.decode_pods, RouterKind(request.router), profile, limits)


def _limited(studied: TraceStudy, request: Request) -> TraceStudy:
    if not request.prefill_only:
        return studied
    return replace(studied, sample=tuple(replace(each, output_tokens=1) for each in studied.sample))


def _pinned(threshold: str | None) -> int | None:
    if threshold is not None and (not threshold.isdecimal() or int(threshold) < 1):
        raise SettingError(f'--threshold: "{threshold}" is no length: write tokens, 1 or more, or "auto"')
    return None if threshold is None else int(threshold)


def _learnt_threshold(studied: TraceStudy, console: Console) -> int:
    spec = PrefillPolicySpec.model_validate(ANY_FLEET)
    outcome = decide_threshold(Sample(studied.lengths, at_s=0.0), spec, None, TunerMemory(), now=0.0)
    console.print(f"threshold: {outcome.finding.message}", soft_wrap=True, highlight=False)
    if outcome.memory.threshold is None or outcome.memory.policy is SchedulingPolicy.FCFS:
        split = percentile_split(studied)
        console.print(f"the operator would run FCFS here; the policies are shown with the P80 of {split:,} tokens")
        return split
    return outcome.memory.threshold


def _tell_trace(console: Console, trace: Trace, studied: TraceStudy) -> None:
    told = f"{trace.name}: {trace.format}, {studied.requests:,} requests over {studied.span_s:,.0f} s"
    told += f", {studied.prompt_tokens / studied.requests:,.0f} prompt tokens"
    told += f" and {studied.output_tokens / studied.requests:,.0f} output tokens each on average"
    console.print(told, soft_wrap=True, highlight=False)
    if trace.bad.count:
        console.print(f"{trace.bad.count} malformed: {trace.bad.reasons()}", soft_wrap=True, highlight=False)
    if trace.left_out:
        console.print(f"{trace.left_out:,} requests that had failed are left out", highlight=False)


def _replays(
    comparison: Comparison,
    policies: Sequence[RuntimePolicy | None],
    requests: _Retimed,
    console: Console,
) -> Iterator[Replay]:
    """One after the other, with a live bar in a terminal and a line each elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    split, targets = comparison.split_tokens, comparison.targets
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        for policy in policies:
            task = bar.add_task(name_of(Replay(policy)), total=comparison.study.requests)
            result = run(requests, comparison.shape, policy, split, targets, _Advance(bar, task))
            if not console.is_terminal:
                console.print(f"{name_of(result)}: {result.requests:,} requests replayed", highlight=False)
            if result.refused:
                console.print(f"{result.refused:,} requests fit into no pod's KV cache and were refused")
            yield result
