"""Files that are known and yet no trace: each with the reason why, and what to do about it."""

from __future__ import annotations

from .csv_lines import first_line
from .plain_csv import lengths_in


def no_times(head: str) -> str | None:
    if not lengths_in(first_line(head)):
        return None
    return "line 1 names lengths but no arrival times; add a column time_s with each request's seconds"


def no_lengths(head: str) -> str | None:
    line = first_line(head)
    if not (line.startswith(("{", "[")) and ('"prompt"' in line or '"conversations"' in head)):
        return None
    return (
        "line 1 holds a prompt's text, whose tokens only the model's tokenizer can count, and no arrival time; "
        "benchmark it with `vllm bench serve --save-result --save-detailed` and give that result"
    )


REFUSALS = (no_times, no_lengths)
