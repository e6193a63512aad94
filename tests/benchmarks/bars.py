"""What the queue policies promise at 100,000 waiting requests, and whether the figures keep it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prefleet_runtime.contract import PolicyName

Figures = Mapping[tuple[str, str, int], tuple[float, float]]

DEEP, SHALLOW = 100_000, 1_000


@dataclass(frozen=True)
class Bar:
    claim: str
    met: bool
    figure: str


def bars(figures: Figures) -> list[Bar]:
    """All of them; `figures` are nanoseconds, median and 99th percentile, by policy, operation and depth."""
    return [*_steps(figures), *_ratios(figures), *_removals(figures), *_growth(figures)]


def _steps(figures: Figures) -> Iterator[Bar]:
    fcfs = figures["vllm_fcfs", "step", DEEP][0]
    for name, limit in ((PolicyName.SHORT_REQUEST_FIRST, 10), (PolicyName.PROMOTE_SHORTEST, 20)):
        times = figures[name, "step", DEEP][0] / fcfs
        yield Bar(f"a step of {name} within {limit}x of vLLM's FCFS deque", times <= limit, f"{times:.1f}x")


def _ratios(figures: Figures) -> Iterator[Bar]:
    median, p99 = figures[PolicyName.HRRN, "step", DEEP]
    cheaper = figures["hrrn_sort", "step", DEEP][0] / median
    yield Bar("a step of hrrn under 20 us in the median", median < 20_000, f"{median / 1000:.1f} us")
    yield Bar("a step of hrrn under 1 ms at P99", p99 < 1_000_000, f"{p99 / 1000:.1f} us")
    yield Bar("a step of hrrn at least 1,000 times cheaper than the sort", cheaper >= 1000, f"{cheaper:,.0f} times")


def _removals(figures: Figures) -> Iterator[Bar]:
    scan = figures["vllm_fcfs", "remove", DEEP][0]
    for name in PolicyName:
        cheaper = scan / figures[name, "remove", DEEP][0]
        claim = f"a removal from {name} at least 100 times cheaper than from vLLM's deque"
        yield Bar(claim, cheaper >= 100, f"{cheaper:,.0f} times")


def _growth(figures: Figures) -> Iterator[Bar]:
    for name in PolicyName:
        for operation in ("add", "step", "commit", "remove"):
            times = figures[name, operation, DEEP][0] / figures[name, operation, SHALLOW][0]
            claim = f"{operation} of {name} grows at most 3x from {SHALLOW:,} to {DEEP:,}"
            yield Bar(claim, times <= 3, f"{times:.1f}x")
