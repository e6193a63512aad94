"""A CSV of one's own: a time, a prompt length and an output length under names that say so.

Names are compared without case, and with spaces and dashes as underscores; other columns are ignored. Of two that fit,
the one whose name comes first in the lists below is taken: a column `prompt` beside `prompt_tokens` is text. A time is
a number, in seconds unless its name ends in `_ms`, or an ISO 8601 date.

Left out: other separators than commas. A file with lengths and no times is refused (`refused.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from .csv_lines import Columns, columns_of, first_line, normal_names, position, row_parser
from .files import Source
from .values import Row, seconds_of_date

TIME_NAMES = ("time", "timestamp", "at", "ts", "arrival", "arrival_time", "arrived_at", "start_time")
TIME_UNITS = {"": 1.0, "_s": 1.0, "_seconds": 1.0, "_ms": 1000.0}
_ENDS = ("_tokens", "_len", "_length")
_PROMPTS = ("prompt", "input", "context", "request", "prefill", "num_prompt", "num_input", "num_prefill")
_OUTPUTS = ("output", "generated", "completion", "response", "decode", "num_output", "num_decode")
PROMPT_NAMES = (*(stem + end for end in _ENDS for stem in _PROMPTS), "prompt", "input")
OUTPUT_NAMES = (*(stem + end for end in _ENDS for stem in _OUTPUTS), "output")


class PlainCsv:
    format = "plain CSV"
    header = "time_s,prompt_tokens,output_tokens"
    block_tokens = 0

    def recognises(self, head: str) -> bool:
        return _columns(first_line(head)) is not None

    def read(self, source: Source) -> Iterator[Row]:
        columns, seconds_of = columns_of(source, _columns)
        yield from source.rows(row_parser(columns, seconds_of))


def lengths_in(header: str) -> bool:
    """Whether a CSV with this header has the lengths, times or no times."""
    names = normal_names(header)
    return position(names, PROMPT_NAMES) is not None and position(names, OUTPUT_NAMES) is not None


def _columns(header: str) -> tuple[Columns, Callable[[str], float]] | None:
    names = normal_names(header)
    units = {name + unit: per_second for name in TIME_NAMES for unit, per_second in TIME_UNITS.items()}
    time, prompt, output = (position(names, accepted) for accepted in (units, PROMPT_NAMES, OUTPUT_NAMES))
    if time is None or prompt is None or output is None:
        return None
    return Columns(len(names), time, prompt, output), partial(_seconds, per_second=units[names[time]])


def _seconds(text: str, per_second: float) -> float:
    try:
        return float(text) / per_second
    except ValueError:
        return seconds_of_date(text.strip())
