"""Mooncake traces (kvcache-ai/Mooncake, FAST25-release/traces): one JSON object a line.

`timestamp` in milliseconds, `input_length`, `output_length`, and `hash_ids`, one for each block of 512 prompt tokens,
the last block being partial as a rule: equal ids mean equal blocks after equal blocks. A partial block can be shared by
no cache, so only the ids of full blocks are kept. A line without `hash_ids` is a prompt that shares nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from .csv_lines import first_line
from .files import Source
from .values import Row, checked_row, seconds_of_json, tokens_of_json

BLOCK_TOKENS = 512


class MooncakeJsonl:
    format = "Mooncake JSONL"
    header = '{"timestamp": ..., "input_length": ..., "output_length": ..., "hash_ids": [...]}'
    block_tokens = BLOCK_TOKENS

    def recognises(self, head: str) -> bool:
        line = first_line(head)
        return line.startswith("{") and '"input_length"' in line and '"output_length"' in line

    def read(self, source: Source) -> Iterator[Row]:
        yield from source.rows(_parse)


def _parse(line: str) -> Row:
    item = _object(line)
    prompt = tokens_of_json(item.get("input_length"))
    at_s = seconds_of_json(item.get("timestamp"), per_second=1000)
    blocks = _full_blocks(item.get("hash_ids", []), prompt)
    return checked_row(at_s, prompt, tokens_of_json(item.get("output_length")), blocks)


def _object(line: str) -> dict[str, object]:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if not isinstance(item, dict):
        raise ValueError("is not a JSON object")
    return item


def _full_blocks(ids: object, prompt: int) -> tuple[int, ...]:
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
        raise ValueError("its hash_ids are not a list of integers")
    return tuple(ids[: max(0, prompt) // BLOCK_TOKENS])
