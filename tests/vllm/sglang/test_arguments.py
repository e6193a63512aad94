"""The arguments that the operator renders for SGLang, read by SGLang's own parser."""

from __future__ import annotations

import argparse

import pytest
from sglang.srt.server_args import ServerArgs

from tests.support.golden_arguments import rendered_arguments

CASES = (
    ("sglang-mixed-hrrn-0.5.23", "mixed", "hrrn", "null"),
    ("sglang-mixed-fcfs", "mixed", "fcfs", "null"),
    ("sglang-prefill-decode-shortest-prefill-first-0.5.23", "prefill", "shortest-prefill-first", "prefill"),
    ("sglang-prefill-decode-shortest-prefill-first-0.5.23", "decode", "fcfs", "decode"),
)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(("case", "role", "policy", "mode"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_sglang_understands_what_is_rendered(case: str, role: str, policy: str, mode: str) -> None:
    parsed = parse(rendered_arguments(case, f"assistant-{role}"))
    assert (parsed.schedule_policy, parsed.disaggregation_mode) == (policy, mode)
    assert (parsed.model_path, parsed.revision, parsed.served_model_name) == ("owner/model", "v2", "assistant")
    assert (parsed.host, parsed.port, parsed.enable_metrics) == ("0.0.0.0", 8000, True)


def test_an_abbreviated_argument_of_the_users_does_not_win() -> None:
    arguments = rendered_arguments("sglang-mixed-hrrn-0.5.23", "assistant-mixed")
    parsed = parse(["--schedule-pol", "lof", "--por", "1", *arguments])
    assert (parsed.schedule_policy, parsed.port) == ("hrrn", 8000)


def test_the_parser_refuses_what_no_release_knows() -> None:
    with pytest.raises(SystemExit):
        parse([*rendered_arguments("sglang-mixed-fcfs", "assistant-mixed"), "--schedule-policy", "short-request-first"])
