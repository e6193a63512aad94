"""What the benchmarks that run in one process say to whoever watches them."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tests.benchmarks.bars import Bar


def tell(progress: str) -> None:
    """One line that is written over, on a terminal only."""
    if sys.stderr.isatty():
        print(progress, end="\033[K\r", file=sys.stderr, flush=True)


def show_bars(verdicts: Iterable[Bar]) -> None:
    print("\nthe bars")
    for bar in verdicts:
        print(f"  {'met   ' if bar.met else 'MISSED'}  {bar.claim}: {bar.figure}")
