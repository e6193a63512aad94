"""BurstGPT traces (HPMLL/BurstGPT): files 1 and 2, and file 3 with the columns Session ID and Elapsed time.

CSV with Timestamp (seconds from midnight of the first day), Request tokens and Response tokens. Its authors say that
requests whose Response tokens are 0 failed (7% of file 3). They are left out and counted, as in the files
`BurstGPT_without_fails_*`: how much they would have generated, and so what they would have cost, is unknown.

Left out: models and sessions; a session's turns are not known to share a prefix.
"""

from __future__ import annotations

from collections.abc import Iterator

from .csv_lines import Columns, columns_of, fields_of, first_line, named_columns, row_parser
from .files import Source
from .values import Row, seconds_of_text


class BurstGptCsv:
    format = "BurstGPT CSV"
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    block_tokens = 0

    def recognises(self, head: str) -> bool:
        return _columns(first_line(head)) is not None

    def read(self, source: Source) -> Iterator[Row]:
        columns = columns_of(source, _columns)
        parse = row_parser(columns, seconds_of_text)

        def parse_answered(line: str) -> Row | None:
            return None if _failed(line, columns) else parse(line)

        yield from source.rows(parse_answered)


def _columns(header: str) -> Columns | None:
    return named_columns(header, "timestamp", "request_tokens", "response_tokens")


def _failed(line: str, columns: Columns) -> bool:
    fields = fields_of(line)
    return len(fields) == columns.width and fields[columns.output].strip() in ("0", "0.0")
