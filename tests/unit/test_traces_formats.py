"""Each format by small samples: what is recognised, what its lines mean, which are malformed, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefleet_runtime.queueing import Dispatch, Lane
from prefleet_runtime.recent import RecentRequests
from prefleet_runtime.sim.traces import READERS, TraceError, TraceRequest, files, open_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,Conversation log
"""
BURST_WITH_SESSIONS = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log
19440161.5,,2,ChatGPT,36,29,65,API log
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 1300, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 3500, "input_length": 512, "output_length": 0, "hash_ids": [7]}
{"timestamp": 3500, "input_length": 20, "output_length": 3}
"""
BENCH: dict[str, Any] = {
    "date": "20260102-030405",
    "endpoint_type": "openai",
    "num_prompts": 3,
    "request_throughput": 1.5,
    "input_lens": [10, 20, 30],
    "output_lens": [5, 0, 7],
    "ttfts": [0.1, 0.0, 0.1],
    "itls": [[0.01], [], [0.01]],
    "start_times": [101.5, 100.5, 100.0],
    "generated_texts": ["", "", ""],
    "errors": ["", "Connection reset", ""],
}
RECENT: dict[str, Any] = {
    "now_s": 12.5,
    "limit": 8192,
    "ended_total": 2,
    "requests": [
        {"arrival_s": 4.5, "prompt_tokens": 100, "cached_tokens": 0, "output_tokens": 7, "waits_s": {"short": 0.1}},
        {"arrival_s": 3.0, "prompt_tokens": 900, "cached_tokens": 30, "output_tokens": 0, "waits_s": {}},
    ],
}
PLAIN = "user,Arrival Time ms,Input-Tokens,output\nann,1500,100,7\nbob,3500,200,0\n"


@dataclass(frozen=True)
class Case:
    text: str
    format: str
    requests: tuple[TraceRequest, ...]
    block_tokens: int = 0
    left_out: int = 0


CASES = {
    "Azure": Case(AZURE, "Azure LLM inference CSV", (TraceRequest(0, 374, 44), TraceRequest(4.314579, 396, 109))),
    "Azure with zones and other columns": Case(
        ",ContextTokens,TIMESTAMP,GeneratedTokens\n0,1,2024-05-10 01:00:00.5+01:00,2\n1,3,2024-05-10 00:00:02Z,4\n",
        "Azure LLM inference CSV",
        (TraceRequest(0, 1, 2), TraceRequest(1.5, 3, 4)),
    ),
    "BurstGPT without its failures": Case(
        BURST, "BurstGPT CSV", (TraceRequest(0, 472, 18), TraceRequest(40, 1087, 230)), left_out=1
    ),
    "BurstGPT with sessions": Case(
        BURST_WITH_SESSIONS, "BurstGPT CSV", (TraceRequest(0, 906, 446), TraceRequest(51.5, 36, 29))
    ),
    "Mooncake, full blocks only": Case(
        MOONCAKE,
        "Mooncake JSONL",
        (TraceRequest(0, 1300, 500, (0, 1)), TraceRequest(2.5, 512, 1, (7,)), TraceRequest(2.5, 20, 3)),
        block_tokens=512,
    ),
    "vLLM bench": Case(
        json.dumps(BENCH), "vLLM bench JSON", (TraceRequest(0, 30, 7), TraceRequest(1.5, 10, 5)), left_out=1
    ),
    "vLLM bench, indented": Case(
        json.dumps(BENCH, indent=2), "vLLM bench JSON", (TraceRequest(0, 30, 7), TraceRequest(1.5, 10, 5)), left_out=1
    ),
    "vLLM bench, two runs appended": Case(
        json.dumps(BENCH) + "\n" + json.dumps(BENCH),
        "vLLM bench JSON",
        (TraceRequest(0, 30, 7), TraceRequest(1.5, 10, 5), TraceRequest(3.0, 30, 7), TraceRequest(4.5, 10, 5)),
        left_out=2,
    ),
    "recent, by arrival": Case(
        json.dumps(RECENT), "runtime /recent", (TraceRequest(0, 900, 1), TraceRequest(1.5, 100, 7))
    ),
    "plain, in milliseconds": Case(PLAIN, "plain CSV", (TraceRequest(0, 100, 7), TraceRequest(2, 200, 1))),
    "plain, quoted, with floats": Case(
        '"time","prompt","note","output"\n"0.5","10.0","a, b","3"\n2,20,"",4\n',
        "plain CSV",
        (TraceRequest(0, 10, 3), TraceRequest(1.5, 20, 4)),
    ),
    "plain, with an id and a text": Case(
        "id,request,prompt,prompt_tokens,response,output,output_tokens,time_s\n7,r7,why?,10,so,o,3,0\n8,r8,how?,20,so,o,4,1\n",
        "plain CSV",
        (TraceRequest(0, 10, 3), TraceRequest(1, 20, 4)),
    ),
    "plain, with dates": Case(
        "timestamp,prompt_len,output_len\n2026-01-01T00:00:00Z,1,2\n2026-01-01T00:01:00Z,3,4\n",
        "plain CSV",
        (TraceRequest(0, 1, 2), TraceRequest(60, 3, 4)),
    ),
    "Vidur's own trace": Case(
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,10,2\n1.25,20,3\n",
        "plain CSV",
        (TraceRequest(0, 10, 2), TraceRequest(1, 20, 3)),
    ),
}


def written(folder: Path, text: str | bytes, name: str = "trace") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_sample_means(case: Case, tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path, case.text))
    requests = list(trace)
    assert [request.at_s for request in requests] == pytest.approx(
        [request.at_s for request in case.requests], abs=1e-6
    )
    assert [_without_time(request) for request in requests] == [_without_time(request) for request in case.requests]
    assert (trace.format, trace.block_tokens) == (case.format, case.block_tokens)
    assert (trace.bad.count, trace.left_out, trace.requests) == (0, case.left_out, len(case.requests))


def _without_time(request: TraceRequest) -> tuple[int, int, tuple[int, ...]]:
    return request.prompt_tokens, request.output_tokens, request.blocks


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_one_reader_alone_recognises_a_sample_or_the_particular_one_comes_first(case: Case) -> None:
    recognised = [reader.format for reader in READERS if reader.recognises(case.text)]
    assert recognised[0] == case.format
    assert set(recognised) <= {case.format, "plain CSV"}


def test_what_a_runtime_answers_is_read(tmp_path: Path) -> None:
    recent = RecentRequests(lambda: 12.5)
    for number, length in enumerate((100, 5_000)):
        recent.dispatched(Dispatch(f"r{number}", Lane.SHORT, 0.5, length), length)
        recent.ended(f"r{number}", float(2 - number), length, 3)
    trace = open_trace(written(tmp_path, recent.to_json()))
    assert list(trace) == [TraceRequest(0, 5_000, 3), TraceRequest(1, 100, 3)]


LENGTH = 150
"""Lines around a malformed one, so that it stays below 1%."""


def sample(line: str, header: str, good: str) -> str:
    return "\n".join([header, *[good] * LENGTH, line, good, ""])


AZURE_HEAD, AZURE_LINE = AZURE.splitlines()[:2]
BURST_HEAD, BURST_LINE = BURST.splitlines()[:2]
MOONCAKE_LINE = MOONCAKE.splitlines()[0]
PLAIN_HEAD, PLAIN_LINE = "time_s,prompt_tokens,output_tokens", "1,10,5"


@pytest.mark.parametrize(
    ("line", "header", "good", "reason"),
    [
        ("2023-11-16 18:15:46.68,374", AZURE_HEAD, AZURE_LINE, "has 2 fields where the header has 3"),
        ("yesterday,374,44", AZURE_HEAD, AZURE_LINE, "'yesterday' is not a date with a time"),
        ("1969-01-01 00:00:00,374,44", AZURE_HEAD, AZURE_LINE, "the time is -3.1536e+07 s"),
        ("0001-01-01 00:00:00+14:00,374,44", AZURE_HEAD, AZURE_LINE, "the time is -6.21"),
        ("5,ChatGPT,-472,18,490,API log", BURST_HEAD, BURST_LINE, "the prompt has -472 tokens"),
        ("5,ChatGPT,0,18,490,API log", BURST_HEAD, BURST_LINE, "the prompt has 0 tokens"),
        ("x,ChatGPT,1,18,490,API log", BURST_HEAD, BURST_LINE, "'x' is not a time"),
        ('{"timestamp": 1000, "input_length": 13', MOONCAKE_LINE, MOONCAKE_LINE, "is not JSON"),
        ("[" * 50_000, MOONCAKE_LINE, MOONCAKE_LINE, "is not JSON"),
        ("7", MOONCAKE_LINE, MOONCAKE_LINE, "is not a JSON object"),
        ('{"input_length": 1, "output_length": 1}', MOONCAKE_LINE, MOONCAKE_LINE, "None is not a time"),
        (
            '{"timestamp": 1, "input_length": true, "output_length": 1}',
            MOONCAKE_LINE,
            MOONCAKE_LINE,
            "True is not a number of tokens",
        ),
        (
            '{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [0.5]}',
            MOONCAKE_LINE,
            MOONCAKE_LINE,
            "its hash_ids are not a list of integers",
        ),
        (
            '{"timestamp": %s, "input_length": 600, "output_length": 1}' % ("9" * 400),
            MOONCAKE_LINE,
            MOONCAKE_LINE,
            "is not a time within 0 and 1e+11 s",
        ),
        (
            '{"timestamp": NaN, "input_length": 600, "output_length": 1}',
            MOONCAKE_LINE,
            MOONCAKE_LINE,
            "nan is not a time within",
        ),
        ("nan,10,5", PLAIN_HEAD, PLAIN_LINE, "the time is nan s"),
        ("-1,10,5", PLAIN_HEAD, PLAIN_LINE, "the time is -1 s"),
        ("1700000000000,10,5", PLAIN_HEAD, PLAIN_LINE, "the time is 1.7e+12 s, not within 0 and 1e+11"),
        ("1,10000001,5", PLAIN_HEAD, PLAIN_LINE, "the prompt has 10000001 tokens, not within 1 and 10000000"),
        ("1,10,10000001", PLAIN_HEAD, PLAIN_LINE, "the output has 10000001 tokens"),
        ("1,10,-1", PLAIN_HEAD, PLAIN_LINE, "the output has -1 tokens"),
        ("1,10.5,5", PLAIN_HEAD, PLAIN_LINE, "10.5 is not a number of tokens"),
        ("1,inf,5", PLAIN_HEAD, PLAIN_LINE, "inf is not a number of tokens"),
        ("1,,5", PLAIN_HEAD, PLAIN_LINE, "'' is not a number of tokens"),
        ("1,1,020,5", PLAIN_HEAD, PLAIN_LINE, "has 4 fields where the header has 3"),
        ('"' + "x" * 200_000, PLAIN_HEAD, PLAIN_LINE, "is not CSV"),
    ],
)
def test_a_malformed_line_is_left_out_with_its_number_and_the_reason(
    line: str, header: str, good: str, reason: str, tmp_path: Path
) -> None:
    trace = open_trace(written(tmp_path, sample(line, header, good)))
    count = len(list(trace))
    # The header of a CSV is a line, and so is the first request of a JSONL.
    assert count == LENGTH + 1 + (header == good)
    [(number, why)] = trace.bad.first
    assert (trace.bad.count, number) == (1, LENGTH + 2)
    assert reason in why


def test_malformed_requests_of_a_document_are_numbered_as_requests(tmp_path: Path) -> None:
    requests = [*RECENT["requests"] * 100, {"arrival_s": 1}, 7]
    trace = open_trace(written(tmp_path, json.dumps(RECENT | {"requests": requests})))
    assert len(list(trace)) == 200
    assert trace.bad.reasons() == "request 201: None is not a number of tokens; request 202: is not a JSON object"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_prefill_tokens,num_decode_tokens\n3772,54\n", "line 1 names lengths but no arrival times; add a column"),
        ('{"prompt": "What is the capital of India?", "output_tokens": 10}\n', "only the model's tokenizer can count"),
        ('[{"id": "x", "conversations": []}]', "only the model's tokenizer can count"),
        ("time_s,prompt\n1,2\n", "line 1 begins no known trace; give a file that begins like one of these"),
        ("1,2,3\n1,2,3\n", "plain CSV: time_s,prompt_tokens,output_tokens"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_at_once(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as refused:
        open_trace(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert message in str(refused.value)


def without(*names: str) -> str:
    return json.dumps({key: value for key, value in BENCH.items() if key not in names})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (without("start_times"), "has no start_times, so no arrival times; run `vllm bench serve` again"),
        (
            without("start_times", "input_lens", "output_lens"),
            "has no start_times and no input_lens and no output_lens",
        ),
        (json.dumps(BENCH | {"input_lens": [1]}), "of different lengths"),
        (json.dumps(BENCH)[:-9], "the result that begins in line 1 is not whole JSON"),
        (json.dumps(BENCH) + "\n" + json.dumps(BENCH)[:-9], "the result that begins in line 2 is not whole JSON"),
        (json.dumps(BENCH) + "\n7", "holds JSON that is no benchmark result"),
        (json.dumps(BENCH | {"errors": ["refused"] * 3}), "holds no request"),
        (json.dumps(RECENT)[:-9], "is not whole JSON; save it again"),
        (json.dumps(RECENT | {"requests": 7}), "has no list of requests"),
        (json.dumps(RECENT | {"requests": []}), "holds no request"),
    ],
)
def test_a_document_that_does_not_hold_a_trace_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as refused:
        list(open_trace(path))
    assert str(refused.value).startswith(f"{path}: ")
    assert message in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(st.sampled_from(sorted(CASES)), st.data())
def test_no_damage_to_a_sample_raises_anything_but_a_trace_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    content = bytearray(CASES[name].text.encode())
    start = data.draw(st.integers(0, len(content)))
    content[start : data.draw(st.integers(start, len(content)))] = data.draw(st.binary(max_size=20))
    _read_or_refuse(tmp_path_factory, bytes(content))


@given(
    st.sampled_from(
        ["timestamp", "input_length", "output_length", "hash_ids", "arrival_s", "prompt_tokens", "requests"]
    ),
    st.sampled_from(["input_lens", "output_lens", "start_times", "errors"]),
    JSON,
)
def test_no_json_value_raises_anything_but_a_trace_error(
    tmp_path_factory: pytest.TempPathFactory, key: str, bench_key: str, value: object
) -> None:
    mooncake = json.loads(MOONCAKE_LINE)
    documents = [mooncake | {key: value}, RECENT | {key: value}, BENCH | {bench_key: value}]
    documents.append(RECENT | {"requests": [RECENT["requests"][0] | {key: value}, value]})
    documents.append(BENCH | {bench_key: [value] * 3})
    for document in documents:
        _read_or_refuse(tmp_path_factory, json.dumps(document).encode())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@given(garbage=st.binary())
def test_no_garbage_after_a_good_beginning_raises_anything_but_a_trace_error(
    case: Case, garbage: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for beginning in (case.text, case.text.partition("\n")[0] + "\n", case.text[: len(case.text) // 2]):
        _read_or_refuse(tmp_path_factory, beginning.encode() + garbage)


def _read_or_refuse(folders: pytest.TempPathFactory, content: bytes) -> None:
    try:
        requests = list(open_trace(written(folders.getbasetemp(), content, "damaged")))
    except TraceError:
        return
    assert requests[0].at_s == 0
    assert all(before.at_s <= after.at_s for before, after in pairwise(requests))
    assert all(request.prompt_tokens >= 1 and request.output_tokens >= 1 for request in requests)


def test_a_document_beyond_what_may_be_read_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "DOCUMENT_BYTES", 300)
    with pytest.raises(TraceError, match="in a single document; write it as a CSV with the columns time_s"):
        list(open_trace(written(tmp_path, json.dumps(BENCH))))
