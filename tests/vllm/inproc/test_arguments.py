"""The arguments that the operator renders, read by vLLM's own parser."""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType
from typing import Any

import pytest
from vllm.utils.argparse_utils import FlexibleArgumentParser

from tests.support.golden_arguments import rendered_arguments

PLACES = ("common", "launchers", "openai")
"""Packages of vllm.entrypoints in which the supported releases keep their arguments, newest first."""

CASES = (
    ("vllm-prefill-decode", "chat-prefill", "kv_producer", "policy.json"),
    ("vllm-prefill-decode", "chat-decode", "kv_consumer", "decode.json"),
    ("vllm-mixed", "assistant-mixed", None, "policy.json"),
)


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
    assert parsed.middleware == ["prefleet_runtime.vllm.front.DrainFront"]


def test_a_middleware_of_the_users_stays() -> None:
    parsed = parse(["--middleware", "own.Front", *rendered_arguments("vllm-mixed", "assistant-mixed")])
    assert parsed.middleware == ["own.Front", "prefleet_runtime.vllm.front.DrainFront"]


SETTING = {"enabled": True, "threshold": 900, "long_max_wait_ms": 4000}
ASCEND = (
    (
        "vllm-ascend-mixed-0.24.0rc1",
        "mixed",
        None,
        {"enable_cpu_binding": True, "recompute_scheduler_enable": True, "short_request_first_config": SETTING},
    ),
    (
        "vllm-ascend-mixed-0.25.1rc1",
        "mixed",
        None,
        {"scheduler_config": {"enable_balance_scheduling": True, "short_request_first_config": SETTING}},
    ),
    (
        "vllm-ascend-prefill-decode-0.25.1rc1",
        "prefill",
        "kv_producer",
        {"scheduler_config": {"short_request_first_config": SETTING}},
    ),
    ("vllm-ascend-prefill-decode-0.25.1rc1", "decode", "kv_consumer", {}),
    ("vllm-ascend-mixed-fcfs-image", "mixed", None, {}),
)


@pytest.mark.parametrize(("case", "role", "kv_role", "additional"), ASCEND, ids=[f"{c[0]} {c[1]}" for c in ASCEND])
def test_vllm_understands_what_is_rendered_for_its_ascend_plugin(
    case: str, role: str, kv_role: str | None, additional: dict[str, Any]
) -> None:
    parsed = parse(rendered_arguments(case, f"assistant-{role}"))
    kv: Any = parsed.kv_transfer_config
    assert parsed.additional_config == additional
    assert (kv and (kv.kv_connector, kv.kv_role)) == (kv_role and ("MooncakeConnectorV1", kv_role))
    assert kv is None or kv.kv_connector_extra_config == {
        "prefill": {"dp_size": 1, "tp_size": 2},
        "decode": {"dp_size": 1, "tp_size": 1},
    }
    assert (parsed.host, parsed.port, parsed.shutdown_timeout) == ("0.0.0.0", 8000, 300)


def test_an_abbreviated_argument_of_the_users_does_not_win() -> None:
    parsed = parse(["--served-model", "other", "--por", "1", *rendered_arguments("vllm-mixed", "assistant-mixed")])
    assert (parsed.served_model_name, parsed.port) == (["assistant"], 8000)
