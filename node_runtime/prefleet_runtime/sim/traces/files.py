"""A trace in a file: opened anew for each iteration, read line by line, put in the order of arrival.

Order. Recorders write requests as they are handled, so neighbours may be swapped. The last `WINDOW` requests are held
back, and a new one is put at its place among them, after its equals; when the window is full, its first leaves. A
request older than one that has left is a malformed line: a trace that is not sorted by time is refused by the share of
bad lines, never silently replayed in another order. A sorted trace costs one comparison a request.

Text. UTF-8 with or without a byte order mark, any line ends, blank lines ignored, gzip recognised by its content.
A line longer than `LINE_BYTES` is malformed and skipped piece by piece, so that a file without line ends does not fill
the memory; a format that is a single JSON document may take `DOCUMENT_BYTES`.

Left out: standard input and pipes, since a replay reads a trace several times; line breaks in quoted CSV fields.
"""

from __future__ import annotations

import gzip
import zlib
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, TypeVar, cast

from .base import JUDGED_FROM, BadLines, Trace, TraceError, TraceRequest
from .values import Row

Thing = TypeVar("Thing")

WINDOW = 1024
LINE_BYTES = 1 << 20
DOCUMENT_BYTES = 256 << 20
HEAD_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_DAMAGED = (OSError, EOFError, zlib.error)


class Reader(Protocol):
    """One file format."""

    @property
    def format(self) -> str: ...

    @property
    def header(self) -> str:
        """What a file of this format begins with, for a user whose file is not recognised."""

    @property
    def block_tokens(self) -> int: ...

    def recognises(self, head: str) -> bool:
        """Whether a file that begins with this text (`HEAD_BYTES`, no byte order mark) is of this format."""

    def read(self, source: Source) -> Iterator[Row]:
        """The sound rows, in the order of the file; the others go to `source.reject`."""


