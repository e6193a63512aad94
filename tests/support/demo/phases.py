"""The demo's measured part: replay under FCFS, switch the policy, let it settle, replay the same again.

A policy with a threshold settles while other traffic teaches the tuner; any other at once, when every pod runs it.

Everything here talks to the fleet as a user would: requests to its Services, kubectl, Prometheus queries.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefleet_operator.api import SchedulingPolicy, parse_duration
from prefleet_runtime.sim.cost_model import DEFAULT_PROFILE
from prefleet_runtime.sim.traces import Trace, TraceRequest

from tests.support.demo.client import Outcome, Replay, Target, figures
from tests.support.demo.fleet import NAME, POLL_S, Fleet
from tests.support.demo.progress import Show
from tests.support.demo.report import Summary, band_of
from tests.support.demo.workload import bursty_mix, trace_requests

SEED = 20_261_130
LOAD = 0.8
PODS = 2
SPLIT_TOKENS = 1_000
PHASE_S = 75.0
SETTLE_S = 50.0
SETTLE_AT_MOST_S = 75.0
CALIBRATION_S = 15.0
CALIBRATION_CLIENTS = 16
PROPAGATION_TIMEOUT_S = 100.0

ServiceTime = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Measured:
    """Both phases' outcomes, how people call the phases, and what the demo says of them."""

    summary: Summary
    titles: dict[str, str]
    outcomes: dict[str, Sequence[Outcome]]


async def measure(
    fleet: Fleet, policy: SchedulingPolicy, prometheus_url: str, trace: Trace | None, show: Show
) -> Measured:
    """Run both phases, the second one under `policy`."""
    titles = phase_titles(policy)
    target = fleet.target()
    service_s = simulated_service_s if fleet.engine.decode_role else await _calibrate(target, show)
    requests = _workload(trace, service_s, fleet.engine.longest, SEED, PHASE_S)
    outcomes: dict[str, Sequence[Outcome]] = {}
    waits: dict[str, dict[str, float | None]] = {}

    outcomes["fcfs"] = await _replay(titles["fcfs"], requests, target, fleet, show)
    waits["fcfs"] = _waits_p95(prometheus_url, PHASE_S)
    await asyncio.to_thread(fleet.apply, fleet.engine.shown(policy))
    if policy.has_threshold:
        await _settle(trace, service_s, target, fleet, show)
    else:
        await asyncio.to_thread(_await_policy, fleet, policy, show)
    outcomes["tuned"] = await _replay(titles["tuned"], requests, target, fleet, show)
    waits["tuned"] = _waits_p95(prometheus_url, PHASE_S)

    active = await asyncio.to_thread(_policy_active, fleet)
    status = await asyncio.to_thread(fleet.status)
    propagation_s = await asyncio.to_thread(_propagation_s, fleet, policy, show)
    active = await asyncio.to_thread(_policy_active, fleet) and active  # what is shown last is to be in force, too
    summary = _summary(fleet, trace, status, active, propagation_s, outcomes, waits)
    return Measured(summary, titles, outcomes)


def phase_titles(policy: SchedulingPolicy) -> dict[str, str]:
    """How people call the two phases; the second runs `policy`."""
    if policy.has_threshold:
        return {"fcfs": "FCFS", "tuned": "tuned"}
    return {"fcfs": "FCFS", "tuned": "FCFS again" if policy is SchedulingPolicy.FCFS else policy.value}


def simulated_service_s(prompt_tokens: int) -> float:
    """Prefill seconds of one prompt alone on a simulated pod, by the server's own cost model."""
    cost = DEFAULT_PROFILE.cost
    pairs = prompt_tokens * (prompt_tokens + 1) / 2
    return cost.step_s(prompt_tokens, 0, pairs)


async def _calibrate(target: Target, show: Show) -> ServiceTime:
    """Pod seconds per prompt token of the mix on this machine, from a closed loop that keeps pods busy."""
    mix = bursty_mix(SEED + 9, 600, LOAD, lambda tokens: tokens / 2_000, PODS)
    queue = iter(mix)
    done: list[Outcome] = []
    began = time.monotonic()

    async def client() -> None:
        while time.monotonic() - began < CALIBRATION_S and (request := next(queue, None)):
            replay = Replay([TraceRequest(0.0, request.prompt_tokens, request.output_tokens)])
            await replay.run(target)
            done.extend(replay.outcomes)
            show.line(f"measuring this machine: {len(done)} requests in {time.monotonic() - began:.0f} s")

    await asyncio.gather(*(client() for _ in range(CALIBRATION_CLIENTS)))
    tokens = sum(outcome.request.prompt_tokens for outcome in done)
    per_token_s = PODS * (time.monotonic() - began) / tokens
    show.line(f"this machine's two pods together prefill {PODS / per_token_s:.0f} tokens/s of the mix", keep=True)
    return lambda prompt_tokens: prompt_tokens * per_token_s


