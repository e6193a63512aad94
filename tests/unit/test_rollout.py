"""The rollout of a fleet's roles together: single gates as a table, whole rollouts as tables, and its bounds over
fleets at random, rolled by the controllers of tests/support/rollout_simulator.py."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefleet_operator.core.rollout import Gate, RolePods, least_slack, next_gates, resolve_limits, tell_rollout

from tests.support.rollout_simulator import (
    MIN_READY,
    NEVER,
    PROVEN_AFTER,
    Deployment,
    Groups,
    Pod,
    Row,
    Simulator,
    Workload,
    as_table,
    fleet,
    surging,
)


def opened(surge: int, unavailable: int, new: int) -> Gate:
    return Gate(True, surge, unavailable, new, waits=False)


def closed(new: int, surge: int = 0) -> Gate:
    return Gate(False, surge, 0 if surge else 1, new, waits=True)


ALONE: dict[str, RolePods] = {}
BEHIND = {"decode": RolePods(wanted=4, old_ready=4)}
STEP_AHEAD = {"decode": RolePods(wanted=4, old_ready=3, new_ready=1)}
BROKEN = {"decode": RolePods(wanted=4, old_ready=3, new_unready=1, new_broken=1)}


@pytest.mark.parametrize(
    ("pods", "others", "gate"),
    [
        pytest.param({"new_ready": 4}, BEHIND, None, id="a role that is new is left to itself"),
        pytest.param({}, BEHIND, None, id="a role without pods is left to itself"),
        pytest.param({"old_ready": 4}, BEHIND, opened(0, 1, 1), id="without surge one goes first"),
        pytest.param({"old_ready": 3}, BEHIND, opened(0, 1, 1), id="then there is room for a new one"),
        pytest.param({"old_ready": 3, "new_unready": 1}, BEHIND, opened(0, 1, 1), id="and it may start"),
        pytest.param({"old_ready": 3, "new_ready": 1}, BEHIND, closed(1), id="then it waits for the other role"),
        pytest.param({"old_ready": 3, "new_ready": 1}, STEP_AHEAD, opened(0, 1, 2), id="until that is as far"),
        pytest.param({"old_ready": 3, "new_ready": 1}, ALONE, opened(0, 1, 4), id="alone it waits for none"),
        pytest.param(
            {"old_ready": 2, "new_ready": 1},
            BEHIND,
            opened(0, 1, 2),
            id="a gate does not close over a pod that is yet to be made",
        ),
        pytest.param({"old_ready": 4}, BROKEN, closed(0), id="a broken new pod of the other role closes it"),
        pytest.param(
            {"old_ready": 3, "new_unready": 1},
            BROKEN,
            Gate(True, 0, 1, 1, waits=True),
            id="what has begun may end meanwhile",
        ),
        pytest.param(
            {"old_ready": 3, "new_unready": 1, "new_broken": 1},
            BEHIND,
            Gate(True, 0, 1, 1, waits=False),
            id="a role that is broken itself stays open, so that its Deployment tells of it",
        ),
        pytest.param({"old_unready": 4}, BEHIND, opened(0, 4, 4), id="old pods that do not serve go at once"),
        pytest.param(
            {"old_ready": 2, "old_unready": 2}, BEHIND, opened(0, 2, 2), id="and before those that do, which stay"
        ),
        pytest.param(
            {"old_ready": 4, "max_surge": 1, "max_unavailable": 0}, BEHIND, opened(1, 0, 1), id="surge makes first"
        ),
        pytest.param(
            {"old_ready": 4, "new_ready": 1, "max_surge": 1, "max_unavailable": 0},
            BEHIND,
            closed(1, surge=1),
            id="the pod above those wanted stays while the role waits",
        ),
        pytest.param(
            {"old_ready": 4, "new_ready": 1, "max_surge": 1, "max_unavailable": 0},
            STEP_AHEAD,
            opened(1, 0, 2),
            id="then an old one goes and a new one comes",
        ),
        pytest.param(
            {"old_ready": 1, "new_ready": 4, "max_surge": 1, "max_unavailable": 0},
            ALONE,
            opened(1, 0, 4),
            id="the last old one goes",
        ),
        pytest.param({"old_ready": 4, "max_unavailable": 3}, BEHIND, opened(0, 1, 1), id="the first goes alone"),
        pytest.param({"old_ready": 6}, BROKEN, closed(0), id="fewer are wanted: others go in proportion"),
    ],
)
def test_one_gate(pods: dict[str, int], others: Mapping[str, RolePods], gate: Gate | None) -> None:
    assert next_gates({"prefill": RolePods(wanted=4, **pods), **others}).get("prefill") == gate


def test_a_role_of_no_pods_needs_no_gate() -> None:
    assert next_gates({"mixed": RolePods(wanted=0, old_ready=3)}) == {}


def test_more_than_one_pod_at_once_goes_only_once_the_revision_has_been_seen_to_start() -> None:
    pods = RolePods(wanted=8, old_ready=8, max_unavailable=4)
    assert next_gates({"mixed": pods}, Fraction(1, 2))["mixed"] == opened(0, 1, 8)
    proven = replace(pods, old_ready=7, new_ready=1)
    assert next_gates({"mixed": proven}, Fraction(1, 2))["mixed"] == opened(0, 4, 8)


def test_without_surge_and_without_absence_nothing_could_move() -> None:
    with pytest.raises(ValueError, match="max_surge or max_unavailable"):
        RolePods(wanted=1, max_surge=0, max_unavailable=0)


def test_unproven_pods_count_among_those_that_are_ready() -> None:
    with pytest.raises(ValueError, match="new_unproven 1 counts among new_ready 0"):
        RolePods(wanted=1, new_unproven=1)


def test_broken_pods_count_among_those_that_are_not_ready() -> None:
    with pytest.raises(ValueError, match="new_broken 1 counts among new_unready 0"):
        RolePods(wanted=1, new_broken=1)


@pytest.mark.parametrize(
    ("limits", "wanted", "numbers"),
    [
        pytest.param((1, 0), 3, (1, 0), id="numbers are numbers"),
        pytest.param(("25%", "25%"), 3, (1, 0), id="surge is rounded up and absence down"),
        pytest.param(("0%", "25%"), 3, (0, 1), id="one may be absent where nothing is left"),
        pytest.param((0, "50%"), 8, (0, 4), id="a share of those wanted"),
    ],
)
def test_limits_are_counted_as_kubernetes_counts_them(
    limits: tuple[int | str, int | str], wanted: int, numbers: tuple[int, int]
) -> None:
    assert resolve_limits(*limits, wanted) == numbers


@pytest.mark.parametrize(
    ("pods", "told"),
    [
        pytest.param({"prefill": RolePods(wanted=3, new_ready=3)}, "", id="nothing is said of what does not roll"),
        pytest.param(
            {
                "prefill": RolePods(wanted=3, old_ready=2, new_ready=1),
                "decode": RolePods(wanted=3, old_ready=2, new_ready=1),
            },
            "The rollout goes on: 1 of 3 new prefill pods are ready, 1 of 3 new decode pods are ready.",
            id="how far it is",
        ),
        pytest.param(
            {
                "prefill": RolePods(wanted=3, old_ready=1, new_ready=1, new_unready=1),
                "decode": RolePods(wanted=3, old_ready=1, new_ready=2),
            },
            "The rollout goes on: 1 of 3 new prefill pods are ready, 2 of 3 new decode pods are ready; decode waits "
            "for prefill, where 1 of 3 new pods are ready.",
            id="which role waits for which",
        ),
        pytest.param(
            {"prefill": RolePods(wanted=3, old_ready=3), "decode": BROKEN["decode"]},
            "The rollout has stopped (0 of 3 new prefill pods are ready, 0 of 4 new decode pods are ready): 1 of 1 new "
            "decode pods will not become ready by themselves, and old ones stay: apply a spec that mends them, or the "
            "last one that worked.",
            id="that it has stopped, and what to do",
        ),
        pytest.param(
            {
                "prefill": RolePods(wanted=3, old_ready=2, new_ready=1, new_unproven=1),
                "decode": RolePods(wanted=4, old_ready=4),
            },
            "The rollout waits (1 of 3 new prefill pods are ready, 0 of 4 new decode pods are ready): 1 of 1 new "
            "prefill pods crashed, and have to serve for 5 minutes first.",
            id="that pods which crashed have to prove themselves",
        ),
    ],
)
def test_the_sentence_about_a_rollout(pods: Mapping[str, RolePods], told: str) -> None:
    assert tell_rollout(pods, next_gates(pods)) == told


TABLE = """\
tick  prefill old  prefill new  prefill ready  prefill gate  decode old  decode new  decode ready  decode gate
1     4+0          0+0          4/4            +0 -1         2+0         0+0         2/2           +0 -1
2     3+0          0+0          3/4            +0 -1         1+0         0+0         1/2           +0 -1
3     3+0          0+1          3/4            +0 -1         1+0         0+1         1/2           +0 -1
5     3+0          1+0          4/4            +0 -1         1+0         0+1         1/2           +0 -1
11    2+0          1+0          3/4            +0 -1         1+0         0+1         1/2           +0 -1
12    2+0          1+1          3/4            +0 -1         1+0         0+1         1/2           +0 -1
14    2+0          2+0          4/4            closed        1+0         0+1         1/2           +0 -1
15    2+0          2+0          4/4            +0 -1         1+0         1+0         2/2           +0 -1
20    1+0          2+0          3/4            +0 -1         1+0         1+0         2/2           +0 -1
21    1+0          2+1          3/4            +0 -1         0+0         1+0         1/2           free
22    1+0          2+1          3/4            +0 -1         0+0         1+1         1/2           free
23    1+0          3+0          4/4            +0 -1         0+0         1+1         1/2           free
29    0+0          3+0          3/4            free          0+0         1+1         1/2           free
30    0+0          3+1          3/4            free          0+0         1+1         1/2           free
32    0+0          4+0          4/4            free          0+0         1+1         1/2           free
34    0+0          4+0          4/4            free          0+0         2+0         2/2           free"""

GROUPS_TABLE = """\
tick  prefill old  prefill new  prefill ready  prefill gate  decode old  decode new  decode ready  decode gate
1     3+0          0+0          3/3            +0 -1         3+0         0+0         3/3           +0 -1
2     2+0          0+1          2/3            +0 -1         2+0         0+1         2/3           +0 -1
3     2+0          1+0          3/3            closed        2+0         0+1         2/3           +0 -1
6     2+0          1+0          3/3            +0 -1         2+0         1+0         3/3           +0 -1
7     1+0          1+1          2/3            +0 -1         1+0         1+1         2/3           +0 -1
8     1+0          2+0          3/3            closed        1+0         1+1         2/3           +0 -1
11    1+0          2+0          3/3            +0 -1         1+0         2+0         3/3           +0 -1
12    0+0          2+1          2/3            free          0+0         2+1         2/3           free
13    0+0          3+0          3/3            free          0+0         2+1         2/3           free
16    0+0          3+0          3/3            free          0+0         3+0         3/3           free"""


def test_all_steps_without_surge_the_larger_role_waits_for_the_smaller_one() -> None:
    shown = fleet(lambda role, _number: 2 if role == "prefill" else 12, prefill=4, decode=2)
    assert shown.run()
    assert as_table(shown.rows) == TABLE


def test_all_steps_of_a_revision_that_never_starts() -> None:
    shown = fleet(lambda role, _number: NEVER if role == "prefill" else 1, prefill=4, decode=2)
    assert not shown.run()
    assert as_table(shown.rows).splitlines()[-2:] == [
        "4     3+0          0+1          3/4            +0 -1         1+0         1+0         2/2           closed",
        "The rollout has stopped (0 of 4 new prefill pods are ready, 1 of 2 new decode pods are ready): "
        "1 of 1 new prefill pods will not become ready by themselves, and old ones stay: "
        "apply a spec that mends them, or the last one that worked.",
    ]


@pytest.mark.parametrize("kind", [Deployment, Groups])
@pytest.mark.parametrize("served", [MIN_READY + 1, PROVEN_AFTER - 1])
def test_a_revision_that_starts_well_and_crashes_at_its_work_takes_no_old_pod_down_from_then_on(
    kind: type[Workload], served: int
) -> None:
    """Else its controllers would take the next ones each time that it serves again."""
    shown = fleet(lambda _role, number: 30 * number, kind, prefill=12, decode=12)
    left = []
    for _ in range(1000):
        new = [pod for role in shown.roles.values() for pod in role.pods if pod.revision == shown.revision]
        for pod in new:
            if shown.tick - pod.ready_at >= served:
                pod.ready_at, pod.crashed = shown.tick + 7, True
        old = {name: pods.old for name, pods in shown.turn().seen.items()}
        left += [old] if any(pod.crashed for pod in new) else []
    assert len(left) > 900
    assert all(old == left[0] for old in left)
    assert all(count > 6 for count in left[0].values())
    shown.delay = lambda _role, _number: 1
    assert shown.run(), "once they serve for long enough it goes on"


def test_all_steps_of_groups_are_held_by_their_partition() -> None:
    shown = fleet(lambda role, _number: 1 if role == "prefill" else 4, kind=Groups, prefill=3, decode=3)
    assert shown.run()
    assert as_table(shown.rows) == GROUPS_TABLE
    check_bounds(shown)


def test_a_rollback_is_the_old_revision_wanted_again_and_undoes_what_is_broken_first() -> None:
    shown = fleet(lambda _role, number: NEVER if number == 0 else 1, prefill=4, decode=2)
    assert not shown.run()
    shown.revision = 0
    assert shown.run()
    made = {name: role.made for name, role in shown.roles.items()}
    assert made == {"prefill": 2, "decode": 2}, "one that never started, and one in its place"
    assert all(pod.revision == 0 for role in shown.roles.values() for pod in role.pods)


def test_a_rollback_half_way_keeps_the_old_pods_that_are_left() -> None:
    shown = fleet(prefill=4, decode=4)
    while not all(pods.new_ready == 2 for pods in shown.turn().seen.values()):
        pass
    made = {name: role.made for name, role in shown.roles.items()}
    shown.revision = 0
    assert shown.run()
    assert {name: role.made - made[name] for name, role in shown.roles.items()} == {"prefill": 2, "decode": 2}
    check_bounds(shown)


def test_a_broken_old_revision_holds_the_next_one_up_in_no_role() -> None:
    shown = fleet(prefill=8, decode=8)
    shown.roles["prefill"].pods = [Pod(0, 0, NEVER) for _ in range(8)]
    assert shown.run()
    served = next(row.tick for row in shown.rows if row.seen["prefill"].ready == 8)
    assert served == 4, "all at once: removed, made, ready"


@pytest.mark.parametrize("broken", [0, 1, 4], ids=["starting", "one is broken", "all are broken"])
def test_a_role_that_the_change_does_not_concern_holds_nobody_up_in_whatever_state_it_is(broken: int) -> None:
    """Its pods may be broken for want of what the other role is to get now."""
    decode = RolePods(wanted=4, new_unready=4, new_broken=broken, changed=False)
    pods = {"prefill": RolePods(wanted=4, old_ready=3, new_ready=1), "decode": decode}
    gates = next_gates(pods)
    assert gates == {"prefill": opened(0, 1, 4)}
    assert tell_rollout(pods, gates) == "The rollout goes on: 1 of 4 new prefill pods are ready."
    left = {**pods, "decode": replace(decode, old_ready=1)}
    assert next_gates(left)["prefill"] == closed(1), "with pods of an earlier change it still rolls"


def test_a_role_that_changes_alone_waits_for_none() -> None:
    shown = fleet(prefill=4, decode=4)
    shown.roles["decode"].pods = [Pod(1, 0, 0) for _ in range(4)]
    shown.roles["decode"].revision = 1
    assert shown.run()
    assert shown.roles["decode"].made == 0


def test_without_an_operator_each_role_goes_on_within_its_gate_or_waits_and_the_next_one_ends_it() -> None:
    shown = fleet(prefill=4, decode=4)
    shown.alive = lambda tick: tick == 1 or tick > 60
    for _ in range(60):
        shown.turn()
    alone = shown.look(shown.roles["prefill"])
    assert alone.new_ready == 4, "it was open and went on"
    assert shown.run()
    assert all(pods.ready >= 3 for row in shown.rows for pods in row.seen.values())


# Fleets at random.

counts = st.integers(1, 12)


@st.composite
def rollouts(draw: st.DrawFn, broken: bool) -> tuple[Simulator, random.Random]:
    """A fleet whose old pods serve, and new pods that become ready after a while, or (`broken`) some never."""
    names = draw(st.sampled_from([("prefill", "decode"), ("mixed",)]))
    kind = draw(st.sampled_from([Deployment, Deployment, Groups]))
    surge, unavailable = (0, 1)
    if kind is Deployment:
        surge, unavailable = draw(st.sampled_from([(0, 1), (0, 3), (1, 0), (1, 1), (2, 1), (3, 0)]))
    chance = draw(st.sampled_from([0.05, 0.5, 1.0])) if broken else 0.0
    source = random.Random(draw(st.integers(0, 2**32)))

    def delay(_role: str, _number: int) -> int:
        return NEVER if source.random() < chance else source.randint(0, 12)

    simulator = surging(fleet(delay, kind, **{name: draw(counts) for name in names}), surge, unavailable)
    simulator.slack = draw(st.sampled_from([None, Fraction(1, 4), Fraction(1, 2), Fraction(1)]))
    simulator.look_every = draw(st.integers(1, MIN_READY - 1))
    return simulator, source


def slack_of(simulator: Simulator, row: Row) -> Fraction:
    least = least_slack(row.seen)
    return min(Fraction(1), max(least, simulator.slack or least))


def check_bounds(simulator: Simulator) -> None:
    """Every bound of the planner's page, at every tick, in a fleet of which nothing fails by itself."""
    rows = simulator.rows
    begun = next(number for number, row in enumerate(rows) if row.looked)
    for row in rows[begun + 1 :]:
        slack = slack_of(simulator, row)
        for pods in row.seen.values():
            assert pods.total <= pods.wanted + pods.max_surge, as_table(rows)
            lost = min(pods.max_unavailable, floor(slack * pods.wanted))
            assert pods.ready >= pods.wanted - lost, as_table(rows)
            if not pods.new_ready:
                assert pods.ready >= pods.wanted - 1, as_table(rows)
        shares = [min(Fraction(1), Fraction(pods.ready, pods.wanted)) for pods in row.seen.values()]
        assert max(shares) - min(shares) <= slack, as_table(rows)
        check_in_step(row, slack, rows)


