"""What started longs get of a step while shorts contend, that is while shorts wait or are in prefill.

Ordering the queue cannot help a short that arrives while a long is being computed: what runs is scheduled first,
and a long takes whole steps. So while shorts contend, one long goes on, the first that started, and the others are
held; no further long starts. Only where the one ends within the step, the next follows, a started one before one
that waits: else what it leaves of the step were lost. Longs together get

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
from itertools import islice

from ..contract import LongChunk
from .base import Prefills, StepBudget, StepView

CHUNK_DIVISOR = 4
"""The default chunk is this part of the budget."""


def chunk_of(budget: int, tokens: int | None) -> int:
    """A long's least in a step of `budget` tokens; `tokens` is what the policy says."""
    return max(1, budget // CHUNK_DIVISOR) if tokens is None else tokens


def share(view: StepView, mode: LongChunk, chunk: int, room: int) -> StepBudget:
    """The limits of a step in which `room` tokens of prefill have place."""
    if mode is LongChunk.OFF:
        return StepBudget()
    shorts = [prefill.tokens for prefill in view.shorts]
    contended = bool(shorts or view.waiting_shorts)
    if not contended or not (len(view.longs) or view.waiting_longs):
        return StepBudget(in_order=True)
    least = min(room, -(-chunk * room // view.budget))
    hard = mode is LongChunk.CAP
    allowed = least if hard else max(least, room - sum(shorts) - view.waiting_short_tokens)
    going, limit, starting = _going(view.longs, allowed, hard)
    if not hard:
        longs = [prefill.tokens for prefill in islice(view.longs, going)]
        limit = max(limit, _uncut(view, shorts, longs, limit, room, ends=starting > 0))
    return StepBudget(
        chunk_tokens=max(1, limit),
        running_longs=going,
        new_longs=starting,
        in_order=True,
        long_first=sum(shorts) > room - least,
    )


def _going(longs: Prefills, allowed: int, hard: bool) -> tuple[int, int, int]:
    """How many started longs go on, the limit on each so that all get at most `allowed`, and how many more may start.

    One limit has to serve all: where an earlier one ends with more than it leaves to the next, that one is held. One
    that starts instead comes behind the shorts and takes nothing from them, but under a `hard` limit it may not.
    """
    left, widest = allowed, 0
    for number, (tokens, _) in enumerate(longs):
        if tokens >= left:
            fits = widest <= left
            return (number + 1, left, 0) if fits else (number, widest, 0 if hard else 1)
        left -= tokens
        widest = max(widest, tokens)
    return len(longs), max(widest, left), 0 if hard and widest > left else 1


def _uncut(view: StepView, shorts: Sequence[int], longs: Sequence[int], limit: int, room: int, ends: bool) -> int:
    """The limit at which shorts longer than `limit` lose no part of the step by it.

    Where the started longs end in this step (`ends`) none of them needs a limit, and so shorts get none.
    """
    waiting = view.waiting_shorts
    average = max(1, -(-view.waiting_short_tokens // waiting)) if waiting else 0
    longest = max(max(shorts, default=0), average)
    if ends or longest <= limit:
        return longest
    # Waiting shorts are known by number and sum: as many as the step could take are set down at their average.
    likely = [average] * min(waiting, -(-room // average)) if waiting else []
    return _level([*shorts, *likely, *longs], room)


def _level(demands: Sequence[int], room: int) -> int:
    """The least limit on each at which all together fill `room`; the largest of them if they cannot."""
    left, count = room, len(demands)
    for demand in sorted(demands):
        if demand * count >= left:
            return -(-left // count)
        left -= demand
        count -= 1
    return max(demands, default=room)