def _workload(
    trace: Trace | None, service_s: ServiceTime, longest: int, seed: int, duration_s: float
) -> list[TraceRequest]:
    if trace is None:
        return bursty_mix(seed, duration_s, LOAD, service_s, PODS)
    return trace_requests(trace, duration_s, LOAD, service_s, PODS, longest)


async def _replay(
    title: str, requests: Sequence[TraceRequest], target: Target, fleet: Fleet, show: Show
) -> Sequence[Outcome]:
    replay = Replay(requests)
    running = asyncio.create_task(replay.run(target))
    while not running.done():
        await asyncio.wait([running], timeout=1.0)
        show.replay(title, replay, await asyncio.to_thread(fleet.status))
    await running
    return replay.outcomes


def _propagation_s(fleet: Fleet, policy: SchedulingPolicy, show: Show) -> float:
    """Seconds from an edit of the resource until every pod reports the newer generation."""
    generation = fleet.status()["effective"]["generation"]
    began = time.monotonic()
    fleet.apply(fleet.engine.edited(policy))
    reached = fleet.wait_for_generation_after(generation, PROPAGATION_TIMEOUT_S)
    propagation_s = time.monotonic() - began
    show.line(f"after one more edit every pod reports generation {reached}: {propagation_s:.1f} s", keep=True)
    return propagation_s


async def _settle(trace: Trace | None, service_s: ServiceTime, target: Target, fleet: Fleet, show: Show) -> None:
    """Traffic that is not measured, until the tuner has seen enough long waits to set the limit."""
    deadline = time.monotonic() + SETTLE_AT_MOST_S
    seed = SEED
    while time.monotonic() < deadline:
        seed += 1
        requests = _workload(trace, service_s, fleet.engine.longest, seed, SETTLE_S)
        await _replay("settling", requests, target, fleet, show)
        if (await asyncio.to_thread(fleet.status)).get("effective", {}).get("longMaxWait"):
            return


def _await_policy(fleet: Fleet, policy: SchedulingPolicy, show: Show) -> None:
    """Until the operator has set the policy and every pod runs it."""
    deadline = time.monotonic() + PROPAGATION_TIMEOUT_S
    while (found := fleet.status().get("effective", {}).get("policy")) != policy.value:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the fleet runs {found} and not {policy.value} after {PROPAGATION_TIMEOUT_S:.0f} s")
        time.sleep(POLL_S)
    fleet.wait_for("PolicyActive", PROPAGATION_TIMEOUT_S, show.line)


def _policy_active(fleet: Fleet) -> bool:
    """PolicyActive as the operator says it, given the time that its loop and a last move may need."""
    try:
        fleet.wait_for("PolicyActive", 20, lambda _: None)
    except TimeoutError:
        return False
    return True


def _waits_p95(prometheus_url: str, window_s: float) -> dict[str, float | None]:
    """P95 of queue waits over the last window by lane, and over all lanes, from the runtime's histogram."""
    series = f'increase(prefleet_queue_wait_seconds_bucket{{pod=~"{NAME}-.*"}}[{window_s:.0f}s])'
    by_lane = _query(prometheus_url, f"histogram_quantile(0.95, sum by (le, lane) ({series}))")
    overall = _query(prometheus_url, f"histogram_quantile(0.95, sum by (le) ({series}))")
    found: dict[str, float | None] = {row["metric"].get("lane", "all"): float(row["value"][1]) for row in by_lane}
    found["all"] = float(overall[0]["value"][1]) if overall else None
    return found


def _query(prometheus_url: str, expression: str) -> list[dict[str, Any]]:
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{prometheus_url}/api/v1/query?{query}", timeout=10) as answer:
        result: list[dict[str, Any]] = json.loads(answer.read())["data"]["result"]
        return result


def _summary(
    fleet: Fleet,
    trace: Trace | None,
    status: Mapping[str, Any],
    active: bool,
    propagation_s: float,
    outcomes: Mapping[str, Sequence[Outcome]],
    waits: dict[str, dict[str, float | None]],
) -> Summary:
    effective, tuning = status["effective"], status.get("tuning", {})
    threshold = effective.get("threshold")
    split = SPLIT_TOKENS if trace is None else threshold or round(band_of(outcomes["fcfs"])["p70"])
    wait = effective.get("longMaxWait")
    return Summary(
        engine=fleet.engine.name,
        workload="bursty mix" if trace is None else trace.name,
        band=band_of(outcomes["tuned"]),
        threshold=threshold,
        threshold_reason=tuning.get("threshold", {}).get("message", "not reported"),
        valley=tuning.get("valley"),
        max_wait_ms=round(parse_duration(wait) * 1000) if wait else None,
        max_wait_reason=tuning.get("longMaxWait", {}).get("message", "not reported"),
        policy=effective["policy"],
        generation=effective["generation"],
        policy_active=active,
        propagation_s=propagation_s,
        split_tokens=split,
        fcfs=figures(outcomes["fcfs"], split),
        tuned=figures(outcomes["tuned"], split),
        waits_p95_s=waits,
        moves=list(status.get("history", [])),
    )
