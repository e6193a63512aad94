"""The inputs of a replay: recorded traces, each recognised by how it begins, and synthetic mixes.

`open_trace` is the way in; `transforms` makes a trace longer, faster or shorter. To add a format, write one file with a
`Reader` and one row in `READERS`. The order matters where headers overlap: the particular before the general.
"""

from __future__ import annotations

import stat
from pathlib import Path

from .azure import AzureCsv
from .base import BadLines, Trace, TraceError, TraceRequest
from .burstgpt import BurstGptCsv
from .files import FileTrace, Reader, Source
from .mixes import MIXES, MixTrace, is_mix, parse_mix
from .mooncake import MooncakeJsonl
from .plain_csv import PlainCsv
from .recent import Recent
from .refused import REFUSALS
from .vllm_bench import VllmBench

__all__ = ["READERS", "BadLines", "Trace", "TraceError", "TraceRequest", "open_trace"]

READERS: tuple[Reader, ...] = (AzureCsv(), BurstGptCsv(), MooncakeJsonl(), VllmBench(), Recent(), PlainCsv())


def open_trace(spec: str) -> Trace:
    """The trace in the file `spec`, or the mix that it names: `bursty`, `bimodal:seed=7,requests=10000`.

    A mix wins over a file of the same name, which `./bursty` names.

    Raises:
        TraceError: there is no such file or mix, or the file is of no known format. Malformed lines are found
            only by reading.
    """
    if is_mix(spec):
        return MixTrace(spec, parse_mix(spec))
    path = _regular_file(spec)
    with Source(path, spec) as source:
        head = source.head()
    return FileTrace(path, spec, _reader(spec, head))


def _regular_file(spec: str) -> Path:
    path = Path(spec)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        raise TraceError(f"{spec}: there is no such file, and no such mix; the mixes are {', '.join(MIXES)}") from None
    if stat.S_ISDIR(mode):
        raise TraceError(f"{spec}: is a directory; name one file in it")
    if not stat.S_ISREG(mode):
        raise TraceError(f"{spec}: is no regular file; save it as one first, since a replay reads it several times")
    return path


def _reader(spec: str, head: str) -> Reader:
    if not head:
        raise TraceError(f"{spec}: is empty; give a trace with at least one request")
    for reader in READERS:
        if reader.recognises(head):
            return reader
    for refuse in REFUSALS:
        if reason := refuse(head):
            raise TraceError(f"{spec}: {reason}")
    known = "; ".join(f"{reader.format}: {reader.header}" for reader in READERS)
    raise TraceError(f"{spec}: line 1 begins no known trace; give a file that begins like one of these ({known})")
