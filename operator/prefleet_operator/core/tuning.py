"""The tuner's values: what it decided, why, and what it remembers between two decisions.

`TunerMemory` is all that a decision takes from the past. It travels in `.status.tuning`: `to_status`
writes it beside the evidence, `recall` reads it back, and the pair is exact (times are whole seconds,
waits whole milliseconds), so an operator that restarts decides as if it had not. If status is lost,
what the live policy says is adopted, as if it had been set just now. Anybody may write a status: one with a value that
no engine could be told is lost too, and what is said to have moved in the future has moved just now.

`settle` keeps a status as it is while nothing that matters has changed, so that the numbers in the
evidence, which move with every request, do not cause a write each cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from prefleet_runtime.contract import LARGEST_NUMBER, PolicyName

from prefleet_operator.api import BandStatus, SchedulingPolicy, TunedValue, TuningStatus
from prefleet_operator.core.native_policy import FleetPolicy
from prefleet_operator.core.reasons import Reason

STATE_VERSION = 1
EVIDENCE_CHANGE = 0.25
"""Evidence in status is written anew when a number of the band has moved by more than this share."""


@dataclass(frozen=True, slots=True)
class TunerMemory:
    """What the tuner has set so far (in Advise mode: what it would have set).

    `threshold` in tokens, None before the first setting; `long_max_wait_s` in seconds, 0 without promotion;
    `*_moved_at_s` in whole Unix seconds, None before the first move. The threshold's cooldown also covers
    the switch between the policies. `capacity_limited`: the last decision found capacity short, which its finding's
    reason says in status.
    """

    policy: SchedulingPolicy | None = None
    threshold: int | None = None
    threshold_moved_at_s: int | None = None
    long_max_wait_s: float = 0.0
    wait_moved_at_s: int | None = None
    capacity_limited: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One tuned value with its evidence; `value` in tokens or in seconds, None if there is none yet."""

    value: float | None
    reason: Reason
    message: str

    @property
    def settled(self) -> bool:
        """Whether the value rests on evidence or on a pin, be it evidence of earlier that now is too thin."""
        held = self.reason in _SETTLED_WHERE_KNOWN and bool(self.value)
        return held or self.reason in SETTLED_REASONS


@dataclass(frozen=True, slots=True)
class Band:
    """The band in tokens: low end of the lower percentile's interval, high end of the upper's."""

    low: int
    high: int
    samples: int


@dataclass(frozen=True, slots=True)
class TuningMove:
    """One change of the fleet's effective setting by the tuner, for history and events.

    `name`: "policy", "threshold" or "longMaxWait", as in the spec; `before` and `after` as text.
    """

    name: str
    before: str
    after: str
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class TuningDecision:
    """What the fleet is to run, and why.

    `policy`, `threshold` (tokens, None under a policy that has none) and `long_max_wait_s` (0 without promotion) are
    effective.
    The findings and `advised_policy` are what the tuner itself holds right: in Auto mode the same, in Advise
    mode only reported. `moves` is empty where nothing effective changed. `normal_wait_s`: W_normal, None where it is
    not known.
    """

    policy: SchedulingPolicy
    threshold: int | None
    long_max_wait_s: float
    advised_policy: SchedulingPolicy
    threshold_finding: Finding
    wait_finding: Finding
    band: Band | None = None
    valley: int | None = None
    capacity_limited: bool = False
    normal_wait_s: float | None = None
    moves: tuple[TuningMove, ...] = ()

    @property
    def moved(self) -> bool:
        """Whether anything effective changed."""
        return bool(self.moves)

    @property
    def leading(self) -> Finding:
        """What the Tuned condition names: what the restart budget holds, the threshold's finding, or the wait's if only
        it is unsettled."""
        threshold, wait = self.threshold_finding, self.wait_finding
        for finding in (threshold, wait):
            if finding.reason is Reason.RESTART_BUDGET_SPENT:
                return finding
        return wait if threshold.settled and self._wait_is_open else threshold

    @property
    def settled(self) -> bool:
        """Whether all that runs rests on evidence or on a pin: what the Tuned condition says."""
        return self.threshold_finding.settled and not self._wait_is_open

    @property
    def _wait_is_open(self) -> bool:
        return self.advised_policy.has_threshold and not self.wait_finding.settled


SETTLED_REASONS = frozenset(
    {
        Reason.PINNED,
        Reason.VALLEY,
        Reason.BAND_OPTIMUM,
        Reason.WITHIN_BAND,
        Reason.NO_LENGTH_SPREAD,
        Reason.COOLING_DOWN,
        Reason.WAIT_FROM_LONG_WAITS,
        Reason.WITHIN_HYSTERESIS,
        Reason.LONG_WAIT_BEYOND_SLO,
        Reason.SLO_LOWERED,
    }
)
"""Reasons of a value that rests on evidence or on a pin."""

