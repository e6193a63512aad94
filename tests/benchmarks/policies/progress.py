"""How far a half has come: a bar in a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.benchmarks.policies.rows import Run

PLAIN_EVERY_S = 15.0


def followed(console: Console, title: str, runs: Iterable[Run], total: int) -> Iterator[Run]:
    """The same runs, shown as they pass."""
    return _bar(console, title, runs, total) if console.is_terminal else _lines(console, title, runs, total)


def about(run: Run) -> str:
    return f"{run.node} {run.costs} {run.load} {run.policy}"


def _bar(console: Console, title: str, runs: Iterable[Run], total: int) -> Iterator[Run]:
    columns = (
        TextColumn("{task.fields[title]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=total, title=title)
        for run in runs:
            progress.update(task, advance=1, description=about(run))
            yield run


def _lines(console: Console, title: str, runs: Iterable[Run], total: int) -> Iterator[Run]:
    began_s = shown_s = time.monotonic()
    for done, run in enumerate(runs, start=1):
        now_s = time.monotonic()
        if now_s - shown_s >= PLAIN_EVERY_S or done == total:
            shown_s = now_s
            line = f"{title}: {done} of {total} runs, {now_s - began_s:.0f} s; {about(run)}"
            console.print(line, highlight=False, soft_wrap=True)
        yield run
