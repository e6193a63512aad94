"""Files as they come: odd encodings, packed, damaged, unsorted, too long, or no files at all; and the public traces."""

from __future__ import annotations

import gzip
import os
import random
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefleet_runtime.sim.traces import TraceError, TraceRequest, open_trace
from prefleet_runtime.sim.traces.files import LINE_BYTES, WINDOW

from tests.support.lengths import TRACES, exact_quantile

HEADER = "time_s,prompt_tokens,output_tokens\n"
TWO = HEADER + "1,10,5\n3,20,6\n"
BOTH = [TraceRequest(0, 10, 5), TraceRequest(2, 20, 6)]


def written(folder: Path, text: str | bytes, name: str = "trace.csv") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def rows(*times_s: float) -> str:
    return HEADER + "".join(f"{at_s},{number},1\n" for number, at_s in enumerate(times_s, 1))


@pytest.mark.parametrize(
    "content",
    [
        TWO.encode("utf-8-sig"),
        TWO.replace("\n", "\r\n").encode(),
        TWO.rstrip("\n").encode(),
        ("\n \n" + TWO.replace("\n", "\n\n")).encode(),
        gzip.compress(TWO.encode()),
        gzip.compress(TWO.encode("utf-8-sig")[:20]) + gzip.compress(TWO.encode("utf-8-sig")[20:]),
    ],
    ids=["byte order mark", "Windows line ends", "no last line end", "blank lines", "gzip", "gzip in two members"],
)
def test_the_same_trace_in_another_dress(content: bytes, tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, content))
    assert list(trace) == BOTH
    assert trace.bad.count == 0


def test_the_number_of_a_malformed_line_counts_blank_lines_and_the_header(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, HEADER + "1,10,5\n\n" + "x\n" + "3,20,6\n" * 200))
    assert len(list(trace)) == 201
    assert trace.bad.first == [(4, "has 1 fields where the header has 3")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (gzip.compress(b""), "is empty"),
        (TWO.encode("utf-16"), "is not text in UTF-8"),
        (bytes(range(256)) * 9, "is not text in UTF-8"),
        (b"\x1f\x8bno gzip", "is cut off or damaged: fetch it again"),
        (gzip.compress(TWO.encode())[:-9], "is cut off or damaged: fetch it again"),
        (HEADER.encode(), "holds no request"),
    ],
    ids=[
        "nothing",
        "blank lines",
        "a byte order mark",
        "nothing, in gzip",
        "UTF-16",
        "bytes of no text",
        "no gzip after its first bytes",
        "gzip that is cut off",
        "a header",
    ],
)
def test_a_file_without_a_trace_is_one_sentence(content: bytes, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(TraceError) as refused:
        list(open_trace(path))
    assert str(refused.value).startswith(f"{path}: ")
    assert message in str(refused.value)


def test_a_packed_file_that_is_cut_off_says_how_far_it_was_read(tmp_path: Path) -> None:
    rng = random.Random(1)
    text = rows(*sorted(rng.random() for _ in range(20_000)))
    trace = open_trace(written(tmp_path, gzip.compress(text.encode())[:-1_000]))
    with pytest.raises(TraceError, match=r"cannot be read after line 1\d{4} "):
        list(trace)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{}/absent.csv", "there is no such file, and no such mix; the mixes are bimodal, heavy-tail"),
        ("{}", "is a directory"),
        ("bimodel", "there is no such file, and no such mix"),
        ("", "is a directory"),
        ("a\0b", "there is no such file"),
        ("\udcff\ud800", "there is no such file"),
        ("x" * 5_000, "there is no such file"),
        ("/dev/null", "is no regular file; save it as one first"),
    ],
)
def test_what_is_no_file_is_one_sentence(spec: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as refused:
        open_trace(spec.format(tmp_path))
    assert message in str(refused.value)


def test_a_file_that_may_not_be_read_is_one_sentence(tmp_path: Path) -> None:
    path = written(tmp_path, TWO)
    os.chmod(path, 0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.raises(TraceError, match="Permission denied"):
        open_trace(path)


def test_a_file_that_went_away_between_two_replays_is_one_sentence(tmp_path: Path) -> None:
    path = written(tmp_path, TWO)
    trace = open_trace(path)
    assert list(trace) == BOTH
    os.remove(path)
    with pytest.raises(TraceError, match="No such file"):
        list(trace)


def test_a_file_that_became_another_between_two_replays_is_one_sentence(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, TWO))
    written(tmp_path, "1,10,5\n")
    with pytest.raises(TraceError, match="line 1 is not the header that it was"):
        list(trace)


def test_a_first_line_that_only_looks_blank_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 1 is not the header"):
        list(open_trace(written(tmp_path, "\u2003\n" + TWO)))


def test_each_iteration_starts_anew_even_in_the_middle_of_another(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, HEADER + "1,10,5\n" * 200 + "x\n"))
    first = iter(trace)
    next(first)
    assert len(list(trace)) == len(list(trace)) == 200
    assert trace.bad.count == 1
    assert len(list(first)) == 199


def test_the_name_is_short_and_the_position_and_the_count_are_told(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, rows(*range(50_000)), "busy.day.csv"))
    assert (trace.name, trace.requests, trace.fraction_read) == ("busy.day", None, 0.0)
    shares = [trace.fraction_read for _ in trace]
    assert all(before <= after for before, after in pairwise(shares))
    assert 0.4 < shares[len(shares) // 2] < 0.6
    assert (trace.requests, trace.fraction_read) == (50_000, 1.0)


def test_the_name_of_a_packed_file_is_that_of_the_file_inside(tmp_path: Path) -> None:
    assert open_trace(written(tmp_path, gzip.compress(TWO.encode()), "day.csv.gz")).name == "day"


def test_a_file_beats_no_mix_unless_its_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, TWO, "bursty")
    monkeypatch.chdir(tmp_path)
    assert open_trace("bursty").format == "synthetic mix"
    assert list(open_trace("./bursty")) == BOTH


