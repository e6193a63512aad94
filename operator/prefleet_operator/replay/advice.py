"""What the tuner would set for a trace, why, and what the alternatives would have cost: `prefleet advise`.

1. The busiest stretch of at most `WINDOW` requests is the window. It begins with empty pods and an empty prefix cache.
2. The lengths are those of the whole trace. Where pods share prefixes, they are those of the window under FCFS as the
   fleet's runtime would have measured them, cache hits deducted.
3. The operator's own decision (`core.tuner.decide`) is taken from them as for a fleet that has never been tuned, with
   the replay of the window as its replay argument. Each setting is replayed once.
4. If capacity is short, every long request is past any limit, and promotion keeps no promise. Where it costs short
   requests more than `fits` allows (`core.rehearsal`), a quarter of the share is tried, and then no promotion at all.
   That is advice to the user, and said to be so; the tuner keeps to 0.9 of the SLO and leaves the share alone.
5. What has not been tried of the obvious alternatives is replayed for the table: no promotion, promotion at half and at
   0.9 of the SLO, and, beside a valley, the two ends of the band.

Short, in the figures and for the decision, are prompts of at most `split` tokens: what the user says, else the
valley of the prompt lengths where one wins below the trace's P80, else that. The split does not follow the
threshold, so that thresholds can be compared.

Left out: cooldown and steps of a running fleet, which set how fast the operator gets there, not where it goes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefleet_runtime.contract import DEFAULT_AGED_SHARE, PolicyName, RuntimePolicy
from prefleet_runtime.sim.replay import Replay, Targets
from prefleet_runtime.sim.replay import replay as run
from prefleet_runtime.sim.sketch import Sketch
from prefleet_runtime.sim.traces import Trace, TraceRequest
from rich.console import Console

from prefleet_operator.api import InvalidSpecError, PrefillPolicySpec, format_duration, parse_spec
from prefleet_operator.core.observed import FleetMetrics, HistogramSnapshot, Sample
from prefleet_operator.core.rehearsal import ReplayScore, fits
from prefleet_operator.core.threshold import study_lengths
from prefleet_operator.core.tuner import decide
from prefleet_operator.core.tuning import TunerMemory, TuningDecision
from prefleet_operator.core.wait import SLO_FLOOR, ceiling_s
from prefleet_operator.replay.progress import Advance, replay_bars
from prefleet_operator.replay.setting import Scheduling, SettingError, make_policy, percentile_split
from prefleet_operator.replay.study import BOUNDS, TraceStudy, tell_requests
from prefleet_operator.replay.workload import ANY_FLEET, Asked, Workload, busiest, prepare

WINDOW = 5000
SMALLER_SHARE = 0.25


@dataclass(frozen=True)
class AdviceRequest(Asked):
    """What was asked for, as it was written."""

    bias: float = 0.5
    split_tokens: int | None = None


@dataclass(frozen=True, order=True)
class Setting:
    """Short-first with these values; FCFS at threshold 0."""

    threshold: int
    long_max_wait_s: float
    aged_share: float


FCFS = Setting(0, 0.0, DEFAULT_AGED_SHARE)


def short_first(threshold: int, long_max_wait_s: float, aged_share: float) -> Setting:
    """Without promotion the share means nothing and keeps its default, so that one setting is one setting."""
    return Setting(threshold, long_max_wait_s, aged_share if long_max_wait_s else FCFS.aged_share)


@dataclass(frozen=True)
class Advice:
    """The decision, and what each setting that was tried gave; `split_tokens` divides the lanes of those figures."""

    workload: Workload
    window: int
    split_tokens: int
    targets: Targets
    decision: TuningDecision
    chosen: Setting
    asked_share: float
    replays: dict[Setting, Replay]

    @property
    def sentences(self) -> list[str]:
        """What to do, and why."""
        decision, chosen, fcfs = self.decision, self.replays[self.chosen], self.replays[FCFS]
        if self.chosen == FCFS:
            return ["run FCFS", f"threshold: {decision.threshold_finding.message}"]
        wait_s = self.chosen.long_max_wait_s
        wait = f"longMaxWait {format_duration(wait_s)}" if wait_s else "without promotion"
        before, after = fcfs.long.wait.quantile(0.95), chosen.long.wait.quantile(0.95)
        told = [
            f"run {decision.policy.value} with threshold {self.chosen.threshold:,} and {wait}",
            f"threshold: {decision.threshold_finding.message}",
            f"longMaxWait: {decision.wait_finding.message}",
            f"against FCFS the mean TTFT of short requests goes from {fcfs.short.ttft.mean:.3f} to"
            f" {chosen.short.ttft.mean:.3f} s, and the P95 wait of long ones from {before:.2f} to {after:.2f} s",
        ]
        if decision.capacity_limited:
            told += [self._sparing] if self.spares else []
            told.append("no wait limit keeps slo.longQueueWait and spares short requests: add pods, or promise less")
        return told

    @property
    def spares(self) -> bool:
        """Whether the advice promotes less than the tuner would, for the sake of short requests."""
        tuned = self.decision.long_max_wait_s
        return self.chosen != FCFS and self.chosen != short_first(self.chosen.threshold, tuned, self.asked_share)

    @property
    def _sparing(self) -> str:
        tuned = format_duration(self.decision.long_max_wait_s)
        if self.chosen.long_max_wait_s:
            return (
                f"agedShare {self.chosen.aged_share:g} instead of {self.asked_share:g} spares short requests meanwhile"
            )
        return (
            f"promotion at {tuned}, which the tuner would set, keeps no promise here and costs short requests too much:"
            " none is advised while the load is this; leave longMaxWait to the tuner once pods suffice"
        )

    @property
    def scheduling(self) -> dict[str, Any]:
        """`spec.scheduling` of a PrefillPolicy that pins the advice; what is not known yet is left to the tuner."""
        pins: dict[str, Any] = {"policy": self.decision.policy.value}
        if self.chosen != FCFS:
            pins["threshold"] = self.chosen.threshold
            if self.chosen.long_max_wait_s or self.spares:
                pins["longMaxWait"] = format_duration(self.chosen.long_max_wait_s)
            pins["agedShare"] = self.chosen.aged_share if self.chosen.long_max_wait_s else self.asked_share
        return {"spec": {"scheduling": pins}}


def advise(asked: AdviceRequest, trace: Trace, console: Console) -> Advice:
    """Find it, telling `console` what was found on the way.

    Raises:
        TraceError, SettingError: something is wrong with the trace, or with what was asked for.
    """
    targets, spec = asked.targets, make_spec(asked)
    workload = prepare(asked, trace, console)
    window = busiest(workload.requests, WINDOW)
    if len(window) < spec.tuning.min_samples:
        needed = f"{spec.tuning.min_samples} requests are needed for advice"
        raise SettingError(f"{trace.name}: holds {tell_requests(len(window))}, and {needed}: give a longer trace")
    split = asked.split_tokens or split_of(workload.study, spec)
    tried = Rehearsals(window, workload, split, targets, console)
    metrics = FleetMetrics(lengths=Sample(_lengths(workload, tried), at_s=0.0))

    def score(threshold: int, long_max_wait_s: float) -> ReplayScore:
        return score_of(tried.replay(short_first(threshold, long_max_wait_s, asked.aged_share)))

    decision, memory = decide(metrics, spec, TunerMemory(), now=0.0, replay=score)
    chosen = FCFS
    if decision.threshold is not None:
        chosen = short_first(decision.threshold, decision.long_max_wait_s, asked.aged_share)
    if decision.capacity_limited:
        chosen = _sparing(chosen, tried)
    settings = [] if memory.threshold is None else _alternatives(decision, memory.threshold, chosen, spec)
    for setting in (FCFS, chosen, *settings):
        tried.replay(setting)
    console.print(f"{len(tried.replays)} settings tried on the busiest {tell_requests(len(window))}", highlight=False)
    return Advice(workload, len(window), split, targets, decision, chosen, asked.aged_share, tried.replays)


class Rehearsals:
    """Replays of one window, each setting once."""

    def __init__(
        self,
        window: Sequence[TraceRequest],
        workload: Workload,
        split_tokens: int,
        targets: Targets,
        console: Console,
    ) -> None:
        self.replays: dict[Setting, Replay] = {}
        self.split_tokens = split_tokens
        self._window = window
        self._shape = workload.shape
        self._targets = targets
        self._console = console

    def replay(self, setting: Setting) -> Replay:
        """What the window meets under a setting."""
        if setting not in self.replays:
            with replay_bars(self._console) as bars:
                advance = Advance(bars, bars.add_task(name_of(setting), total=len(self._window)))
                policy = self._policy(setting)
                self.replays[setting] = run(
                    self._window, self._shape, policy, self.split_tokens, self._targets, advance
                )
        return self.replays[setting]

    def _policy(self, setting: Setting) -> RuntimePolicy:
        name = PolicyName.FCFS if setting == FCFS else PolicyName.SHORT_REQUEST_FIRST
        return make_policy(name, Scheduling(setting.threshold, setting.long_max_wait_s, setting.aged_share))


def score_of(replay: Replay) -> ReplayScore:
    """What the tuner compares."""
    long = replay.long
    return ReplayScore(
        shorts=replay.short.ttft.count,
        short_mean_s=replay.short.ttft.mean,
        short_p95_s=replay.short.ttft.quantile(0.95),
        late_share=1 - long.attainment if long.ttft.count else 0.0,
        long_waits=replay.long_lane_wait.count,
        long_p90_s=replay.long_lane_wait.quantile(0.90),
        long_p95_s=replay.long_lane_wait.quantile(0.95),
    )


def make_spec(asked: AdviceRequest) -> PrefillPolicySpec:
    """The spec of a fleet that leaves the two values to the tuner. Raises SettingError."""
    raw: dict[str, Any] = {
        **ANY_FLEET,
        "slo": {"shortTTFT": asked.short_ttft, "longQueueWait": asked.long_wait},
        "scheduling": {"agedShare": asked.aged_share},
        "tuning": {"bias": asked.bias},
    }
    try:
        return parse_spec(raw)
    except InvalidSpecError as error:
        raise SettingError(str(error)) from None


def split_of(studied: TraceStudy, spec: PrefillPolicySpec) -> int:
    """The prompt length up to which a request counts as short, whatever the threshold."""
    lengths = study_lengths(Sample(studied.lengths, at_s=0.0), spec)
    valley = None if lengths is None else lengths.valley_floor
    return min(valley or percentile_split(studied), percentile_split(studied))


def to_histogram(lengths: Sketch) -> HistogramSnapshot:
    """As the runtime counts them, off by at most the sketch's error at the bounds."""
    counts, below = [0.0] * (len(BOUNDS) + 1), 0
    for value, upto in lengths.cumulative():
        counts[bisect_left(BOUNDS, value)] += upto - below
        below = upto
    return HistogramSnapshot(BOUNDS, tuple(counts))


