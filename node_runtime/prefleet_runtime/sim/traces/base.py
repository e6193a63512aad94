"""What every trace is, whatever file it comes from: requests in the order of their arrival, and what was wrong.

Invariants of a `Trace`:

- Each iteration starts anew and yields the same requests, so that several policies can replay one trace in turn.
- `at_s` starts at 0 and never falls; lengths are within 1 to `MAX_TOKENS`.
- Memory does not grow with the trace, except where a format is a single JSON document.
- A malformed line is left out, counted and reported with its number; over `MAX_BAD_PERCENT` of them is an error, judged
  from `JUDGED_FROM` lines on and at the end. So a broken file is refused at its first hundred lines, not after an hour.

Left out: what a request says, whom it belongs to, and how long it took elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_TOKENS = 10_000_000
"""No context window is as long: beyond it a length is a mistake."""

MAX_TIME_S = 1e11
"""As seconds since 1970 the year 5138: beyond it a time has the wrong unit."""

MAX_BAD_PERCENT = 1
JUDGED_FROM = 100
REASONS_KEPT = 5
REASON_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request.

    `at_s`: seconds from the first request's arrival, never falling. `prompt_tokens` and `output_tokens`: at least 1
    (an output of 0 counts as 1). `blocks`: hashes of the prompt's leading full blocks of `Trace.block_tokens` tokens;
    two prompts share a prefix as far as these are equal. Empty where unknown.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


class TraceError(ValueError):
    """A trace that cannot be replayed: one sentence that names the file, the line if there is one, and the fix."""


@dataclass(slots=True)
class BadLines:
    """The malformed lines of one iteration: how many, of how many read, and the first few with their reasons.

    `unit` says what the numbers count: lines of a file, or requests of a JSON document.
    """

    where: str
    unit: str = "line"
    read: int = 0
    count: int = 0
    first: list[tuple[int, str]] = field(default_factory=list)

    def add(self, number: int, reason: str) -> None:
        """Note a malformed line.

        Raises:
            TraceError: there are too many of them.
        """
        self.count += 1
        if len(self.first) < REASONS_KEPT:
            self.first.append((number, reason[:REASON_CHARACTERS]))
        if self.read >= JUDGED_FROM:
            self.judge()

    def judge(self) -> None:
        """Raises TraceError if more than `MAX_BAD_PERCENT` of what was read is malformed."""
        if 100 * self.count > MAX_BAD_PERCENT * self.read:
            raise TraceError(
                f"{self.where}: {self.count} of the first {self.read} {self.unit}s are malformed, more than "
                f"{MAX_BAD_PERCENT}% ({self.reasons()}); correct or delete them"
            ) from None

    def reasons(self) -> str:
        """The first few, in one line."""
        told = "; ".join(f"{self.unit} {number}: {reason}" for number, reason in self.first)
        return told + ("; ..." if self.count > len(self.first) else "")


class Trace(ABC):
    """A source of requests that can be iterated again and again.

    `name` is short, for tables; `format` is what it was recognised as; `block_tokens` is 0 where prefixes are unknown.
    `bad`, `left_out` (requests that failed where they were recorded) and `fraction_read` (0 to 1, for a progress bar)
    tell of the latest iteration; `requests` is None until it is known.
    """

    def __init__(self, name: str, format: str, block_tokens: int, requests: int | None) -> None:
        self.name = name
        self.format = format
        self.block_tokens = block_tokens
        self.requests = requests
        self.bad = BadLines(name)

    @property
    @abstractmethod
    def fraction_read(self) -> float:
        """Share of the trace that the latest iteration is through, 0 to 1."""

    @property
    def left_out(self) -> int:
        return 0

    @abstractmethod
    def __iter__(self) -> Iterator[TraceRequest]:
        """The requests from the first on. One iteration at a time: a new one takes `bad` and the position over."""


def mean_gap_s(span_s: float, requests: int) -> float:
    """Seconds between arrivals on average; one second for a lone request, whose gap nobody knows."""
    return span_s / (requests - 1) if requests > 1 else 1.0