def test_times_that_are_swapped_within_the_window_are_put_in_order(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, rows(5, 3, 4, 3, 8)))
    assert [(request.at_s, request.prompt_tokens) for request in trace] == [(0, 2), (0, 4), (1, 3), (2, 1), (5, 5)]
    assert trace.bad.count == 0


def test_a_request_that_comes_after_the_window_is_a_malformed_line(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, rows(*range(1, WINDOW + 3), 0, 5000)))
    requests = list(trace)
    assert len(requests) == WINDOW + 3
    assert trace.bad.first == [(WINDOW + 4, f"comes over {WINDOW} requests after its time; sort the file by time")]


def test_a_trace_that_is_not_sorted_is_refused_instead_of_replayed_in_another_order(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="sort the file by time"):
        list(open_trace(written(tmp_path, rows(*range(5_000, 0, -1)))))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_any_short_trace_comes_out_sorted_and_whole(
    tmp_path_factory: pytest.TempPathFactory, times_s: list[int]
) -> None:
    trace = open_trace(written(tmp_path_factory.getbasetemp(), rows(*times_s)))
    wanted = sorted((at_s - min(times_s), number) for number, at_s in enumerate(times_s, 1))
    assert [(request.at_s, request.prompt_tokens) for request in trace] == wanted


@pytest.mark.parametrize(
    ("bad", "good", "accepted"),
    [(1, 99, True), (1, 98, False), (2, 98, False), (2, 198, True), (3, 199, False)],
)
def test_one_bad_line_in_a_hundred_is_accepted_and_no_more(bad: int, good: int, accepted: bool, tmp_path: Path) -> None:
    lines = ["1,10,5\n"] * good
    for number in range(bad):
        lines.insert(100 * number + 99, "1,x,5\n")
    trace = open_trace(written(tmp_path, HEADER + "".join(lines)))
    if accepted:
        assert len(list(trace)) == good
        assert trace.bad.count == bad
    else:
        with pytest.raises(
            TraceError, match=rf"{bad} of the first {bad + good} lines are malformed, more than 1% \(line "
        ):
            list(trace)


def test_a_broken_file_is_refused_at_its_first_hundred_lines_with_the_first_reasons(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, HEADER + "1,x,5\n" * 8 + "1,10,5\n" * 100_000))
    with pytest.raises(TraceError) as refused:
        list(trace)
    assert trace.bad.read == 100
    reasons = "; ".join(f"line {number}: 'x' is not a number of tokens" for number in range(2, 7))
    assert f"8 of the first 100 lines are malformed, more than 1% ({reasons}; ...)" in str(refused.value)


def test_bytes_that_are_not_utf8_make_a_malformed_line(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, (HEADER + "1,10,5\n" * 200).encode() + b"1,\xff,5\n"))
    assert len(list(trace)) == 200
    assert trace.bad.first == [(202, "is not UTF-8")]


@pytest.mark.parametrize("end", [b"\n", b""], ids=["ends", "is the last"])
def test_a_line_without_end_is_skipped_and_not_kept(end: bytes, tmp_path: Path) -> None:
    good = b"1,10,5\n" * 200
    trace = open_trace(
        written(tmp_path, HEADER.encode() + good + b"1" * 20 * LINE_BYTES + end + (good if end else b""))
    )
    tracemalloc.start()
    assert len(list(trace)) == (400 if end else 200)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert trace.bad.first == [(202, f"is longer than {LINE_BYTES} bytes")]
    assert peak < 5 * LINE_BYTES


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, rows(*range(40_000))))
    tracemalloc.start()
    assert sum(1 for _ in trace) == 40_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The window: 1,024 tuples of a float and three objects, below 400 bytes each; the list would take 6 MB.
    assert peak < 1_000_000


@given(st.binary(max_size=400))
def test_arbitrary_bytes_raise_nothing_but_a_trace_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    for start in (b"", HEADER.encode(), b"\x1f\x8b"):
        path = written(tmp_path_factory.getbasetemp(), start + content)
        complaint = _complaint_about(path)
        assert complaint is None or complaint.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "format", "requests", "quantiles"),
    [
        ("AzureLLMInferenceTrace_conv_2023.csv", "Azure LLM inference CSV", 19_366, [1020, 1130, 1877, 4142]),
        ("mooncake_conversation_trace.jsonl", "Mooncake JSONL", 12_031, [6909, 13196, 21467, 85401]),
    ],
)
def test_a_public_trace_has_the_lengths_that_are_published(
    name: str, format: str, requests: int, quantiles: list[int]
) -> None:
    trace = open_trace(_public(name))
    lengths = [request.prompt_tokens for request in trace]
    assert (trace.format, len(lengths), trace.bad.count) == (format, requests, 0)
    assert [exact_quantile(lengths, q) for q in (0.5, 0.7, 0.85, 0.99)] == quantiles


def test_public_lengths_without_times_are_refused_with_the_fix() -> None:
    path = _public("vidur_arxiv_summarization_lengths.csv")
    with pytest.raises(TraceError, match="no arrival times; add a column time_s"):
        open_trace(path)


def _complaint_about(path: str) -> str | None:
    try:
        list(open_trace(path))
    except TraceError as refused:
        return str(refused)
    return None


def _public(name: str) -> str:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"the public trace {name} is not on this machine")
    return str(path)
