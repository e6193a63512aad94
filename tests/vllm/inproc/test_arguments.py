"""The arguments that the operator renders, read by vLLM's own parser."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from vllm.utils.argparse_utils import FlexibleArgumentParser

PLACES = ("common", "launchers", "openai")
"""Packages of vllm.entrypoints in which the supported releases keep their arguments, newest first."""

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = (
    ("vllm-prefill-decode", "chat-prefill", "kv_producer", "policy.json"),
    ("vllm-prefill-decode", "chat-decode", "kv_consumer", "decode.json"),
    ("vllm-mixed", "assistant-mixed", None, "policy.json"),
)


def rendered_arguments(case: str, name: str) -> list[str]:
    documents = yaml.safe_load_all((GOLDEN / case / "manifests.yaml").read_text())
    deployment = next(d for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"] == name)
    args: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return args


def serve_arguments() -> ModuleType:
    for place in PLACES:
        try:
            return importlib.import_module(f"vllm.entrypoints.{place}.cli_args")
        except ModuleNotFoundError:
            continue
    raise AssertionError(f"this release keeps its arguments in none of {PLACES}")


def parse(arguments: list[str]) -> argparse.Namespace:
    module = serve_arguments()
    parsed: argparse.Namespace = module.make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    module.validate_parsed_serve_args(parsed)
    return parsed


@pytest.mark.parametrize(("case", "name", "kv_role", "policy_file"), CASES, ids=[case[1] for case in CASES])
def test_vllm_understands_what_is_rendered(case: str, name: str, kv_role: str | None, policy_file: str) -> None:
    parsed = parse(rendered_arguments(case, name))
    kv: Any = parsed.kv_transfer_config
    assert parsed.scheduler_cls == "prefleet_runtime.vllm.scheduler.make_scheduler"
    assert parsed.additional_config["prefleet"]["policy_file"] == f"/etc/prefleet/policy/{policy_file}"
    assert (kv and kv.kv_role) == kv_role
    assert (parsed.host, parsed.port, parsed.shutdown_timeout) == ("0.0.0.0", 8000, 300)


def test_an_abbreviated_argument_of_the_users_does_not_win() -> None:
    parsed = parse(["--served-model", "other", "--por", "1", *rendered_arguments("vllm-mixed", "assistant-mixed")])
    assert (parsed.served_model_name, parsed.port) == (["assistant"], 8000)