def check_in_step(row: Row, slack: Fraction, rows: Sequence[Row]) -> None:
    for name, pods in row.seen.items():
        others = [each.progress for other, each in row.seen.items() if other != name]
        if others:
            assert Fraction(pods.new, pods.wanted) <= min(others) + slack, as_table(rows)


@settings(max_examples=300, deadline=None)
@given(rollouts(broken=False))
def test_when_all_new_pods_become_ready_it_ends_within_its_bounds(case: tuple[Simulator, random.Random]) -> None:
    simulator, _ = case
    assert simulator.run(), as_table(simulator.rows)
    check_bounds(simulator)
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
    assert done is all(pod.ready_at < NEVER for pod in pods), as_table(simulator.rows)
    check_bounds(simulator)


@settings(max_examples=200, deadline=None)
@given(rollouts(broken=False), st.integers(0, 30))
def test_pods_that_fail_by_themselves_hold_the_others_and_it_ends(
    case: tuple[Simulator, random.Random], failures: int
) -> None:
    """Serving pods fall out and come back: it goes on to its end, and never are there more pods than there may be."""
    simulator, source = case
    for _ in range(failures):
        role = source.choice(list(simulator.roles.values()))
        for pod in source.sample(role.pods, k=min(len(role.pods), source.randint(0, 2))):
            pod.ready_at = max(pod.ready_at, simulator.tick + source.randint(1, 5))
        for pods in simulator.turn().seen.values():
            assert pods.total <= pods.wanted + pods.max_surge, as_table(simulator.rows)
    assert simulator.run(), as_table(simulator.rows)


