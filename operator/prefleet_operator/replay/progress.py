"""A live bar for each replay in a terminal; elsewhere nothing moves."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def replay_bars(console: Console) -> Progress:
    """To be entered; gone again when it is left."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@dataclass(frozen=True)
class Advance:
    """Moves a bar to the number of requests answered."""

    bar: Progress
    task: TaskID

    def __call__(self, answered: int) -> None:
        self.bar.update(self.task, completed=answered)
