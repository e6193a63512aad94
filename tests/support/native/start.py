"""How each engine is started: its real arguments, or MindIE's config.json, -> `Start`; what it refuses, it refuses.

Facts of the engines are those of their documents and sources: names, defaults, ranges, and what ends a start. Other
arguments are taken as given, since no engine's full list is kept here.

The policies are the runtime's own queues under the plain rules: VLLMAscend's ShortRequestFirst compares raw prompt
tokens and lets aged-long requests go before all short ones. Quirks that are kept: any `enabled` but an empty one
counts as true; 0.24.0rc1 reads the setting at the top level, beside `recompute_scheduler_enable`, and drops it
silently on a kv_producer; SGLang runs hrrn as fcfs, without a word, with the radix cache off. Left out: that SGLang
does so above 128 waiting requests, and its order by shortest prefill, for which promote_shortest stands (it puts one
request first and not all).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefleet_runtime.contract import LengthKind, LongChunk, PolicyName, RuntimePolicy, TptStage
from prefleet_runtime.sim.state import Limits

RELEASE_VARIABLE = "STAND_IN_RELEASE"
"""The release of VLLMAscend that the image is of."""

SRF_KEYS = {"enabled", "threshold", "long_max_wait_ms"}
SGLANG_POLICIES = {
    "fcfs": PolicyName.FCFS,
    "hrrn": PolicyName.HRRN,
    "shortest-prefill-first": PolicyName.PROMOTE_SHORTEST,
}
LIGHTLLM_STRATEGIES = {
    "default": PolicyName.FCFS,
    "promote_shortest": PolicyName.PROMOTE_SHORTEST,
    "hrrn": PolicyName.HRRN,
}


class RefusedError(Exception):
    """The engine ends at its start; the message is its last line."""


@dataclass(frozen=True)
class Start:
    """How a server runs: `ports` by what they serve; `role` as in `sim.server`; `metrics`: whether any are served."""

    flavour: str
    host: str
    ports: Mapping[str, int]
    model: str
    role: str
    policy: RuntimePolicy
    limits: Limits = field(default_factory=Limits)
    metrics: bool = True


def read_start(flavour: str, arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Start:
    """What the engine makes of its arguments (MindIE: of the file that its environment names).

    Raises:
        RefusedError: it does not start so.
    """
    match flavour:
        case "vllm-ascend":
            return _vllm_ascend(arguments, environment.get(RELEASE_VARIABLE, "0.25.1rc1"))
        case "sglang":
            return _sglang(arguments)
        case "lightllm":
            return _lightllm(arguments)
        case "mindie":
            return _mindie(environment)
    raise RefusedError(f"there is no flavour {flavour}")


# --- vLLM Ascend


def _vllm_ascend(arguments: Sequence[str], release: str) -> Start:
    parser = _parser("vllm")
    parser.add_argument("--model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--scheduling-policy", choices=["fcfs", "priority"], default="fcfs")
    parser.add_argument("--additional-config", type=json.loads, default={})
    parser.add_argument("--kv-transfer-config", type=json.loads, default={})
    parser.add_argument("--max-num-batched-tokens", type=int, default=Limits().max_num_batched_tokens)
    parser.add_argument("--max-num-seqs", type=int, default=Limits().max_num_seqs)
    parser.add_argument("--no-async-scheduling", action="store_true")
    given, _ = parser.parse_known_args(arguments)
    kv_role = given.kv_transfer_config.get("kv_role")
    return Start(
        flavour="vllm-ascend",
        host=given.host,
        ports={"http": given.port},
        model=given.served_model_name or given.model,
        role={"kv_producer": "prefill", "kv_consumer": "decode"}.get(kv_role, "mixed"),
        policy=_short_request_first(given, kv_role, release),
        limits=Limits(max_num_batched_tokens=given.max_num_batched_tokens, max_num_seqs=given.max_num_seqs),
    )


def _short_request_first(given: argparse.Namespace, kv_role: str | None, release: str) -> RuntimePolicy:
    config = given.additional_config
    nested = config.get("scheduler_config", {})
    setting = config.get("short_request_first_config")
    if release == "0.24.0rc1":
        if not config.get("recompute_scheduler_enable") or kv_role == "kv_producer":
            return _policy(PolicyName.FCFS)
    else:
        setting = nested.get("short_request_first_config", setting)
    if setting is None:
        return _policy(PolicyName.FCFS)
    if unknown := sorted(setting.keys() - SRF_KEYS):
        raise RefusedError(f"short_request_first_config has unknown keys {unknown}")
    threshold, wait_ms = setting.get("threshold", 256), setting.get("long_max_wait_ms", 0)
    if not isinstance(threshold, int) or threshold < 0:
        raise RefusedError("short_request_first_config.threshold must be a non-negative integer")
    if not isinstance(wait_ms, int | float) or wait_ms < 0:
        raise RefusedError("short_request_first_config.long_max_wait_ms must be a non-negative number")
    if not setting.get("enabled"):
        return _policy(PolicyName.FCFS)
    keys = config.keys() | nested.keys()
    if given.scheduling_policy != "fcfs":
        raise RefusedError("short_request_first_config needs --scheduling-policy fcfs")
    if kv_role == "kv_consumer":
        raise RefusedError("short_request_first_config is not supported on a kv_consumer")
    if "batch_job_sched_config" in keys:
        raise RefusedError("short_request_first_config and batch_job_sched_config exclude each other")
    if "profiling_chunk_config" in keys and not given.no_async_scheduling:
        raise RefusedError("short_request_first_config and profiling_chunk_config need --no-async-scheduling")
    return _policy(PolicyName.SHORT_REQUEST_FIRST, threshold=max(1, threshold), long_max_wait_ms=round(wait_ms))


# --- SGLang and LightLLM


def _sglang(arguments: Sequence[str]) -> Start:
    parser = _parser("sglang")
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--served-model-name")
    parser.add_argument("--schedule-policy", choices=SGLANG_POLICIES, default="fcfs")
    parser.add_argument("--disaggregation-mode", choices=["null", "prefill", "decode"], default="null")
    parser.add_argument("--enable-metrics", action="store_true")
    parser.add_argument("--disable-radix-cache", action="store_true")
    given, _ = parser.parse_known_args(arguments)
    policy = SGLANG_POLICIES[given.schedule_policy]
    if policy is PolicyName.HRRN and given.disable_radix_cache:
        policy = PolicyName.FCFS
    mode = given.disaggregation_mode
    return Start(
        flavour="sglang",
        host=given.host,
        ports={"http": given.port},
        model=given.served_model_name or given.model_path,
        role="mixed" if mode == "null" else mode,
        policy=_policy(policy),
        metrics=given.enable_metrics,
    )


def _lightllm(arguments: Sequence[str]) -> Start:
    parser = _parser("lightllm")
    parser.add_argument("--run_mode", choices=["normal"], default="normal")
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--model_name", default="default_model_name")
    parser.add_argument("--prefill_queue_strategy", choices=LIGHTLLM_STRATEGIES, default="default")
    parser.add_argument("--batch_max_tokens", type=int, default=16384)
    parser.add_argument("--chunked_prefill_size", type=int)
    given, _ = parser.parse_known_args(arguments)
    chunk = given.batch_max_tokens // 2 if given.chunked_prefill_size is None else given.chunked_prefill_size
    if chunk > given.batch_max_tokens:
        raise RefusedError("chunked_prefill_size must be <= batch_max_tokens")
    return Start(
        flavour="lightllm",
        host=given.host,
        ports={"http": given.port},
        model=given.model_name,
        role="mixed",
        policy=_policy(LIGHTLLM_STRATEGIES[given.prefill_queue_strategy]),
        limits=Limits(max_num_batched_tokens=given.batch_max_tokens, whole_chunks=chunk),
    )


# --- MindIE

RANGES = {
    "prefillTimeMsPerReq": (150, 0, 1000),
    "decodeTimeMsPerReq": (50, 0, 1000),
    "maxBatchSize": (200, 1, 5000),
    "maxPrefillBatchSize": (50, 1, 5000),
    "maxPrefillTokens": (8192, 1, 512000),
    "maxQueueDelayMicroseconds": (5000, 500, 1_000_000),
    "stageSelectPolicy": (0, 0, 2),
    "prefillExpectedTime": (1500, 1, 10000),
    "decodeExpectedTime": (50, 1, 10000),
    "prefillPolicyType": (0, 0, 0),
    "decodePolicyType": (0, 0, 0),
}
"""Of ScheduleConfig: default, least and greatest."""


def _mindie(environment: Mapping[str, str]) -> Start:
    config = json.loads(Path(environment["MIES_CONFIG_JSON_PATH"]).read_text())
    server, backend = config["ServerConfig"], config["BackendConfig"]
    schedule: dict[str, Any] = backend.get("ScheduleConfig", {})
    values = {}
    for name, (usual, least, most) in RANGES.items():
        value = values[name] = schedule.get(name, usual)
        if not isinstance(value, int) or not least <= value <= most:
            raise RefusedError(f"ScheduleConfig.{name} is {value!r}: it must be in [{least}, {most}]")
    selects = schedule.get("supportSelectBatch", False)
    if not isinstance(selects, bool):
        raise RefusedError(f"ScheduleConfig.supportSelectBatch is {selects!r}: it must be true or false")
    stage = None
    if selects and schedule.get("templateType", "Standard") != "Mix":
        # The runtime's formula needs a prefill that costs something; MindIE's 0 lets every prefill go first.
        stage = TptStage(
            type="tpt",
            prefill_ms_per_request=values["prefillTimeMsPerReq"] or 1e-6,
            decode_ms_per_request=values["decodeTimeMsPerReq"],
            max_batch=values["maxBatchSize"],
        )
    (model,) = backend["ModelDeployConfig"]["ModelConfig"]
    return Start(
        flavour="mindie",
        host=environment.get("MIES_CONTAINER_IP", server.get("ipAddress", "127.0.0.1")),
        ports={"http": server["port"], "management": server["managementPort"], "metrics": server["metricsPort"]},
        model=model["modelName"],
        role="mixed",
        policy=_policy(PolicyName.FCFS) if stage is None else _policy(PolicyName.FCFS, stage=stage),
        limits=Limits(max_num_batched_tokens=values["maxPrefillTokens"], max_num_seqs=values["maxBatchSize"]),
        metrics=environment.get("MIES_SERVICE_MONITOR_MODE") == "1",
    )


# --- what they share


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    return parser


def _policy(name: PolicyName, **values: Any) -> RuntimePolicy:
    """The queue of the name under the plain rules, steps left to the engine."""
    plain: dict[str, Any] = {"aged_share": 1.0, "length": LengthKind.PROMPT, "long_chunk": LongChunk.OFF}
    return RuntimePolicy(generation=0, policy=name, **(plain | values))
