"""What the demo says at its end, with a policy that has a threshold and with one that has none."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from prefleet_operator.api import CAPABILITIES, EngineType, SchedulingPolicy
from prefleet_runtime.sim.traces import TraceRequest
from rich.console import Console

from tests.support.demo.__main__ import _parser
from tests.support.demo.client import Figures, Outcome
from tests.support.demo.fleet import simulator
from tests.support.demo.phases import phase_titles
from tests.support.demo.report import Summary, draw, print_tables
from tests.support.policies import make_spec

POLICIES = CAPABILITIES[EngineType.SIMULATOR].policies
FIGURES = Figures(100, 0, 0.2, 0.5, 1.0, 4.0, 900.0, 75.0)
SUMMARY = Summary(
    engine="two pods",
    workload="bursty mix",
    band={"p70": 300.0, "p85": 5000.0},
    threshold=1218,
    threshold_reason="a valley",
    valley=1218,
    max_wait_ms=7000,
    max_wait_reason="long waits",
    policy="ShortRequestFirst",
    generation=3,
    policy_active=True,
    propagation_s=1.5,
    split_tokens=1000,
    fcfs=FIGURES,
    tuned=replace(FIGURES, short_ttft_p95_s=0.25),
    waits_p95_s={"fcfs": {"all": 3.0}, "tuned": {"short": 0.1, "long": 4.0, "all": 2.0}},
    moves=[],
)
UNSPLIT = replace(
    SUMMARY,
    policy="HRRN",
    threshold=None,
    valley=None,
    max_wait_ms=None,
    waits_p95_s={"fcfs": {"all": 3.0}, "tuned": {"all": 2.0}},
)


def printed(summary: Summary, policy: SchedulingPolicy) -> str:
    console = Console(file=io.StringIO(), width=140)
    print_tables(console, summary, phase_titles(policy))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_tuned_fleet_shows_its_threshold() -> None:
    text = printed(SUMMARY, SchedulingPolicy.SHORT_REQUEST_FIRST)
    assert "FCFS against tuned, two pods, bursty mix" in text
    assert "1218 tokens" in text
    assert "7 s" in text


def test_a_policy_without_a_threshold_shows_none() -> None:
    text = printed(UNSPLIT, SchedulingPolicy.HRRN)
    assert "FCFS against HRRN, two pods, bursty mix" in text
    rows = {line.split("│")[1].strip(): line.split("│")[2].strip() for line in text.splitlines() if "│" in line}
    assert (rows["policy"], rows["threshold"], rows["wait limit of long requests"]) == ("HRRN", "none", "none")
    assert "None" not in text


def test_the_json_has_the_same_keys_whatever_ran_and_null_where_there_is_nothing() -> None:
    tuned, unsplit = json.loads(SUMMARY.to_json()), json.loads(UNSPLIT.to_json())
    assert tuned.keys() == unsplit.keys()
    assert {"fcfs", "tuned"} <= unsplit.keys()
    assert [unsplit[key] for key in ("threshold", "valley", "max_wait_ms")] == [None, None, None]
    assert unsplit["short_ttft_p95_change"] == -0.5


@pytest.mark.parametrize("summary", [SUMMARY, UNSPLIT], ids=["with a threshold", "without one"])
def test_the_picture_is_drawn(summary: Summary, tmp_path: Path) -> None:
    requests = [TraceRequest(0.1 * number, length, 8) for number, length in enumerate((100, 200, 5000, 6000))]
    done = [Outcome(request, request.at_s + 1, request.at_s + 2, 8) for request in requests]
    draw(summary, phase_titles(SchedulingPolicy(summary.policy)), {"fcfs": done, "tuned": done}, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").stat().st_size > 10_000


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_can_be_asked_for_and_is_edited_into_another_generation(policy: SchedulingPolicy) -> None:
    assert SchedulingPolicy(_parser().parse_args(["--policy", policy.value]).policy) is policy
    shown, edited = simulator().shown(policy), simulator().edited(policy)
    before, after = make_spec(shown["scheduling"], shown["tuning"]), make_spec(edited["scheduling"], edited["tuning"])
    assert before.scheduling.policy is after.scheduling.policy is policy
    assert before.scheduling.trust_client_priority is not after.scheduling.trust_client_priority


def test_the_phases_are_told_apart_by_name() -> None:
    titles = {policy: phase_titles(policy)["tuned"] for policy in POLICIES}
    assert titles[SchedulingPolicy.SHORT_REQUEST_FIRST] == "tuned"
    assert len({*titles.values(), "FCFS"}) == len(POLICIES) + 1