class Source:
    """An open file: its lines or its document, its position, and where malformed lines are noted."""

    def __init__(self, path: Path, where: str) -> None:
        self.bad = BadLines(where)
        self.left_out = 0
        self._path = path
        self._where = where
        self._number = 0
        self._fraction = 0.0
        self._file: BinaryIO | None = None

    def __enter__(self) -> Source:
        try:
            self._file = self._path.open("rb")
            self._size = self._path.stat().st_size
            packed = self._file.read(len(_GZIP)) == _GZIP
            self._file.seek(0)
        except OSError as error:
            raise self.fail(f"{error.strerror}; name a file that can be read") from None
        self._bytes = cast(BinaryIO, gzip.GzipFile(fileobj=self._file)) if packed else self._file
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._fraction = self.fraction_read
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def fraction_read(self) -> float:
        if self._file is None:
            return self._fraction
        return min(1.0, self._file.tell() / self._size) if self._size else 1.0

    def head(self) -> str:
        """The beginning, as far as a reader needs to see it to recognise its format."""
        start = self._read(HEAD_BYTES).removeprefix(_BOM)
        if b"\0" in start:
            raise self.fail("is not text in UTF-8; give a CSV or JSON file, or one packed with gzip")
        return start.decode(errors="replace").lstrip()

    def header(self) -> str:
        """The first line that is not blank."""
        return next((line.decode(errors="replace").strip() for line in self._lines()), "")

    def rows(self, parse: Callable[[str], Row | None]) -> Iterator[Row]:
        """What `parse` makes of each further line: it raises ValueError for a malformed one; None leaves one out."""
        return self._sound(self._lines(), lambda line: parse(line.decode()))

    def items(self, items: Iterable[object], parse: Callable[[object], Row | None]) -> list[Row]:
        """The same for the requests of a JSON document, which are numbered from 1; sorted by time."""
        self.bad.unit = "request"
        return sorted(self._sound(self._numbered(items), parse), key=_time)

    def _numbered(self, items: Iterable[object]) -> Iterator[object]:
        for item in items:
            self._number += 1
            yield item

    def _sound(self, things: Iterator[Thing], parse: Callable[[Thing], Row | None]) -> Iterator[Row]:
        bad = self.bad
        for thing in things:
            bad.read += 1
            try:
                row = parse(thing)
            except UnicodeDecodeError:
                self.reject("is not UTF-8")
            except ValueError as error:
                self.reject(str(error))
            else:
                if row is None:
                    self.left_out += 1
                else:
                    yield row
            if bad.read == JUDGED_FROM:
                bad.judge()

    def reject(self, reason: str) -> None:
        """The line that was read last is malformed."""
        self.bad.add(self._number, reason)

    def document(self) -> str:
        """All that is left, for a format that is JSON as a whole."""
        content = self._read(DOCUMENT_BYTES + 1)
        if len(content) > DOCUMENT_BYTES:
            raise self.fail(
                f"is over {DOCUMENT_BYTES >> 20} MiB in a single document; "
                "write it as a CSV with the columns time_s,prompt_tokens,output_tokens"
            )
        return content.decode("utf-8-sig", errors="replace")

    def fail(self, problem: str) -> TraceError:
        """The error that says so of this file."""
        return TraceError(f"{self._where}: {problem}")

    def _lines(self) -> Iterator[bytes]:
        """Lines with something in them, stripped; `_number` is that of the last one."""
        read = self._bytes.readline
        try:
            while line := read(LINE_BYTES):
                self._number += 1
                if len(line) == LINE_BYTES and not line.endswith(b"\n"):
                    self._reject_long_line()
                    continue
                if self._number == 1:
                    line = line.removeprefix(_BOM)
                if line := line.strip():
                    yield line
        except _DAMAGED as error:
            raise self._damaged(error) from None

    def _reject_long_line(self) -> None:
        """Go to its end, without keeping it."""
        while (piece := self._bytes.readline(LINE_BYTES)) and not piece.endswith(b"\n"):
            pass
        self.bad.read += 1
        self.reject(f"is longer than {LINE_BYTES} bytes")

    def _read(self, size: int) -> bytes:
        try:
            return self._bytes.read(size)
        except _DAMAGED as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> TraceError:
        return self.fail(
            f"cannot be read after line {self._number} ({error}); it is cut off or damaged: fetch it again"
        )


class FileTrace(Trace):
    """A file of one format."""

    def __init__(self, path: Path, where: str, reader: Reader) -> None:
        super().__init__(_short_name(path), reader.format, reader.block_tokens, None)
        self._path = path
        self._where = where
        self._reader = reader
        self._source: Source | None = None

    @property
    def fraction_read(self) -> float:
        return self._source.fraction_read if self._source else 0.0

    @property
    def left_out(self) -> int:
        return self._source.left_out if self._source else 0

    def __iter__(self) -> Iterator[TraceRequest]:
        self._source = source = Source(self._path, self._where)
        self.bad = source.bad
        return self._requests(source)

    def _requests(self, source: Source) -> Iterator[TraceRequest]:
        count, start_s = 0, 0.0
        with source:
            for at_s, prompt, output, blocks in _by_arrival(self._reader.read(source), source):
                if not count:
                    start_s = at_s
                count += 1
                yield TraceRequest(at_s - start_s, prompt, output, blocks)
            source.bad.judge()
            if not count:
                raise source.fail("holds no request; give a trace with at least one")
        self.requests = count


def _by_arrival(rows: Iterator[Row], source: Source) -> Iterator[Row]:
    """The rows by time, equals in the order of the file, as far as a window of `WINDOW` rows can tell."""
    held: deque[Row] = deque()
    gone_s = 0.0
    for row in rows:
        if row[0] < gone_s:
            source.reject(f"comes over {WINDOW} requests after its time; sort the file by time")
            continue
        if not held or row[0] >= held[-1][0]:
            held.append(row)
        else:
            insort(held, row, key=_time)
        if len(held) > WINDOW:
            first = held.popleft()
            gone_s = first[0]
            yield first
    yield from held


def _time(row: Row) -> float:
    return row[0]


def _short_name(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name
