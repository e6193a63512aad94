"""The highest of many rising straight lines, as they cross: a kinetic tournament, exact in integers.

A line belongs to a cost: at x its height is (x - start) / cost. Equal heights are told apart by a number, the
smaller being ahead. x never falls. Lines are the leaves of a binary tree; each inner node knows who is ahead
below it and until which x nothing below it can change (`_until`). A question at x replays only the nodes whose
x has come; a line that changes marks the nodes above it, so that they are replayed at the next question.

With k lines: O(log k) for a change and for each crossing met; a question that meets none is O(1). The crossings
of a tournament over lines are few: those that reach one node are met in order of slope, so a node of m leaves
changes hands at most m - 1 times until one of its lines changes. Memory: O(k), the tree shrinks with the lines.

Left out: lines that fall, and an x that goes back.
"""

from __future__ import annotations

from typing import Generic, TypeVar

V = TypeVar("V")

Line = tuple[int, int, int, V]
"""Where it starts, its cost (1 or more), its number, and what it stands for."""

_NEVER = 1 << 62
_MARKED = -1
_SMALLEST = 8


class Tournament(Generic[V]):
    """See the module. At most one line for each cost."""

    __slots__ = ("_capacity", "_free", "_leaves", "_until", "_winners")

    def __init__(self) -> None:
        self._leaves: dict[int, int] = {}
        self._build([])

    def set(self, line: Line[V]) -> None:
        """Enter a line, in the place of the one of the same cost."""
        cost = line[1]
        node = self._leaves.get(cost)
        if node is None:
            if not self._free:
                self._build([winner for winner in self._winners[self._capacity :] if winner is not None])
            node = self._leaves[cost] = self._free.pop()
        self._change(node, line)

    def remove(self, cost: int) -> None:
        """Take the line of that cost out."""
        node = self._leaves.pop(cost)
        self._free.append(node)
        self._change(node, None)
        if self._capacity > _SMALLEST and 4 * len(self._leaves) < self._capacity:
            self._build([winner for winner in self._winners[self._capacity :] if winner is not None])

    def lines(self) -> dict[int, V]:
        """What each line stands for, by cost. O(k)."""
        leaves = (self._winners[node] for node in self._leaves.values())
        return {line[1]: line[3] for line in leaves if line is not None}

    def ahead(self, x: int) -> V | None:
        """What the highest line at `x` stands for; None without lines."""
        if self._until[1] <= x:
            self._replay(1, x)
        winner = self._winners[1]
        return None if winner is None else winner[3]

    def _change(self, node: int, line: Line[V] | None) -> None:
        until = self._until
        self._winners[node] = line
        node >>= 1
        while node and until[node] != _MARKED:  # above a marked node all are marked
            until[node] = _MARKED
            node >>= 1

    def _replay(self, node: int, x: int) -> None:
        """Find anew who is ahead below `node` at `x`, and until when that holds."""
        winners, until = self._winners, self._until
        left = 2 * node
        right = left + 1
        if until[left] <= x:
            self._replay(left, x)
        if until[right] <= x:
            self._replay(right, x)
        first, second = winners[left], winners[right]
        holds = until[left] if until[left] < until[right] else until[right]
        if first is None or second is None:
            winners[node] = second if first is None else first
            until[node] = holds
            return
        start, cost, number, _ = first
        start_2, cost_2, number_2, _ = second
        lead = (x - start) * cost_2 - (x - start_2) * cost
        if lead < 0 or (lead == 0 and number_2 < number):
            first = second
            start, cost, number, start_2, cost_2, number_2 = start_2, cost_2, number_2, start, cost, number
        winners[node] = first
        if cost_2 < cost:  # the one behind rises faster: it comes ahead at the first x on or after the crossing
            crossing, rest = divmod(start_2 * cost - start * cost_2, cost - cost_2)
            if rest or number < number_2:  # at the very crossing the smaller number is ahead
                crossing += 1
            if crossing < holds:
                holds = crossing
        until[node] = holds

    def _build(self, lines: list[Line[V]]) -> None:
        """Make the tree anew, with room for twice the lines."""
        capacity = _SMALLEST
        while capacity < 2 * len(lines):
            capacity *= 2
        self._capacity = capacity
        self._winners: list[Line[V] | None] = [None] * capacity + [*lines] + [None] * (capacity - len(lines))
        self._until = [_MARKED] * capacity + [_NEVER] * capacity
        self._leaves = {line[1]: capacity + place for place, line in enumerate(lines)}
        self._free = list(range(2 * capacity - 1, capacity + len(lines) - 1, -1))

    def _check(self) -> None:
        lines = self.lines()
        assert lines.keys() == self._leaves.keys(), "a line is lost"
        taken = [*self._leaves.values(), *self._free]
        assert sorted(taken) == list(range(self._capacity, 2 * self._capacity)), "a leaf is lost"
        assert self._capacity <= max(_SMALLEST, 4 * len(lines)), "the tree is too large"
        for node in range(2, self._capacity):
            assert self._until[node] != _MARKED or self._until[node // 2] == _MARKED, "a mark does not reach the top"
