"""One lane, against a sorted list: insertion and removal anywhere, heads stepping aside."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from prefleet_runtime.queueing import Lane, RequestFacts
from prefleet_runtime.queueing.fifo import Entry, Fifo

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["push", "push", "drop", "take", "put back", "hide", "unhide"]), st.integers(0, 30)),
    max_size=80,
)


@settings(deadline=None, derandomize=True, database=None)
@given(OPERATIONS)
def test_a_lane_agrees_with_a_sorted_list(operations: list[tuple[str, int]]) -> None:
    lane: Fifo[int] = Fifo(Lane.ALL)
    stored: dict[int, Entry[int]] = {}
    hidden: set[int] = set()
    taken: list[Entry[int]] = []
    for number, (operation, pick) in enumerate(operations):
        visible = sorted(stored.keys() - hidden)
        if operation == "push":
            entry = Entry(number, RequestFacts(str(number), 0.0, pick), number, lane, pick, pick, False)
            stored[number] = entry
            lane.push(entry)
        elif operation == "drop" and stored:
            seq = sorted(stored)[pick % len(stored)]
            lane.drop(stored.pop(seq))
            hidden.discard(seq)
        elif operation == "take" and visible:
            lane.drop(entry := stored.pop(visible[0]))
            taken.append(entry)
        elif operation == "put back" and taken:
            entry = taken.pop(pick % len(taken))
            stored[entry.seq] = entry
            lane.push(entry)
        elif operation == "hide" and lane.first is not None:
            hidden.add(lane.first.seq)
            lane.hide(lane.first)
        elif operation == "unhide":
            lane.unhide()
            hidden.clear()
        lane._check()
        assert [entry.seq for entry in lane] == sorted(stored.keys() - hidden)
        assert [entry.seq for entry in lane.hidden()] == sorted(hidden)
        assert len(lane) == len(stored)
        oldest = lane.oldest()
        assert (oldest.seq if oldest else None) == min(stored, default=None)


def test_numbers_that_are_forgotten_do_not_pile_up() -> None:
    """A head that never leaves must not keep a trace of everything that came back behind it and was aborted."""
    lane: Fifo[int] = Fifo(Lane.ALL)
    entries = [Entry(seq, RequestFacts(str(seq), 0.0, 1), seq, lane, 1, 1, False) for seq in range(1000)]
    lane.push(entries[999])
    for entry in entries[:999]:
        lane.push(entry)
    for entry in entries[1:999]:
        lane.drop(entry)
    lane._check()
    assert [entry.seq for entry in lane] == [0, 999]
