"""The same jobs in the simulated engine: one mixed (or prefill-only) pod under a virtual clock.

Of each request it tells what the simulator's watchers are told: when its first token and its last one came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefleet_runtime.contract import RuntimePolicy
from prefleet_runtime.queueing import Dispatch
from prefleet_runtime.sim.cost_model import EngineProfile, StepCost
from prefleet_runtime.sim.fleet import FleetShape, VirtualFleet
from prefleet_runtime.sim.state import Limits, SimRequest

from tests.benchmarks.policies.cases import Job

STOCK = RuntimePolicy(generation=1)
"""What stands in for the engine's own first come, first served."""


@dataclass(frozen=True)
class Served:
    """A request that was answered, in seconds from its arrival."""

    job: Job
    ttft_s: float
    e2e_s: float


class _Answers:
    """Notes the answers by request id."""

    def __init__(self) -> None:
        self.served: dict[str, tuple[float, float]] = {}

    def dispatched(self, request: SimRequest, dispatch: Dispatch, now: float) -> None:
        """Of no interest here."""

    def answered(self, request: SimRequest, now: float) -> None:
        assert request.first_token_s is not None
        self.served[request.request_id] = (request.first_token_s, now)


def shape_of(step: StepCost, limits: Limits) -> FleetShape:
    """One pod whose steps cost `step`."""
    profile = EngineProfile("given", step, limits.kv_cache_tokens, kv_transfer_token_s=0.0)
    return FleetShape(profile=profile, limits=limits)


def simulate(jobs: Sequence[Job], policy: RuntimePolicy, shape: FleetShape) -> list[Served]:
    """Serve all jobs, whose arrivals ascend; what came of them, in that order.

    Raises:
        ValueError: one of them does not fit into the pod's KV cache.
    """
    answers = _Answers()
    fleet = VirtualFleet(shape, policy, answers)
    fleet.run(SimRequest(str(n), job.prompt_tokens, job.output_tokens, job.at_s) for n, job in enumerate(jobs))
    if fleet.refused:
        raise ValueError(f"{fleet.refused} requests do not fit into the KV cache: give kv_cache_tokens for the longest")
    times = [answers.served[str(n)] for n in range(len(jobs))]
    return [Served(job, first - job.at_s, last - job.at_s) for job, (first, last) in zip(jobs, times, strict=True)]
