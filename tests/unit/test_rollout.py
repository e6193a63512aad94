"""The rollout of a fleet's roles together: single steps as a table, whole rollouts as tables, and its bounds over
fleets at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefleet_operator.core.rollout import RolePods, RoleStep, Step, least_slack, next_step

from tests.support.rollout_simulator import NEVER, Pod, Role, Row, Simulator, as_table, fleet, surging


def one_role(**pods: int) -> RoleStep:
    return next_step({"mixed": RolePods(**pods)}).roles["mixed"]


@pytest.mark.parametrize(
    ("pods", "step"),
    [
        pytest.param({"wanted": 4, "new_ready": 4}, RoleStep(), id="a fleet that is new stays as it is"),
        pytest.param({"wanted": 4}, RoleStep(make=4), id="a fleet without pods is made at once"),
        pytest.param({"wanted": 4, "old_ready": 4}, RoleStep(remove_old_ready=1), id="without surge one goes first"),
        pytest.param(
            {"wanted": 4, "old_ready": 3, "ending": 1}, RoleStep(), id="a pod that is ending still has its accelerator"
        ),
        pytest.param({"wanted": 4, "old_ready": 3}, RoleStep(make=1), id="then there is room for a new one"),
        pytest.param(
            {"wanted": 4, "old_ready": 3, "new_unready": 1}, RoleStep(), id="none goes while one is not ready"
        ),
        pytest.param(
            {"wanted": 4, "old_ready": 3, "new_unready": 1, "new_broken": 1}, RoleStep(), id="a broken one stops it"
        ),
        pytest.param(
            {"wanted": 4, "old_ready": 4, "max_surge": 1, "max_unavailable": 0},
            RoleStep(make=1),
            id="surge makes first",
        ),
        pytest.param(
            {"wanted": 4, "old_ready": 4, "new_ready": 1, "max_surge": 1, "max_unavailable": 0},
            RoleStep(remove_old_ready=1),
            id="and removes once the new one serves",
        ),
        pytest.param(
            {"wanted": 4, "old_unready": 4}, RoleStep(remove_old_unready=4), id="old ones that do not serve go at once"
        ),
        pytest.param(
            {"wanted": 4, "old_ready": 2, "old_unready": 2},
            RoleStep(remove_old_unready=2),
            id="those that do not serve go before those that do",
        ),
        pytest.param(
            {"wanted": 4, "old_ready": 2, "max_unavailable": 3}, RoleStep(make=2), id="what is missing is made new"
        ),
        pytest.param(
            {"wanted": 2, "new_ready": 3}, RoleStep(remove_new_ready=1), id="what is not wanted any more goes"
        ),
        pytest.param(
            {"wanted": 2, "new_ready": 2, "new_unready": 1},
            RoleStep(remove_new_unready=1),
            id="first what does not serve",
        ),
        pytest.param({"wanted": 0, "old_ready": 3}, RoleStep(remove_old_ready=3), id="a role of 0 pods ends"),
        pytest.param({"wanted": 1, "old_ready": 1}, RoleStep(remove_old_ready=1), id="a single pod goes too"),
        pytest.param(
            {"wanted": 4, "old_ready": 6, "new_ready": 0},
            RoleStep(remove_old_ready=3),
            id="fewer are wanted: old ones go, and one more makes room",
        ),
    ],
)
def test_one_step_of_one_role(pods: dict[str, int], step: RoleStep) -> None:
    assert one_role(**pods) == step


def test_without_surge_and_without_absence_nothing_could_move() -> None:
    with pytest.raises(ValueError, match="max_surge or max_unavailable"):
        RolePods(wanted=1, max_surge=0, max_unavailable=0)


def test_broken_pods_of_one_role_stop_the_others_and_the_sentence_counts_them() -> None:
    pods = {
        "prefill": RolePods(wanted=4, old_ready=4),
        "decode": RolePods(wanted=2, old_ready=1, new_unready=1, new_broken=1),
    }
    step = next_step(pods)
    assert step.idle
    assert step.stopped == "1 of 1 new decode pods will not become ready by themselves: nothing is replaced"


def test_more_than_one_pod_at_once_goes_only_once_the_revision_has_been_seen_to_start() -> None:
    pods = RolePods(wanted=8, old_ready=8, max_unavailable=4)
    assert next_step({"mixed": pods}, Fraction(1, 2)).roles["mixed"].remove_old_ready == 1
    proven = replace(pods, old_ready=7, new_ready=1)
    assert next_step({"mixed": proven}, Fraction(1, 2)).roles["mixed"].remove_old_ready == 4


def test_new_pods_that_are_there_take_the_places_of_old_ones_however_far_the_other_role_is() -> None:
    prefill = RolePods(wanted=2, old_ready=2, new_ready=2, max_surge=2)
    decode = RolePods(wanted=4, old_ready=3, new_unready=1)
    assert next_step({"prefill": prefill, "decode": decode}).roles["prefill"] == RoleStep(remove_old_ready=2)


TABLE = """\
tick  prefill old  prefill new  prefill ready  prefill step  decode old  decode new  decode ready  decode step
0     4+0          0+0          4/4            -1            2+0         0+0         2/2           -1
1     3+0 (1)      0+0          3/4                          1+0 (1)     0+0         1/2
2     3+0          0+0          3/4            +1            1+0         0+0         1/2           +1
3     3+0          0+1          3/4                          1+0         0+1         1/2
4     3+0          1+0          4/4            -1            1+0         1+0         2/2
5     2+0 (1)      1+0          3/4                          1+0         1+0         2/2
6     2+0          1+0          3/4            +1            1+0         1+0         2/2
7     2+0          1+1          3/4                          1+0         1+0         2/2
8     2+0          2+0          4/4            -1            1+0         1+0         2/2           -1
9     1+0 (1)      2+0          3/4                          0+0 (1)     1+0         1/2
10    1+0          2+0          3/4            +1            0+0         1+0         1/2           +1
11    1+0          2+1          3/4                          0+0         1+1         1/2
12    1+0          3+0          4/4            -1            0+0         2+0         2/2
13    0+0 (1)      3+0          3/4                          0+0         2+0         2/2
14    0+0          3+0          3/4            +1            0+0         2+0         2/2
15    0+0          3+1          3/4                          0+0         2+0         2/2
16    0+0          4+0          4/4                          0+0         2+0         2/2"""


def test_all_steps_without_surge_the_larger_role_waits_for_the_smaller_one() -> None:
    shown = fleet(prefill=4, decode=2)
    assert shown.run()
    assert as_table(shown.rows) == TABLE


def test_all_steps_of_a_revision_that_never_starts() -> None:
    shown = fleet(lambda _role, _number: NEVER, prefill=4, decode=2)
    assert not shown.run()
    assert as_table(shown.rows).splitlines()[-2:] == [
        "3     3+0          0+1          3/4                          1+0         0+1         1/2",
        "1 of 1 new prefill pods, 1 of 1 new decode pods will not become ready by themselves: nothing is replaced",
    ]


def test_a_rollback_is_the_old_revision_wanted_again_and_undoes_what_is_broken_first() -> None:
    shown = fleet(lambda _role, number: NEVER if number == 0 else 1, prefill=4, decode=2)
    assert not shown.run()
    shown.revision = 0
    assert shown.run()
    made = {name: role.made for name, role in shown.roles.items()}
    assert made == {"prefill": 2, "decode": 2}, "one that never started, and one in its place"
    assert all(pod.revision == 0 for role in shown.roles.values() for pod in role.pods)


def test_a_broken_old_revision_holds_the_next_one_up_in_no_role() -> None:
    shown = fleet(prefill=8, decode=8)
    shown.roles["prefill"].pods = [Pod(0, 0, NEVER) for _ in range(8)]
    first = shown.turn()
    assert first.step.roles["prefill"] == RoleStep(remove_old_unready=8)
    assert shown.run()
    served = next(row.tick for row in shown.rows if row.seen["prefill"].ready == 8)
    assert served == 4, "all at once: removed, ended, made, ready"


def test_a_role_that_changes_alone_waits_for_none() -> None:
    shown = fleet(prefill=4, decode=4)
    shown.roles["decode"].pods = [Pod(1, 0, 0) for _ in range(4)]
    assert shown.run()
    assert shown.roles["decode"].made == 0


# Fleets at random.

counts = st.integers(1, 12)


@st.composite
def rollouts(draw: st.DrawFn, broken: bool) -> tuple[Simulator, random.Random]:
    """A fleet whose old pods serve, and new pods that become ready after a while, or (`broken`) some never."""
    names = draw(st.sampled_from([("prefill", "decode"), ("mixed",)]))
    surge, unavailable = draw(st.sampled_from([(0, 1), (0, 3), (1, 0), (2, 1), (3, 0)]))
    chance = draw(st.sampled_from([0.05, 0.5, 1.0])) if broken else 0.0
    source = random.Random(draw(st.integers(0, 2**32)))

    def delay(_role: str, _number: int) -> int:
        return NEVER if source.random() < chance else source.randint(0, 6)

    simulator = surging(
        fleet(delay, draw(st.integers(0, 4)), **{name: draw(counts) for name in names}), surge, unavailable
    )
    simulator.slack = draw(st.sampled_from([None, Fraction(1, 4), Fraction(1, 2), Fraction(1)]))
    return simulator, source


def slack_of(simulator: Simulator, row: Row) -> Fraction:
    least = least_slack(row.seen)
    return min(Fraction(1), max(least, simulator.slack or least))


def check_bounds(simulator: Simulator, rows: Sequence[Row]) -> None:
    """Every bound of the planner's page, at every tick, in a fleet of which nothing fails by itself."""
    for row in rows:
        slack = slack_of(simulator, row)
        shares = []
        for pods in row.seen.values():
            assert pods.total <= pods.wanted + pods.max_surge, as_table(rows)
            lost = min(pods.max_unavailable, floor(slack * pods.wanted))
            assert pods.ready >= pods.wanted - lost, as_table(rows)
            if not pods.new_ready:
                assert pods.ready >= pods.wanted - 1, as_table(rows)
            shares.append(min(Fraction(1), Fraction(pods.ready, pods.wanted)))
        assert max(shares) - min(shares) <= slack, as_table(rows)
        for name, pods in row.seen.items():
            others = [each.progress for other, each in row.seen.items() if other != name]
            if row.step.roles[name].make and others and pods.old_ready + pods.new >= pods.wanted:
                after = Fraction(pods.new + row.step.roles[name].make, pods.wanted)
                assert after <= min(others) + slack, as_table(rows)


