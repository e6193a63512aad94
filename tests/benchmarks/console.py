"""What benchmarks say to whoever watches them, and how they write their figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.benchmarks.bars import Bar


def tell(progress: str) -> None:
    """One line that is written over, on a terminal only."""
    if sys.stderr.isatty():
        print(progress, end="\033[K\r", file=sys.stderr, flush=True)


def show_bars(verdicts: Iterable[Bar]) -> None:
    print("\nthe bars")
    for bar in verdicts:
        print(f"  {'met   ' if bar.met else 'MISSED'}  {bar.claim}: {bar.figure}")


def write(path: Path, document: Any) -> None:
    """The figures as JSON; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
