"""Comparisons made by hand, for tests of what is told of them: no request is replayed."""

from __future__ import annotations

from collections.abc import Sequence

from prefleet_operator.replay.setting import Scheduling
from prefleet_operator.replay.study import study
from prefleet_operator.replay.tables import Comparison
from prefleet_runtime.contract import RuntimePolicy
from prefleet_runtime.sim.fleet import FleetShape
from prefleet_runtime.sim.replay import LaneFigures, Replay, Targets
from prefleet_runtime.sim.traces import open_trace

SCHEDULING = Scheduling(threshold=1000, long_max_wait_s=5.0)


def make_replay(policy: str | None, short: Sequence[float] = (), long: Sequence[float] = ()) -> Replay:
    """Requests that waited so many seconds, one each second; their first token came half a second later."""
    settings = {"threshold": 1000, "long_max_wait_ms": 5000} if policy == "short_request_first" else {}
    ruled = RuntimePolicy.model_validate({"generation": 1, "policy": policy, **settings}) if policy else None
    replay = Replay(ruled, lasted_s=60.0, prompt_tokens=10_000, output_tokens=500)
    for figures, waits in ((replay.short, short), (replay.long, long)):
        for second, wait_s in enumerate(waits):
            _book(figures, float(second), wait_s)
    return replay


def _book(figures: LaneFigures, now: float, wait_s: float) -> None:
    figures.wait.add(wait_s)
    figures.timeline.add(now, wait_s)
    figures.ttft.add(wait_s + 0.5)
    figures.latency.add(wait_s + 1.0)


def make_comparison(
    replays: Sequence[Replay], strict: Replay | None = None, trace: str = "mix", mix: str = "bimodal:requests=400"
) -> Comparison:
    """One of `mix` under the name `trace`."""
    return Comparison(
        trace=trace,
        format="synthetic mix",
        study=study(open_trace(mix)),
        split_tokens=1000,
        load=0.9,
        capacity=4.2,
        targets=Targets(),
        scheduling=SCHEDULING,
        shape=FleetShape(),
        replays=replays,
        strict=strict,
    )