@settings(max_examples=300, deadline=None)
@given(rollouts(broken=False))
def test_when_all_new_pods_become_ready_it_ends_within_its_bounds(case: tuple[Simulator, random.Random]) -> None:
    simulator, _ = case
    assert simulator.run(), as_table(simulator.rows)
    check_bounds(simulator, simulator.rows)
    made = {name: role.made for name, role in simulator.roles.items()}
    assert made == {name: role.wanted for name, role in simulator.roles.items()}, "no pod is made in vain"


@settings(max_examples=300, deadline=None)
@given(rollouts(broken=True))
def test_it_ends_if_and_only_if_no_new_pod_stays_broken_and_the_old_ones_go_on(
    case: tuple[Simulator, random.Random],
) -> None:
    simulator, _ = case
    done = simulator.run()
    pods = [pod for role in simulator.roles.values() for pod in role.pods]
    assert done is all(pod.ready_at < NEVER for pod in pods)
    check_bounds(simulator, simulator.rows)
    stopped = [row for row in simulator.rows if row.step.stopped]
    assert all(row.step.idle for row in stopped)
    assert bool(stopped) is not done


@settings(max_examples=200, deadline=None)
@given(rollouts(broken=False), st.integers(0, 30))
def test_pods_that_fail_by_themselves_are_never_made_fewer_by_the_planner(
    case: tuple[Simulator, random.Random], failures: int
) -> None:
    """Serving pods fall out and come back. No step takes a serving pod of a role that has lost its share already."""
    simulator, source = case
    for _ in range(failures):
        role = source.choice(list(simulator.roles.values()))
        for pod in source.sample(role.pods, k=min(len(role.pods), source.randint(0, 2))):
            pod.ready_at = max(pod.ready_at, simulator.tick + source.randint(1, 5))
        row = simulator.turn()
        for name, pods in row.seen.items():
            step, slack = row.step.roles[name], slack_of(simulator, row)
            gone = step.remove_old_ready + step.remove_new_ready
            lost = min(pods.max_unavailable, floor(slack * pods.wanted))
            assert not gone or pods.ready - gone >= pods.wanted - lost, as_table(simulator.rows)
            assert pods.total <= pods.wanted + pods.max_surge
    assert simulator.run(), as_table(simulator.rows)