@settings(max_examples=200, deadline=None)
@given(rollouts(broken=True), st.integers(0, 60), st.data())
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


@settings(max_examples=200, deadline=None)
@given(rollouts(broken=False), st.lists(st.integers(1, 40), max_size=6))
def test_an_operator_that_dies_again_and_again_comes_to_the_same_end_and_serves_all_the_way(
    case: tuple[Simulator, random.Random], deaths: list[int]
) -> None:
    simulator, _ = case
    edges = [sum(deaths[: number + 1]) for number in range(len(deaths))]
    simulator.alive = lambda tick: sum(edge <= tick for edge in edges) % 2 == 0 or tick > edges[-1]
    for _ in range(sum(deaths)):
        simulator.turn()
    assert simulator.run(), as_table(simulator.rows)
    looked = False
    for row in simulator.rows:
        for pods in row.seen.values():
            lost = max(1, pods.max_unavailable)
            assert not looked or pods.ready >= pods.wanted - lost, as_table(simulator.rows)
        looked = looked or row.looked


some = st.integers(0, 6)


@st.composite
def states(draw: st.DrawFn) -> RolePods:
    surge = draw(st.integers(0, 3))
    unready, ready = draw(some), draw(some)
    return RolePods(
        wanted=draw(some),
        old_ready=draw(some),
        old_unready=draw(some),
        new_ready=ready,
        new_unproven=draw(st.integers(0, ready)) * draw(st.integers(0, 1)),
        new_unready=unready,
        new_broken=draw(st.integers(0, unready)) * draw(st.integers(0, 1)),
        max_surge=surge,
        max_unavailable=draw(st.integers(0 if surge else 1, 4)),
        changed=draw(st.booleans()),
    )


