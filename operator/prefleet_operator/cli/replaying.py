"""How `prefleet replay` and `prefleet advise` speak and end: what is common to them beside their options.

What cannot be done is said in one sentence, Ctrl-C in one line, and figures go to standard output alone or to a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends the command in one line."""
    from prefleet_operator.cli.documents import interrupted

    try:
        yield
    except KeyboardInterrupt:
        interrupted()


@contextmanager
def faults_told() -> Iterator[None]:
    """What is wrong with the trace, or with what was asked for, ends the command in one sentence."""
    from prefleet_runtime.sim.calibrate import CalibrationError
    from prefleet_runtime.sim.traces import TraceError

    from prefleet_operator.cli.documents import fail
    from prefleet_operator.replay.setting import SettingError

    try:
        yield
    except CalibrationError as error:
        fail(f"--engine: {error}")
    except (TraceError, SettingError, OSError) as error:
        fail(str(error))


def check_json(json_file: Path | None) -> None:
    """End the command now if the figures could not be written at the end of it."""
    from prefleet_operator.cli.documents import check_place

    if not is_only_figures(json_file):
        check_place("--json", json_file)


def is_only_figures(json_file: Path | None) -> bool:
    """Whether standard output is for the figures alone, so that all else goes to standard error."""
    return str(json_file) == "-"


def settled_engine(engine: str, console: Console) -> str:
    """`--engine` as a preset or as JSON, what it was made of told to `console`. Raises CalibrationError."""
    from prefleet_operator.cli.engine_cost import engine_of

    return engine_of(engine, partial(console.print, soft_wrap=True, highlight=False, markup=False))


def as_text(figures: dict[str, Any]) -> str:
    """Figures as they are written."""
    return json.dumps(figures, indent=1)


def write_told(path: Path, text: str, console: Console) -> None:
    """Write a file, and say so. Ends the command on a fault."""
    from prefleet_operator.cli.documents import write

    write(path, text)
    console.print(f"written to {path}", soft_wrap=True, highlight=False)


def put_figures(json_file: Path | None, text: str, console: Console) -> None:
    """Figures to where `--json` says, if anywhere."""
    if is_only_figures(json_file):
        typer.echo(text)
    elif json_file is not None:
        write_told(json_file, text + "\n", console)
