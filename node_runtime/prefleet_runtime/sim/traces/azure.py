"""Azure LLM inference traces (Azure/AzurePublicDataset, 2023 and 2024).

CSV with TIMESTAMP (a date with up to seven decimals, UTC, with or without its zone), ContextTokens and
GeneratedTokens. Sorted by time. Nothing is known of shared prefixes.
"""

from __future__ import annotations

from collections.abc import Iterator

from .csv_lines import Columns, columns_of, first_line, named_columns, row_parser
from .files import Source
from .values import Row, seconds_of_date


class AzureCsv:
    format = "Azure LLM inference CSV"
    header = "TIMESTAMP,ContextTokens,GeneratedTokens"
    block_tokens = 0

    def recognises(self, head: str) -> bool:
        return _columns(first_line(head)) is not None

    def read(self, source: Source) -> Iterator[Row]:
        columns = columns_of(source, _columns)
        yield from source.rows(row_parser(columns, seconds_of_date))


def _columns(header: str) -> Columns | None:
    return named_columns(header, "timestamp", "contexttokens", "generatedtokens")
