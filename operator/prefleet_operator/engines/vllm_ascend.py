"""vLLM with the Ascend plugin, whose own ShortRequestFirst orders the queue.

How it is told. By the JSON of --additional-config, at the start: `scheduler_config.short_request_first_config` from
0.25.1rc1 on, a key of its own beside `recompute_scheduler_enable` in 0.24.0rc1, and not at all before. Prefill and
mixed pods are told; a decode pod would end at its start with an error. `enabled` is a real boolean: any text counts
as true. It compares raw prompt tokens, and lets a request past its limit go before all short ones.

Metrics. vLLM's own: it has none of its lanes. A scrape may spell `vllm:` as `vllm_`.

Prefill and decode hand over by MooncakeConnectorV1, whose two sides are told each other's tensor parallelism, here
taken from the users' arguments. A router passes on `kv_transfer_params` as for vLLM.
"""

from __future__ import annotations

import json
from typing import Any, Final

from prefleet_operator.api import (
    MERGED_ARGUMENT,
    TOP_LEVEL_VLLM_ASCEND,
    InvalidSpecError,
    ModelSource,
    PrefillPolicySpec,
    Role,
    SchedulingPolicy,
)
from prefleet_operator.core.engine_metrics import EngineMetrics
from prefleet_operator.core.native_policy import NativePolicy
from prefleet_operator.engines import model_files
from prefleet_operator.engines.base import HTTP_PORT, EngineContainer, PodRequest
from prefleet_operator.engines.user_arguments import has_flag, option_value, split_additional_config
from prefleet_operator.engines.vllm import KV_ROLES, server_arguments

_KV_PORT: Final = 30000
_NESTED: Final = "scheduler_config"
_SETTING: Final = "short_request_first_config"

VLLM_METRICS: Final = EngineMetrics(
    port=HTTP_PORT,
    prompt_lengths=("vllm:request_prompt_tokens", "vllm_request_prompt_tokens"),
    uncached_lengths=("vllm:request_prefill_kv_computed_tokens", "vllm_request_prefill_kv_computed_tokens"),
    queue_waits=("vllm:request_queue_time_seconds", "vllm_request_queue_time_seconds"),
    first_token=("vllm:time_to_first_token_seconds", "vllm_time_to_first_token_seconds"),
    waiting=("vllm:num_requests_waiting", "vllm_num_requests_waiting"),
    running=("vllm:num_requests_running", "vllm_num_requests_running"),
    kv_usage=(
        "vllm:kv_cache_usage_perc",
        "vllm_kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "vllm_gpu_cache_usage_perc",
    ),
    rank="engine",
)


class VLLMAscend:
    """Engine type VLLMAscend."""

    metrics: EngineMetrics | None = VLLM_METRICS

    def warnings(self, spec: PrefillPolicySpec) -> tuple[str, ...]:
        """None: what it would ignore is refused."""
        return ()

    def container(self, pod: PodRequest) -> EngineContainer:
        """The OpenAI server's container."""
        source = pod.spec.model.source or ModelSource()
        return EngineContainer(
            image=pod.spec.engine.image or f"quay.io/ascend/vllm-ascend:v{pod.spec.engine.version}",
            command=("python3", "-m", "vllm.entrypoints.openai.api_server"),
            args=_arguments(pod, source),
            ports=(("http", HTTP_PORT), *((("kv", _KV_PORT),) if pod.role in KV_ROLES else ())),
            env=model_files.hub_env(source),
            volumes=model_files.volumes(source),
            mounts=model_files.mounts(source),
            reads_policy=False,
        )


def _arguments(pod: PodRequest, source: ModelSource) -> tuple[str, ...]:
    given, additional = split_additional_config(pod.args, pod.role)
    _check(pod, given, additional)
    if pod.role is not Role.DECODE:
        additional |= _scheduling(pod.native, pod.spec.engine.version, additional)
    return (
        *given,
        *server_arguments(pod, source),
        *((MERGED_ARGUMENT, json.dumps(additional, sort_keys=True)) if additional else ()),
        *_kv_arguments(pod),
    )


def _scheduling(policy: NativePolicy, version: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """What is to stand in --additional-config so that the engine runs `policy`; nothing under FCFS."""
    if policy.policy is not SchedulingPolicy.SHORT_REQUEST_FIRST:
        return {}
    setting = {"enabled": True, "threshold": policy.threshold, "long_max_wait_ms": policy.long_max_wait_ms}
    if version == TOP_LEVEL_VLLM_ASCEND:
        return {_SETTING: setting, "recompute_scheduler_enable": True}
    return {_NESTED: given.get(_NESTED, {}) | {_SETTING: setting}}


def _check(pod: PodRequest, given: list[str], additional: dict[str, Any]) -> None:
    """Refuse what contradicts the operator's setting, and what ends the engine at its start beside it."""
    nested = additional.get(_NESTED, {})
    where = f"spec.{pod.role.value}.args"
    if not isinstance(nested, dict):
        raise InvalidSpecError(f"{where}: {_NESTED} in {MERGED_ARGUMENT} is no JSON object: write one or remove it")
    keys = additional.keys() | nested.keys()
    if _SETTING in keys:
        raise InvalidSpecError(f"{where}: remove {_SETTING} from {MERGED_ARGUMENT}: the operator adds it")
    if pod.spec.scheduling.policy is not SchedulingPolicy.SHORT_REQUEST_FIRST or pod.role is Role.DECODE:
        return
    if "batch_job_sched_config" in keys:
        raise InvalidSpecError(
            f"{where}: remove batch_job_sched_config from {MERGED_ARGUMENT}: VLLMAscend does not start with it "
            "beside ShortRequestFirst"
        )
    if "profiling_chunk_config" in keys and not has_flag(given, "--no-async-scheduling"):
        raise InvalidSpecError(
            f"{where}: remove profiling_chunk_config from {MERGED_ARGUMENT} or add --no-async-scheduling: VLLMAscend "
            "does not start with it beside ShortRequestFirst and asynchronous scheduling"
        )


def _kv_arguments(pod: PodRequest) -> tuple[str, ...]:
    if pod.role not in KV_ROLES:
        return ()
    config = {
        "kv_connector": "MooncakeConnectorV1",
        "kv_role": KV_ROLES[pod.role],
        "kv_port": str(_KV_PORT),
        "kv_connector_extra_config": {
            role.value: {"dp_size": 1, "tp_size": _tensor_parallelism(role, spec.args)}
            for role, spec in pod.spec.roles().items()
        },
    }
    return ("--kv-transfer-config", json.dumps(config, sort_keys=True))


def _tensor_parallelism(role: Role, args: list[str]) -> int:
    value = option_value(args, "--tensor-parallel-size", "-tp")
    if value is None:
        return 1
    if not value.isdecimal():
        raise InvalidSpecError(f"spec.{role.value}.args: --tensor-parallel-size is {value!r}: write a whole number")
    return int(value)
