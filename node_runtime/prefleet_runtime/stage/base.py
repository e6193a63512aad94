"""The words of the step budget: what an engine tells of the step that begins, and what is decided for it.

An engine's adapter describes the step in a `StepView` and applies the `StepBudget` it is answered, through
whatever its engine lets it set. Lengths are tokens. A *started prefill* is a request that the engine has taken
from the queue and whose prompt is not computed yet; a *decode* is one that is.

Invariants (tested for every rule): no more prefill is allowed than the step has room for; decodes are never
limited; of the started longs one goes on with at least one token, unless the step is one of decode alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Prefill(NamedTuple):
    """A started prefill: `tokens` left to compute, after `context` that are computed."""

    tokens: int
    context: int = 0


class Prefills(Protocol):
    """Started prefills, to be counted, and looked at from the first on: there may be hundreds, and few matter."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Prefill]: ...


@dataclass(frozen=True, slots=True)
class StepView:
    """What a step finds.

    `budget`: tokens that the engine can compute in one step. `decodes` requests decode, with `decode_tokens` in
    this step (speculative ones included) over `decode_context` computed ones. `shorts` and `longs`: the started
    prefills by lane, each in the order in which they started. `waiting_shorts` and `waiting_longs` count requests that
    wait for nothing but their turn *and could be admitted now* (seats, KV room); `waiting_short_tokens` are the lengths
    of the former. A policy without a threshold has no lanes: all that started or waits is counted as shorts.
    """

    budget: int
    decodes: int = 0
    decode_tokens: int = 0
    decode_context: int = 0
    shorts: Prefills = ()
    longs: Prefills = ()
    waiting_shorts: int = 0
    waiting_short_tokens: int = 0
    waiting_longs: int = 0

    @property
    def room(self) -> int:
        """Tokens left for prefill once every decode has its own."""
        return max(0, self.budget - self.decode_tokens)

    @property
    def prefill_is_pending(self) -> bool:
        """Whether the step could compute any prefill."""
        return bool(len(self.shorts) or len(self.longs) or self.waiting_shorts or self.waiting_longs)


@dataclass(frozen=True, slots=True)
class StepBudget:
    """How a step is to be shared. None lifts a limit.

    `prefill_tokens`: all prefill of the step together (0: a step of decode alone); `chunk_tokens`: any one prefill;
    `running_longs`: how many of the started longs go on, the first ones; the others are held for this step;
    `new_longs`: how many longs may start, aged ones that the queue allows beside them.
    `in_order`: decodes go first, then short prefills, then longs; with `long_first` longs before shorts, where what
    is left behind the shorts would be less than a long's least.
    """

    prefill_tokens: int | None = None
    chunk_tokens: int | None = None
    running_longs: int | None = None
    new_longs: int | None = None
    in_order: bool = False
    long_first: bool = False

    @property
    def decode_only(self) -> bool:
        return self.prefill_tokens == 0

    def rank(self, prefill: bool, long: bool) -> int:
        """The place of a running request in the step; equal ones keep the order in which they started."""
        if not prefill:
            return 0
        return 1 if long is self.long_first else 2


UNLIMITED = StepBudget()
"""The engine's own way."""


@dataclass(slots=True)
class StageCounters:
    """Monotonic counts of what was decided.

    `held`: started longs held back, once for each step; `decode_only` steps while prefill was pending;
    `starved`: times that a run of those was ended by its bound and not by its formula; `stall_limited` steps whose
    prefill was cut to keep a stall short; `stall_unsure`: those of them decided without a cost model to trust.
    """

    held: int = 0
    decode_only: int = 0
    starved: int = 0
    stall_limited: int = 0
    stall_unsure: int = 0
