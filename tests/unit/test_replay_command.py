"""`prefleet replay`: what it says, what it writes, and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prefleet_operator.cli.commands import app
from typer.testing import CliRunner, Result

DOCS = Path(__file__).parents[2] / "docs"
MIX = "bimodal:seed=3,requests=600"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["replay", *arguments])


def figures(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def by_policy(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {replay["policy"]: replay for replay in document["replays"]}


def test_every_policy_answers_the_whole_trace_and_short_first_helps_shorts() -> None:
    replays = by_policy(figures(MIX, "--load", "0.9"))
    assert list(replays) == ["fcfs", "short_request_first", "hrrn", "promote_shortest", "clairvoyant bound"]
    assert {replay["requests"] for replay in replays.values()} == {600}
    short = {name: replay["short"]["ttft_s"]["p95"] for name, replay in replays.items()}
    assert short["short_request_first"] < 0.5 * short["fcfs"]


def test_the_tables_name_the_policies_and_the_split() -> None:
    result = run(MIX, "--policy", "srf", "--threshold", "700", "--no-bound")
    assert result.exit_code == 0
    assert "short requests, at most 700 prompt tokens" in result.output
    assert "short_request_first" in result.output
    assert "clairvoyant" not in result.output


def test_the_same_command_gives_the_same_figures() -> None:
    arguments = (MIX, "--policy", "srf,hrrn", "--pods", "2", "--decode-pods", "1", "--router", "least-tokens")
    assert figures(*arguments) == figures(*arguments)


def test_the_documents_show_what_the_command_prints(tmp_path: Path) -> None:
    """The virtual clock gives the same figures anywhere, so those of the documents are those of today's code."""
    told = run("bursty:seed=7,requests=5000,factor=3", "--load", "0.8", "--json", str(tmp_path / "figures.json")).output
    shown = (DOCS / "replay.md").read_text().split("```text\n")[1].split("\n```")[0].splitlines()
    printed = [line.rstrip() for line in told.splitlines() if line.strip()]
    assert printed[printed.index(shown[0]) :][: len(shown)] == shown
    replays = by_policy(json.loads((tmp_path / "figures.json").read_text()))
    rows = [
        f"| {name} | {' | '.join(_cells(replays[policy], replays['fcfs']))} |"
        for name, policy in (
            ("FCFS", "fcfs"),
            ("ShortRequestFirst", "short_request_first"),
            ("HRRN", "hrrn"),
            ("PromoteShortest", "promote_shortest"),
        )
    ]
    assert "\n".join(rows) in (DOCS / "prefillpolicy.md").read_text(), "\n".join(rows)


def _cells(replay: dict[str, Any], first: dict[str, Any]) -> list[str]:
    cells = []
    for lane, quantile in (("short", "p50"), ("short", "p95"), ("long", "p50"), ("long", "p95")):
        value, base = replay[lane]["ttft_s"][quantile], first[lane]["ttft_s"][quantile]
        cells.append(f"{value:.2f}" if replay is first else f"{value:.2f} ({value / base - 1:+.0%})")
    return cells


def test_the_load_is_a_part_of_what_the_fleet_can_serve() -> None:
    slow, fast = (figures(MIX, "--policy", "fcfs", "--no-bound", "--load", load) for load in ("0.3", "1.5"))
    assert slow["capacity_requests_per_s"] == fast["capacity_requests_per_s"]
    assert slow["replays"][0]["lasted_s"] > 3 * fast["replays"][0]["lasted_s"]
    assert slow["replays"][0]["short"]["ttft_s"]["p95"] < fast["replays"][0]["short"]["ttft_s"]["p95"]


def test_lengths_without_spread_are_said_to_be_best_served_first_come() -> None:
    result = run("uniform:requests=600", "--policy", "fcfs", "--no-bound")
    assert result.exit_code == 0
    assert "threshold" in result.output


