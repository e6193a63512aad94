"""What a runtime answers under `/recent`: the last requests that ended (`prefleet_runtime.recent`).

One JSON object with a list `requests`, in the order of the ends; it is sorted by `arrival_s` here. Aborted requests
stay: they stood in the queue like the others.

Left out: `cached_tokens`, since which prompts share a prefix is not recorded: a replay computes every prompt in
full. And `waits_s`, which a replay is there to find out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from .files import Source
from .values import Row, checked_row, seconds_of_json, tokens_of_json

FETCH = "save it again with `curl http://POD:PORT/recent`"


class Recent:
    format = "runtime /recent"
    header = '{"now_s": ..., "limit": ..., "ended_total": ..., "requests": [...]} (a runtime\'s /recent)'
    block_tokens = 0

    def recognises(self, head: str) -> bool:
        return head.startswith("{") and '"ended_total"' in head and '"requests"' in head

    def read(self, source: Source) -> Iterator[Row]:
        yield from source.items(_requests(source), _parse)


def _requests(source: Source) -> list[object]:
    try:
        answer = json.loads(source.document())
    except (ValueError, RecursionError):
        raise source.fail(f"is not whole JSON; {FETCH}") from None
    requests = answer.get("requests") if isinstance(answer, dict) else None
    if not isinstance(requests, list):
        raise source.fail(f"has no list of requests; {FETCH}")
    return requests


def _parse(item: object) -> Row:
    if not isinstance(item, dict):
        raise ValueError("is not a JSON object")
    at_s = seconds_of_json(item.get("arrival_s"))
    return checked_row(at_s, tokens_of_json(item.get("prompt_tokens")), tokens_of_json(item.get("output_tokens")))
