"""One lane, against a sorted list: insertion and removal anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefleet_runtime.queueing import Lane, RequestFacts
from prefleet_runtime.queueing.fifo import Entry, LaneFifo

OPERATIONS = st.lists(st.tuples(st.sampled_from(["push", "push", "drop", "take", "back"]), st.integers(0, 30)))


def entry_of(lane: LaneFifo[int], seq: int) -> Entry[int]:
    return Entry(seq, RequestFacts(str(seq), 0.0, 1), seq, lane, 1, 1, 0, False)


def push(lane: LaneFifo[int], entry: Entry[int]) -> Entry[int]:
    entry.stored = True
    lane.push(entry)
    return entry


def drop(lane: LaneFifo[int], entry: Entry[int]) -> Entry[int]:
    entry.stored = False
    lane.drop(entry)
    return entry


@settings(deadline=None, derandomize=True, database=None, max_examples=300)
@given(OPERATIONS)
def test_a_lane_agrees_with_a_sorted_list(operations: list[tuple[str, int]]) -> None:
    lane: LaneFifo[int] = LaneFifo(Lane.ALL)
    stored: dict[int, Entry[int]] = {}
    taken: list[Entry[int]] = []
    for number, (operation, pick) in enumerate(operations):
        if operation == "push":
            stored[number] = push(lane, entry_of(lane, number))
        elif operation == "drop" and stored:
            taken.append(drop(lane, stored.pop(sorted(stored)[pick % len(stored)])))
        elif operation == "take" and stored:
            taken.append(drop(lane, stored.pop(min(stored))))
        elif operation == "back" and taken:
            entry = push(lane, taken.pop(pick % len(taken)).renewed())
            stored[entry.seq] = entry
        lane._check()
        assert [entry.seq for entry in lane] == sorted(stored)
        assert (lane.first.seq if lane.first else None) == min(stored, default=None)
        assert {entry.seq for entry in lane.some(3)} <= stored.keys()


@pytest.mark.parametrize("back", [False, True], ids=["arrived", "came back"])
def test_what_is_taken_from_the_middle_does_not_pile_up(back: bool) -> None:
    """A head that never leaves must not keep a trace of everything that was aborted behind it."""
    lane: LaneFifo[int] = LaneFifo(Lane.ALL)
    push(lane, entry_of(lane, 0))
    if back:
        push(lane, entry_of(lane, 10_000))
    for seq in range(1, 2000):
        drop(lane, push(lane, entry_of(lane, seq)))
    lane._check()
    assert len(lane._tail) + len(lane._early) < 40
    assert [entry.seq for entry in lane] == ([0, 10_000] if back else [0])
