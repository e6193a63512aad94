"""The gates of a rollout of a fleet's roles together: single ones as a table, and what holds in any state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefleet_operator.core.rollout import Gate, RolePods, next_gates, resolve_limits, tell_rollout


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
