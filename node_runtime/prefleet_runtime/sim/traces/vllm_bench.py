"""What `vllm bench serve --save-result --save-detailed` saves, and `--append-result`: one JSON object a run.

`input_lens` and `output_lens` hold the lengths, `start_times` the seconds at which the client sent each request, on a
clock of its own process; `errors` is not empty for a request that failed, which is left out. Runs appended to
one file are replayed one after the other, each a mean gap after the end of the former, since their clocks
differ. A result without `start_times` (older vLLM, SGLang) or without lengths (no `--save-detailed`) is refused:
arrivals cannot be made up from it.

Left out: the latencies that were measured. The file is read as a whole, for its lists stand one behind the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import cast

from .base import mean_gap_s
from .files import Source
from .values import Row, checked_row, seconds_of_json, tokens_of_json

RERUN = "run `vllm bench serve` again with --save-result --save-detailed"
LISTS = ("start_times", "input_lens", "output_lens")


class VllmBench:
    format = "vLLM bench JSON"
    header = '{"date": ..., "input_lens": [...], "output_lens": [...], "start_times": [...]} (vllm bench serve)'
    block_tokens = 0

    def recognises(self, head: str) -> bool:
        return head.startswith("{") and ('"input_lens"' in head or '"request_throughput"' in head)

    def read(self, source: Source) -> Iterator[Row]:
        clock_s = 0.0
        for run in _runs(source):
            rows = source.items(_requests(source, run), _parse)
            for at_s, prompt, output, blocks in rows:
                yield clock_s + at_s - rows[0][0], prompt, output, blocks
            if rows:
                span_s = rows[-1][0] - rows[0][0]
                clock_s += span_s + mean_gap_s(span_s, len(rows))


def _runs(source: Source) -> Iterator[object]:
    """The JSON values of the file, with nothing but white space between them."""
    text = source.document().strip()
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        try:
            run, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            line = text.count("\n", 0, place) + 1
            raise source.fail(f"the result that begins in line {line} is not whole JSON; {RERUN}") from None
        yield run
        place = end
        while place < len(text) and text[place].isspace():
            place += 1


def _requests(source: Source, run: object) -> Iterator[object]:
    """(start, prompt, output, error) of each request of a run."""
    if not isinstance(run, dict):
        raise source.fail(f"holds JSON that is no benchmark result; {RERUN}")
    missing = [name for name in LISTS if not isinstance(run.get(name), list)]
    if missing == ["start_times"]:
        raise source.fail(
            f"has no start_times, so no arrival times; {RERUN} (vLLM 0.28 saves them), "
            "or write a CSV with the columns time_s,prompt_tokens,output_tokens"
        )
    if missing:
        raise source.fail(f"has no {' and no '.join(missing)}; {RERUN}")
    columns = [run[name] for name in LISTS]
    if len(set(map(len, columns))) != 1:
        raise source.fail(f"has {', '.join(LISTS)} of different lengths; {RERUN}")
    errors = run.get("errors")
    if not isinstance(errors, list) or len(errors) != len(columns[0]):
        errors = [""] * len(columns[0])
    return zip(*columns, errors, strict=True)


def _parse(item: object) -> Row | None:
    start, prompt, output, error = cast("tuple[object, object, object, object]", item)
    if error:
        return None
    return checked_row(seconds_of_json(start), tokens_of_json(prompt), tokens_of_json(output))