@settings(max_examples=500, deadline=None)
@given(states(), states(), st.sampled_from([None, Fraction(1, 3), Fraction(1)]))
def test_in_any_state_a_gate_is_one_that_kubernetes_takes_and_closes_over_nothing_half_done(
    prefill: RolePods, decode: RolePods, slack: Fraction | None
) -> None:
    pods = {"prefill": prefill, "decode": decode}
    gates = next_gates(pods, slack)
    assert set(gates) == {name for name, role in pods.items() if role.old and role.wanted}
    for name, gate in gates.items():
        role = pods[name]
        assert gate.max_surge >= 0
        assert gate.max_unavailable >= 0
        assert gate.max_surge or gate.max_unavailable
        assert gate.max_surge <= role.max_surge
        assert gate.new >= role.new or gate.new >= role.wanted
        assert gate.open or role.at_rest
        # What serves now goes only where the bound of serving allows it.
        if gate.open:
            lost = max(role.wanted - role.ready, min(role.max_unavailable, role.wanted), 1)
            assert gate.max_unavailable <= lost


def test_a_simulated_role_may_be_made_of_anything() -> None:
    simulator = Simulator({"mixed": Deployment(3, [Pod(0, 0, 0), Pod(1, 0, 0)])}, lambda _role, _number: 0)
    assert simulator.run()
    assert [pod.revision for pod in simulator.roles["mixed"].pods] == [1, 1, 1]
