"""Rollouts of fleets at random, rolled by the controllers of tests/support/rollout_simulator.py: they stay within
their bounds and come to their end, whatever happens."""

from __future__ import annotations

import random
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.rollout_bounds import check_bounds
from tests.support.rollout_simulator import MIN_READY, NEVER, Deployment, Groups, Simulator, as_table, fleet, surging

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
