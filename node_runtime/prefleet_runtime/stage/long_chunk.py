"""What started longs get of a step while shorts contend, that is while shorts wait or are in prefill.

Ordering the queue cannot help a short that arrives while a long is being computed: what runs is scheduled first,
and a long takes whole steps. So while shorts contend, one long goes on, the first that started, and the others
are held; no further long starts unless none has started. That one gets

    yield   what decodes and shorts leave, at least the chunk
    cap     the chunk, also where the rest of the step is left unused

An engine limits chunks for all prefills of a step alike. Where a short is longer than what `yield` leaves to the
long, both would be cut and part of the step lost; the limit is then raised to the level at which the step is
full (`_level`), which gives the long as much as the longest short, no more. `cap` is not raised: choose a chunk of
at least the threshold, or shorts longer than it take several steps.

The chunk is meant for a whole step: where decodes, or the stage, leave less room for prefill, it shrinks in
proportion, so that shorts keep their part. With no short in sight longs take all.

Left out: which waiting long may go though others are held (the queue's share of aged-longs says so), and what
shorts find cached when they start (their lengths are those of the queue).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..contract import LongChunk
from .base import StepBudget, StepView

CHUNK_DIVISOR = 4
"""The default chunk is this part of the budget."""


def chunk_of(budget: int, tokens: int | None) -> int:
    """A long's least in a step of `budget` tokens; `tokens` is what the policy says."""
    return max(1, budget // CHUNK_DIVISOR) if tokens is None else tokens


def share(view: StepView, mode: LongChunk, chunk: int, room: int) -> StepBudget:
    """The limits of a step in which `room` tokens of prefill have place."""
    if mode is LongChunk.OFF:
        return StepBudget()
    longs = [prefill.tokens for prefill in view.prefills if prefill.long]
    shorts = [prefill.tokens for prefill in view.prefills if not prefill.long]
    contended = bool(shorts or view.waiting_shorts)
    if not contended or not (longs or view.waiting_longs):
        return StepBudget(in_order=True)
    least = min(room, -(-chunk * room // view.budget))
    limit = least if mode is LongChunk.CAP else _yielded(view, shorts, longs, least, room)
    return StepBudget(
        chunk_tokens=max(1, limit),
        running_longs=1,
        new_longs=0 if longs else 1,
        in_order=True,
        long_first=sum(shorts) > room - least,
    )


def _yielded(view: StepView, shorts: Sequence[int], longs: Sequence[int], least: int, room: int) -> int:
    demand = sum(shorts) + view.waiting_short_tokens
    left = max(least, room - demand)
    waiting = view.waiting_shorts
    average = max(1, -(-view.waiting_short_tokens // waiting)) if waiting else 0
    if max(max(shorts, default=0), average) <= left:
        return left
    # Waiting shorts are known by number and sum: as many as the step could take are set down at their average.
    likely = [average] * min(waiting, -(-room // average)) if waiting else []
    return max(left, _level([*shorts, *likely, longs[0] if longs else room], room))


def _level(demands: Sequence[int], room: int) -> int:
    """The least limit on each at which all together fill `room`; the largest of them if they cannot."""
    left, count = room, len(demands)
    for demand in sorted(demands):
        if demand * count >= left:
            return -(-left // count)
        left -= demand
        count -= 1
    return max(demands, default=room)