def name_of(setting: Setting) -> str:
    """How a setting is called in the table."""
    if setting == FCFS:
        return "fcfs"
    if not setting.long_max_wait_s:
        return f"{setting.threshold:,} tokens, never"
    return f"{setting.threshold:,} tokens, {format_duration(setting.long_max_wait_s)}, {setting.aged_share:.3g}"


def _lengths(workload: Workload, tried: Rehearsals) -> HistogramSnapshot:
    if workload.shape.limits.prefix_block_tokens:
        return to_histogram(tried.replay(FCFS).lengths)
    return workload.study.lengths


def _sparing(chosen: Setting, tried: Rehearsals) -> Setting:
    """The setting with as much promotion as leaves short requests nearly what they had without."""
    strict = short_first(chosen.threshold, 0.0, chosen.aged_share)
    for setting in (chosen, replace(chosen, aged_share=SMALLER_SHARE * chosen.aged_share)):
        if fits(score_of(tried.replay(setting)), score_of(tried.replay(strict))):
            return setting
    return strict


def _alternatives(decision: TuningDecision, threshold: int, chosen: Setting, spec: PrefillPolicySpec) -> list[Setting]:
    """What a reader would ask about, tried or not; also where the guard advises FCFS."""
    share, ceiling = chosen.aged_share, ceiling_s(spec)
    waits = (0.0, round(SLO_FLOOR * spec.slo.long_queue_wait_s, 3), ceiling)
    settings = [short_first(threshold, wait_s, share) for wait_s in waits]
    if decision.valley is not None and decision.band is not None:
        wait_s = chosen.long_max_wait_s or ceiling
        settings += [short_first(max(1, end), wait_s, share) for end in (decision.band.low, decision.band.high)]
    return settings