@settings(max_examples=200, deadline=None)
@given(rollouts(broken=True), st.integers(0, 40), st.data())
def test_whatever_happened_before_another_revision_or_size_comes_to_its_end(
    case: tuple[Simulator, random.Random], ticks: int, data: st.DataObject
) -> None:
    """A rollback or the next revision, and another number of pods, in the middle of anything: broken pods included."""
    simulator, source = case
    for _ in range(ticks):
        simulator.turn()
    simulator.delay = lambda _role, _number: source.randint(0, 3)
    simulator.revision = data.draw(st.sampled_from([0, 2]))
    for role in simulator.roles.values():
        role.wanted = data.draw(counts)
    assert simulator.run(), as_table(simulator.rows)
    for role in simulator.roles.values():
        assert len(role.pods) == role.wanted
        assert all(pod.revision == simulator.revision for pod in role.pods)


some = st.integers(0, 6)


@st.composite
def states(draw: st.DrawFn) -> RolePods:
    surge = draw(st.integers(0, 3))
    unready = draw(some)
    return RolePods(
        wanted=draw(some),
        old_ready=draw(some),
        old_unready=draw(some),
        new_ready=draw(some),
        new_unready=unready,
        new_broken=draw(st.integers(0, unready)) * draw(st.integers(0, 1)),
        ending=draw(st.integers(0, 3)),
        max_surge=surge,
        max_unavailable=draw(st.integers(0 if surge else 1, 4)),
    )


