"""Whole rollouts of a fleet's roles together, step by step, rolled by the controllers of
tests/support/rollout_simulator.py."""

from __future__ import annotations

import pytest

from tests.support.rollout_bounds import check_bounds
from tests.support.rollout_simulator import (
    MIN_READY,
    NEVER,
    PROVEN_AFTER,
    Deployment,
    Groups,
    Pod,
    Simulator,
    Workload,
    as_table,
    fleet,
)

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


def test_a_simulated_role_may_be_made_of_anything() -> None:
    simulator = Simulator({"mixed": Deployment(3, [Pod(0, 0, 0), Pod(1, 0, 0)])}, lambda _role, _number: 0)
    assert simulator.run()
    assert [pod.revision for pod in simulator.roles["mixed"].pods] == [1, 1, 1]