_SETTLED_WHERE_KNOWN = (Reason.LEARNING_LENGTHS, Reason.LEARNING_WAITS, Reason.RESTART_BUDGET_SPENT)
"""Reasons of a value that, if there is one, rests on evidence of earlier."""


def to_status(decision: TuningDecision, memory: TunerMemory) -> TuningStatus:
    """`.status.tuning`: the evidence of this decision and the memory for the next one."""
    band = decision.band
    return TuningStatus(
        state_version=STATE_VERSION,
        band=None if band is None else BandStatus(low=band.low, high=band.high, samples=band.samples),
        valley=decision.valley,
        threshold=_tuned_value(decision.threshold_finding, memory.threshold, memory.threshold_moved_at_s),
        long_max_wait=_tuned_value(decision.wait_finding, memory.long_max_wait_s, memory.wait_moved_at_s),
        policy=memory.policy,
    )


def recall(status: TuningStatus | None, live: FleetPolicy | None, now: float) -> TunerMemory:
    """The memory of the last decision: from status, or else adopted from the live policy."""
    known = None if status is None or status.state_version != STATE_VERSION else _from_status(status, now)
    if known is not None:
        return known
    if live is not None:
        return _adopted(live, now)
    return TunerMemory()


def settle(previous: TuningStatus | None, current: TuningStatus, brief_gap: bool = False) -> TuningStatus:
    """`previous` if `current` differs from it only in the noise of its evidence, else `current`.

    A band that cannot be measured at present is carried over, since it is the last that is known. `brief_gap`: nor can
    anything else, and of that nobody is told yet: as long as no value is another, the reasons of before stand too.
    """
    if previous is None or (brief_gap and _values(previous) == _values(current)):
        return previous or current
    if current.band is None and previous.band is not None:
        current = current.model_copy(update={"band": previous.band, "valley": previous.valley})
    return previous if _essence(previous) == _essence(current) and _close(previous, current) else current


def format_time(at_s: float) -> str:
    """A Unix time as Kubernetes writes it: UTC, whole seconds."""
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> int:
    """The whole Unix seconds of a time that `format_time` wrote."""
    return int(datetime.fromisoformat(text).timestamp())


def _tuned_value(finding: Finding, value: float | None, moved_at_s: int | None) -> TunedValue:
    moved_at = None if moved_at_s is None else format_time(moved_at_s)
    return TunedValue(value=value, reason=finding.reason, message=finding.message, moved_at=moved_at)


def _from_status(status: TuningStatus, now: float) -> TunerMemory | None:
    """None where a value is none that an engine could be told."""
    tokens = None if status.threshold is None else status.threshold.value
    wait_s = 0.0 if status.long_max_wait is None else status.long_max_wait.value or 0.0
    if not (tokens is None or 1 <= tokens <= LARGEST_NUMBER) or not 0 <= wait_s * 1000 <= LARGEST_NUMBER:
        return None
    return TunerMemory(
        policy=status.policy,
        threshold=None if tokens is None else int(tokens),
        threshold_moved_at_s=_moved_at(status.threshold, now),
        long_max_wait_s=wait_s,
        wait_moved_at_s=_moved_at(status.long_max_wait, now),
        capacity_limited=status.long_max_wait is not None and status.long_max_wait.reason == Reason.CAPACITY_LIMITED,
    )


def _moved_at(value: TunedValue | None, now: float) -> int | None:
    return None if value is None or value.moved_at is None else min(parse_time(value.moved_at), int(now))


def _adopted(live: FleetPolicy, now: float) -> TunerMemory:
    """The tuner sets ShortRequestFirst or FCFS: another policy is the user's, and teaches nothing."""
    if not live.policy.has_threshold:
        first_come = live.policy in (PolicyName.FCFS, SchedulingPolicy.FCFS)
        return TunerMemory(policy=SchedulingPolicy.FCFS if first_come else None)
    return TunerMemory(
        policy=SchedulingPolicy.SHORT_REQUEST_FIRST,
        threshold=live.threshold,
        threshold_moved_at_s=int(now),
        long_max_wait_s=live.long_max_wait_ms / 1000,
        wait_moved_at_s=int(now) if live.long_max_wait_ms else None,
    )


def _essence(status: TuningStatus) -> object:
    values = (status.threshold, status.long_max_wait)
    return (
        status.state_version,
        status.policy,
        status.band is None,
        tuple(None if v is None else (v.value, v.reason, v.moved_at) for v in values),
    )


def _values(status: TuningStatus) -> object:
    values = (status.threshold, status.long_max_wait)
    return status.state_version, status.policy, tuple(None if v is None else (v.value, v.moved_at) for v in values)


def _close(previous: TuningStatus, current: TuningStatus) -> bool:
    pairs = [(previous.valley or 0, current.valley or 0)]
    if previous.band is not None and current.band is not None:
        before, after = previous.band, current.band
        pairs += [(before.low, after.low), (before.high, after.high), (before.samples, after.samples)]
    return all(abs(a - b) <= EVIDENCE_CHANGE * max(a, b) for a, b in pairs)