@settings(max_examples=500, deadline=None)
@given(states(), states(), st.sampled_from([None, Fraction(1, 3), Fraction(1)]))
def test_in_any_state_a_step_takes_what_is_there_and_makes_what_has_room(
    prefill: RolePods, decode: RolePods, slack: Fraction | None
) -> None:
    pods = {"prefill": prefill, "decode": decode}
    step = next_step(pods, slack)
    assert step == next_step(pods, slack)
    if prefill.new_broken or decode.new_broken:
        assert step.idle
        assert step.stopped
        return
    for name, role in pods.items():
        _check_step(role, step, name)
    if step.idle and not any(role.ending or role.new_unready for role in pods.values()):
        assert all(role.done for role in pods.values()), "nothing to wait for, so nothing may be left"


def _check_step(role: RolePods, step: Step, name: str) -> None:
    taken = step.roles[name]
    assert 0 <= taken.remove_old_ready <= role.old_ready
    assert 0 <= taken.remove_old_unready <= role.old_unready
    assert 0 <= taken.remove_new_ready <= role.new_ready
    assert 0 <= taken.remove_new_unready <= role.new_unready
    assert not taken.make or role.total + taken.make <= role.wanted + role.max_surge
    gone = taken.remove_old_ready + taken.remove_new_ready
    assert not gone or role.ready - gone >= role.wanted - max(role.max_unavailable, 0)


def test_a_simulated_role_may_be_made_of_anything() -> None:
    simulator = Simulator({"mixed": Role(3, [Pod(0, 0, 0), Pod(1, 0, 0)])}, lambda _role, _number: 0)
    assert simulator.run()
    assert [pod.revision for pod in simulator.roles["mixed"].pods] == [1, 1, 1]
