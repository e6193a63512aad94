"""`prefleet advise`: what it says, what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefleet_operator.api import parse_spec
from prefleet_operator.cli.commands import app
from typer.testing import CliRunner, Result

MIX = "bimodal:seed=3,requests=600"
QUICK = (MIX, "--prefill-only", "--load", "0.9")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["advise", *arguments])


def figures(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    """What is advised for QUICK."""
    return figures(*QUICK)


def test_two_kinds_are_split_at_their_valley_and_the_reasons_are_given(quick: dict[str, Any]):
    advice = quick["advice"]
    assert advice["policy"] == "ShortRequestFirst"
    assert 600 < advice["threshold"] < 4000
    assert advice["threshold_reason"]["reason"] == "Valley"
    assert 4 <= advice["long_max_wait_s"] <= 7.2
    assert "in replay without promotion P95 of" in advice["long_max_wait_reason"]["message"]


def test_the_alternatives_are_those_that_were_tried_and_one_is_marked(quick: dict[str, Any]):
    alternatives, advice = quick["alternatives"], quick["advice"]
    chosen = [each for each in alternatives if each["chosen"]]
    assert [(each["threshold"], each["long_max_wait_s"]) for each in chosen] == [
        (advice["threshold"], advice["long_max_wait_s"])
    ]
    waits = {each["long_max_wait_s"] for each in alternatives if each["threshold"] == advice["threshold"]}
    assert {0.0, 4.0, 7.2} <= waits
    fcfs = next(each for each in alternatives if each["threshold"] is None)
    assert chosen[0]["short"]["ttft_s"]["mean"] < 0.5 * fcfs["short"]["ttft_s"]["mean"]


def test_the_yaml_at_the_end_is_the_scheduling_of_a_policy_that_is_admitted():
    result = run(*QUICK)
    assert result.exit_code == 0, result.output
    snippet = yaml.safe_load(result.output[result.output.index("spec:\n") :])
    raw = {"model": {"servedName": "any"}, "engine": {"type": "Simulator"}, "mixed": {}, **snippet["spec"]}
    scheduling = parse_spec(raw).scheduling
    assert scheduling.threshold is not None
    assert scheduling.long_max_wait_s is not None
    assert f"run ShortRequestFirst with threshold {scheduling.threshold:,} and longMaxWait" in result.output


def test_the_same_command_gives_the_same_figures(quick: dict[str, Any]):
    assert figures(*QUICK) == quick


def test_lengths_without_spread_are_advised_first_come_first_served(tmp_path: Path):
    trace = tmp_path / "equal.csv"
    trace.write_text("time,prompt,output\n" + "".join(f"{n},{1000 + n % 7},5\n" for n in range(400)))
    result = run(str(trace))
    assert result.exit_code == 0, result.output
    assert "run FCFS" in result.output
    assert "lengths show no spread worth splitting" in result.output
    assert "policy: FCFS" in result.output
    assert "threshold:" not in result.output[result.output.index("spec:\n") :]


def test_an_overloaded_fleet_is_told_to_grow():
    document = figures(MIX, "--prefill-only", "--load", "2")
    assert document["advice"]["capacity_limited"]
    assert "promotion begins at 7.2s" in document["advice"]["long_max_wait_reason"]["message"]
    assert "add pods" in document["advice"]["sentences"][-1]


@pytest.mark.parametrize("share", ["0.02", "1"])
def test_under_overload_shorts_are_spared_a_promotion_that_costs_them_too_much(share: str):
    # Twice the load of two kinds, 75% of them short with a tenth of the work: shorts alone are no overload.
    document = figures(MIX, "--prefill-only", "--load", "2", "--aged-share", share)
    advice = document["advice"]
    at_threshold = [each for each in document["alternatives"] if each["threshold"] == advice["threshold"]]
    strict_s = next(each["short"]["ttft_s"]["p95"] for each in at_threshold if each["long_max_wait_s"] == 0)
    chosen = next(each for each in at_threshold if each["chosen"])
    costlier = [each for each in at_threshold if each["aged_share"] == float(share) and each["long_max_wait_s"] == 7.2]
    assert chosen["short"]["ttft_s"]["p95"] <= 1.3 * strict_s
    assert chosen in costlier or all(each["short"]["ttft_s"]["p95"] > 1.3 * strict_s for each in costlier)
    assert document["spec"]["scheduling"]["longMaxWait"] == ("7.2s" if chosen["long_max_wait_s"] else "0s")


def test_a_wait_that_is_not_known_yet_is_left_to_the_tuner():
    # An eighth of 400 are long: fewer than the 59 that a P95 needs.
    document = figures("bimodal:seed=3,requests=400,long_share=0.125", "--prefill-only", "--load", "0.5")
    assert document["advice"]["long_max_wait_reason"]["reason"] == "LearningWaits"
    assert "longMaxWait" not in document["spec"]["scheduling"]


def test_prefixes_that_the_pods_have_cached_shorten_what_counts_as_long(tmp_path: Path):
    trace = tmp_path / "turns.jsonl"
    lines = [
        {"timestamp": 500 * n, "input_length": 512 * (2 + n % 40), "output_length": 5, "hash_ids": [*range(2 + n % 40)]}
        for n in range(400)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with_cache, without = (figures(str(trace), option) for option in ("--prefix-cache", "--no-prefix-cache"))
    assert without["advice"]["threshold"] is None or without["advice"]["threshold"] > 5_000
    assert with_cache["advice"]["threshold"] is None or with_cache["advice"]["threshold"] < 5_000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nothing.csv",), "nothing.csv"),
        (("bimodal:requests=200",), "holds 200 requests, and 300 requests are needed for advice: give a longer trace"),
        ((MIX, "--slo-long-wait", "8"), '--slo-long-wait: is "8": write a duration from 100ms to 24h with its unit'),
        ((MIX, "--slo-long-wait", "10ms"), '--slo-long-wait: is "10ms": write a duration from 100ms to 24h'),
        ((MIX, "--engine", "tpu"), "--engine: no cost model is named 'tpu'"),
        ((MIX, "--prefill-only", "--decode-pods", "1"), "--prefill-only leaves nothing"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(arguments: tuple[str, ...], sentence: str):
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_figures_are_written_beside_the_table(tmp_path: Path):
    file = tmp_path / "advice.json"
    result = run(*QUICK, "--json", str(file))
    assert result.exit_code == 0
    assert json.loads(file.read_text())["trace"]["requests"] == 600


def test_a_place_that_cannot_be_written_is_said_before_anything_is_replayed(tmp_path: Path) -> None:
    result = run(MIX, "--json", str(tmp_path / "nowhere" / "advice.json"))
    assert result.exit_code == 2
    assert "there is no folder" in result.output
    assert "requests over" not in result.output


def test_an_interrupt_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("prefleet_operator.replay.advice.advise", interrupt)
    result = run(MIX)
    assert result.exit_code == 130
    assert result.output == "interrupted: the replay did not come to its end\n"
