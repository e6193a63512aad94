"""What the CSV formats have in common: columns found by their names in the header, wherever they stand."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from .files import Source
from .values import Row, checked_row, tokens_of_text

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Columns:
    """How many there are, and where those stand that matter."""

    width: int
    time: int
    prompt: int
    output: int


def first_line(head: str) -> str:
    return head.partition("\n")[0].strip()


def fields_of(line: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line]))
    except (csv.Error, StopIteration):
        raise ValueError("is not CSV") from None


def normal_names(header: str) -> list[str]:
    """The header's names, in lower case and with underscores: `Request tokens` is `request_tokens`."""
    try:
        return [name.strip().lower().replace(" ", "_").replace("-", "_") for name in fields_of(header)]
    except ValueError:
        return []


def position(names: list[str], accepted: Iterable[str]) -> int | None:
    """The column with the first of these names that there is."""
    return next((names.index(name) for name in accepted if name in names), None)


def named_columns(header: str, time: str, prompt: str, output: str) -> Columns | None:
    names = normal_names(header)
    if not {time, prompt, output} <= set(names):
        return None
    return Columns(len(names), names.index(time), names.index(prompt), names.index(output))


def columns_of(source: Source, find: Callable[[str], Found | None]) -> Found:
    """What `find` finds in the header; something, unless the file is another than the one that was recognised."""
    found = find(source.header())
    if found is None:
        raise source.fail("line 1 is not the header that it was when the trace was opened; open it again")
    return found


def row_parser(columns: Columns, seconds_of: Callable[[str], float]) -> Callable[[str], Row]:
    """Makes a row of a line. One that is too wide is malformed too: `1,020` without quotes is two fields."""
    width, time, prompt, output = columns.width, columns.time, columns.prompt, columns.output

    def parse(line: str) -> Row:
        fields = fields_of(line)
        if len(fields) != width:
            raise ValueError(f"has {len(fields)} fields where the header has {width}")
        return checked_row(seconds_of(fields[time]), tokens_of_text(fields[prompt]), tokens_of_text(fields[output]))

    return parse