def test_a_prefix_cache_spares_work_where_the_trace_tells_prefixes(tmp_path: Path) -> None:
    trace = tmp_path / "turns.jsonl"
    lines = [
        {"timestamp": 500 * n, "input_length": 512 * (2 + n % 5), "output_length": 5, "hash_ids": [*range(2 + n % 5)]}
        for n in range(300)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    cached = {}
    for option in ("--prefix-cache", "--no-prefix-cache"):
        document = figures(str(trace), "--policy", "fcfs", "--no-bound", "--threshold", "1000", option)
        cached[option] = document["replays"][0]["cached_tokens"]
    assert cached["--no-prefix-cache"] == 0
    assert cached["--prefix-cache"] > 300 * 512


def test_a_malformed_line_is_told_with_its_number(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{n},{100 + n},5" for n in range(400)]
    rows[200] = "200,many,5"
    trace.write_text("\n".join(["time,prompt,output", *rows]) + "\n")
    result = run(str(trace), "--policy", "fcfs", "--no-bound")
    assert result.exit_code == 0
    assert "1 malformed: line 202" in result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nothing.csv",), "nothing.csv"),
        ((MIX, "--policy", "sjf"), '"sjf" is no policy: write some of fcfs'),
        ((MIX, "--threshold", "-3"), '--threshold: is "-3": write tokens from 1 to 100,000,000, or auto'),
        ((MIX, "--threshold", "100000001"), "write tokens from 1 to 100,000,000, or auto"),
        ((MIX, "--threshold", "1" * 5000), "write tokens from 1 to 100,000,000, or auto"),
        ((MIX, "--long-max-wait", "25h"), '--long-max-wait: is "25h": write a duration from 0s to 24h with its unit'),
        ((MIX, "--slo-short-ttft", "0s"), '--slo-short-ttft: is "0s": write a duration from 1ms to 1h with its unit'),
        ((MIX, "--slo-long-wait", "8"), '--slo-long-wait: is "8": write a duration from 100ms to 24h with its unit'),
        ((MIX, "--engine", "tpu"), "--engine: no cost model is named 'tpu'"),
        ((MIX, "--prefill-only", "--decode-pods", "1"), "--prefill-only leaves nothing"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_one_request_is_told_as_one(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,prompt_tokens,output_tokens\n0,100,10\n")
    told = run(str(trace), "--policy", "srf", "--threshold", "700", "--no-bound").output
    assert ", 1 request over 0 s" in told
    assert "short_request_first: 1 request replayed" in told


def test_no_figure_is_cut_where_the_terminal_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    lines = run(MIX, "--policy", "srf", "--threshold", "700", "--no-bound").output.splitlines()
    row = next(line for line in lines if line.startswith(" short_request_first"))
    assert len(row.split()) == 7
    assert "short requests, at most 700 prompt tokens" in lines
    assert not any("…" in line for line in lines)


def test_requests_that_arrive_at_once_are_no_infinite_load(tmp_path: Path) -> None:
    trace, page = tmp_path / "trace.csv", tmp_path / "page.html"
    trace.write_text("time_s,prompt_tokens,output_tokens\n0,100,10\n0,200,10\n")
    told = run(str(trace), "--policy", "fcfs", "--no-bound", "--html", str(page)).output
    assert "of this trace; all arriving at once" in told
    assert "all requests arrive at once" in page.read_text()
    assert "inf" not in told


def test_two_files_have_two_names(tmp_path: Path) -> None:
    same = str(tmp_path / "file")
    for html, sentence in ((same, "is where --json writes: give another path"), ("-", "give the path of a file")):
        result = run(MIX, "--json", same, "--html", html)
        assert (result.exit_code, result.stdout) == (2, "")
        assert sentence in result.stderr


def test_figures_are_written_beside_the_tables(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    result = run(MIX, "--policy", "fcfs", "--no-bound", "--json", str(file))
    assert result.exit_code == 0
    assert json.loads(file.read_text())["trace"]["requests"] == 600


def test_a_report_is_written_and_costs_one_more_replay(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    result = run(MIX, "--policy", "fcfs,srf", "--no-bound", "--html", str(file))
    assert result.exit_code == 0
    assert "once more without promotion" in result.output
    page = file.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "W_normal unknown" not in page
    assert "once more" not in run(MIX, "--policy", "fcfs,srf", "--no-bound").output


def test_strict_short_first_is_not_replayed_twice(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    result = run(MIX, "--policy", "srf", "--long-max-wait", "0s", "--no-bound", "--html", str(file))
    assert "once more" not in result.output
    assert "W_normal unknown" not in file.read_text()


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_replayed(tmp_path: Path, option: str) -> None:
    missing = run(MIX, option, str(tmp_path / "absent" / "file"))
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert f"{option}: there is no folder {tmp_path / 'absent'}: make it" in missing.stderr
    folder = run(MIX, option, str(tmp_path))
    assert (folder.exit_code, folder.stdout) == (2, "")
    assert "is a folder: give the path of a file" in folder.stderr


def test_a_name_that_the_disk_refuses_is_told_in_a_sentence(tmp_path: Path) -> None:
    result = run(MIX, "--policy", "fcfs", "--no-bound", "--html", str(tmp_path / ("x" * 300)))
    assert result.exit_code == 2
    assert "cannot be written (File name too long)" in result.stderr


def test_ctrl_c_ends_a_replay_with_a_line_and_130() -> None:
    # A shell's background jobs ignore SIGINT, and so would a child of one.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from prefleet_operator.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "replay", "bimodal:requests=300000", "--policy", "fcfs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "the fleet serves" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told == "interrupted: the replay did not come to its end\n"
