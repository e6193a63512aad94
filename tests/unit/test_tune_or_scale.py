"""Who acts on long waits: the tuner or sizing, never both within one cooldown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import pytest
from prefleet_operator.api import Actuator, PrefillPolicySpec, Role, SchedulingPolicy, parse_spec
from prefleet_operator.core.observed import Sample
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.sizing.arbiter import Act, WaitsMemory
from prefleet_operator.core.sizing.state import SizingState
from prefleet_operator.core.sizing.turn import PACE_S, Sizer, SizingView
from prefleet_operator.core.tune_or_scale import decide_together
from prefleet_operator.core.tuning import Finding, TunerMemory, TuningDecision, TuningMove

from tests.support.loads import load_of

NOW = 1_700_000_000.0
SRF = SchedulingPolicy.SHORT_REQUEST_FIRST
COOLDOWN_S = 900
SHORT_S, ENOUGH_S = 7.9, 3.0
"""W_normal where capacity is short, of the 8 seconds that long requests may wait, and where it is not."""

LOAD = load_of(2.0, NOW)
SETTLED = TunerMemory(SRF, 900, int(NOW) - 10_000, 6.0, int(NOW) - 10_000)
NEW = TunerMemory()
BOTH_MOVES = ("threshold", "longMaxWait")


@cache
def fleet(most: int = 8) -> PrefillPolicySpec:
    return parse_spec(
        {
            "model": {"source": {"hub": {"repo": "example/model"}}, "servedName": "model"},
            "engine": {"type": "Simulator"},
            "prefill": {"replicas": 3},
            "decode": {"replicas": 1},
            "autoscaling": {"prefill": {"maxReplicas": most}},
        }
    )


def proposal(
    *moves: str, normal_s: float | None, reason: Reason = Reason.WAIT_FROM_LONG_WAITS
) -> tuple[TuningDecision, TunerMemory]:
    """The tuner would set the threshold to 1,200 and the limit to 4 s, as far as it moves them."""
    threshold, wait_s = (1200 if "threshold" in moves else 900), (4.0 if "longMaxWait" in moves else 6.0)
    decision = TuningDecision(
        policy=SRF,
        threshold=threshold,
        long_max_wait_s=wait_s,
        advised_policy=SRF,
        threshold_finding=Finding(threshold, Reason.BAND_OPTIMUM, "the band says so"),
        wait_finding=Finding(wait_s, reason, "the waits say so"),
        normal_wait_s=normal_s,
        moves=tuple(TuningMove(name, "old", "new", reason, "told") for name in moves),
    )
    return decision, TunerMemory(SRF, threshold, int(NOW), wait_s, int(NOW))


@dataclass(frozen=True)
class Turn:
    tuned: bool
    pods: int
    act: Act | None
    decision: TuningDecision
    state: SizingState


def turn(
    decision: TuningDecision,
    after: TunerMemory,
    before: TunerMemory = SETTLED,
    acted: WaitsMemory | None = None,
    most: int = 8,
    now: float = NOW,
    state: SizingState | None = None,
) -> Turn:
    spec = fleet(most)
    known = state or SizingState(Actuator.DIRECT)
    if acted is not None:
        known = known.with_waits(acted)
    view = SizingView({Role.PREFILL: 3}, {Role.PREFILL: replace(LOAD, waiting_tokens=Sample(0.0, now))}, known)
    decided, memory, following = decide_together(Sizer(spec, 1, view, (), now), None, before, decision, after)
    tuned = (memory.threshold, memory.long_max_wait_s) != (before.threshold, before.long_max_wait_s)
    assert tuned == bool(decided.moves)
    return Turn(tuned, following.wanted[Role.PREFILL], following.memory.waits.act, decided, following)


def ago(act: Act, seconds: float) -> WaitsMemory:
    return WaitsMemory(act, int(NOW - seconds))


@pytest.mark.parametrize(
    ("moves", "normal_s", "given", "tuned", "pods", "act"),
    [
        pytest.param((), SHORT_S, {}, False, 4, Act.SCALE, id="capacity is short and the tuner is content"),
        pytest.param((), ENOUGH_S, {}, False, 3, None, id="nothing is wrong"),
        pytest.param(("threshold",), ENOUGH_S, {}, True, 3, Act.TUNE, id="an unfit threshold adds no pod"),
        pytest.param(BOTH_MOVES, SHORT_S, {}, False, 4, Act.SCALE, id="capacity is short: the tuner's moves wait"),
        pytest.param(
            BOTH_MOVES, SHORT_S, {"most": 3}, True, 3, Act.TUNE, id="a fleet that cannot grow is tuned all the same"
        ),
        pytest.param(
            ("longMaxWait",), ENOUGH_S, {"acted": ago(Act.SCALE, 60)}, False, 3, Act.SCALE, id="sizing has just acted"
        ),
        pytest.param(
            ("longMaxWait",), ENOUGH_S, {"acted": ago(Act.SCALE, COOLDOWN_S)}, True, 3, Act.TUNE,
            id="sizing acted a cooldown ago",
        ),
        pytest.param((), SHORT_S, {"acted": ago(Act.TUNE, 60)}, False, 3, Act.TUNE, id="the tuner has just acted"),
        pytest.param(
            (), SHORT_S, {"acted": ago(Act.TUNE, COOLDOWN_S)}, False, 4, Act.SCALE, id="the tuner acted a cooldown ago"
        ),
        pytest.param(
            ("longMaxWait",), ENOUGH_S, {"acted": ago(Act.TUNE, 60)}, True, 3, Act.TUNE,
            id="two moves of the tuner are its own affair",
        ),
        pytest.param(
            BOTH_MOVES, SHORT_S, {"before": NEW}, True, 3, Act.TUNE, id="first values are set at once, and sizing waits"
        ),
        pytest.param((), None, {}, False, 3, None, id="unknown waits let nobody act"),
    ],
)  # fmt: skip
def test_who_acts(moves, normal_s, given, tuned, pods, act):
    found = turn(*proposal(*moves, normal_s=normal_s), **given)
    assert (found.tuned, found.pods, found.act) == (tuned, pods, act)


def test_a_held_move_says_why_and_until_when():
    found = turn(*proposal(*BOTH_MOVES, normal_s=ENOUGH_S), acted=WaitsMemory(Act.SCALE, int(NOW)))
    for finding in (found.decision.threshold_finding, found.decision.wait_finding):
        assert finding.reason is Reason.COOLING_DOWN
        assert "the fleet grew for the waits of long requests at 2023-11-14T22:13:20Z" in finding.message
        assert finding.message.endswith("nothing is tuned before 2023-11-14T22:28:20Z")
    assert (found.decision.threshold, found.decision.long_max_wait_s) == (900, 6.0)


def test_a_limit_that_the_user_has_cut_waits_for_nobody():
    cut = proposal("longMaxWait", normal_s=None, reason=Reason.SLO_LOWERED)
    found = turn(*cut, acted=ago(Act.SCALE, 60))
    assert (found.tuned, found.act) == (True, Act.SCALE)


def test_whatever_the_tuner_would_move_the_two_never_act_within_one_cooldown():
    """The tuner would move in every turn of a day, and of every other hour capacity is short."""
    state, acts, now = None, [], NOW
    for _ in range(24 * 240):
        normal_s = SHORT_S if int((now - NOW) // 3600) % 2 else ENOUGH_S
        moves = BOTH_MOVES if int((now - NOW) // 1800) % 2 else ()
        found = turn(*proposal(*moves, normal_s=normal_s), now=now, state=state)
        if found.tuned:
            acts.append((Act.TUNE, now))
        if found.state.memory.waits == WaitsMemory(Act.SCALE, int(now)):
            acts.append((Act.SCALE, now))
        state, now = found.state, now + PACE_S
    turns = [(a, b) for a, b in pairwise(acts) if a[0] is not b[0]]
    assert len(turns) > 10
    assert all(b[1] - a[1] >= COOLDOWN_S for a, b in turns)


@pytest.mark.parametrize(
    ("moves", "normal_s", "after_s", "decided"),
    [
        pytest.param((), ENOUGH_S, PACE_S, True, id="its time has come"),
        pytest.param((), SHORT_S, 1, False, id="its time has not come"),
        pytest.param(BOTH_MOVES, ENOUGH_S, 1, False, id="nor is it asked for a move that capacity has no part in"),
        pytest.param(BOTH_MOVES, SHORT_S, 1, True, id="the tuner would act where sizing should"),
        pytest.param((), ENOUGH_S, -3600, True, id="a clock that was set back stops nothing"),
    ],
)
def test_when_sizes_are_decided_anew(moves, normal_s, after_s, decided):
    first = turn(*proposal(normal_s=ENOUGH_S))
    second = turn(*proposal(*moves, normal_s=normal_s), now=NOW + after_s, state=first.state)
    assert second.state.decided_at_s == (NOW + after_s if decided else NOW)
    assert second.state.sizes == first.state.sizes or decided
