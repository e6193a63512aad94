"""vLLM, stock or in an image of the user's, with the scheduling runtime plugged in by --scheduler-cls.

Roles. Prefill pods produce KV and decode pods consume it through NixlConnector; kv_both is deprecated, and the
buffer's device is left to the connector, which takes the platform's own. Each pod listens for the other side on
its own address (VLLM_NIXL_SIDE_CHANNEL_HOST; the default is loopback, which only works within one node). Decode
pods read decode.json, so that their queue stays first come first served.

Arguments. The user's come first and the operator's last: the last one counts, whatever the spelling. The JSON of
--additional-config is merged, as vLLM has only one.

Times. Large models take half an hour to load from slow storage, so a start may take 40 minutes. --shutdown-timeout
lets running requests end when the pod is told to stop; without it vLLM aborts them.
"""

from __future__ import annotations

import json
from typing import Final

from prefleet_operator.api import (
    MERGED_ARGUMENT,
    RUNTIME_SETTINGS_KEY,
    InvalidSpecError,
    ModelSource,
    PrefillPolicySpec,
    Role,
)
from prefleet_operator.core.engine_metrics import EngineMetrics
from prefleet_operator.engines import model_files
from prefleet_operator.engines.base import (
    EXPORTER_PORT,
    HTTP_PORT,
    EngineContainer,
    Object,
    PodRequest,
    env_field,
    env_value,
    policy_path,
)
from prefleet_operator.engines.user_arguments import split_additional_config

NIXL_PORT: Final = 5600

_STARTUP_PERIOD_S = 5
_STARTUP_LIMIT_S = 2400
_DRAIN_S = 300
_SCHEDULER = "prefleet_runtime.vllm.scheduler.make_scheduler"
_KV_ROLES = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


class VLLM:
    """Engine type VLLM."""

    metrics: EngineMetrics | None = None

    def warnings(self, spec: PrefillPolicySpec) -> tuple[str, ...]:
        """None: it does what the runtime does."""
        return ()

    def container(self, pod: PodRequest) -> EngineContainer:
        """The OpenAI server's container."""
        source = pod.spec.model.source or ModelSource()
        return EngineContainer(
            image=pod.spec.engine.image or f"vllm/vllm-openai:v{pod.spec.engine.version}",
            command=("python3", "-m", "vllm.entrypoints.openai.api_server"),
            args=_arguments(pod, source),
            ports=(("http", HTTP_PORT), ("prefleet", EXPORTER_PORT), *_nixl_ports(pod.role)),
            startup_period_s=_STARTUP_PERIOD_S,
            startup_limit_s=_STARTUP_LIMIT_S,
            drain_s=_DRAIN_S,
            env=(*model_files.hub_env(source), *_nixl_env(pod.role)),
            volumes=model_files.volumes(source),
            mounts=model_files.mounts(source),
            brings_runtime=True,
        )


def _arguments(pod: PodRequest, source: ModelSource) -> tuple[str, ...]:
    given, additional = split_additional_config(pod.args, pod.role)
    if RUNTIME_SETTINGS_KEY in additional:
        raise InvalidSpecError(
            f'spec.{pod.role.value}.args: remove "{RUNTIME_SETTINGS_KEY}" from {MERGED_ARGUMENT}: the operator adds it'
        )
    additional[RUNTIME_SETTINGS_KEY] = {
        "policy_file": policy_path(pod.role),
        "exporter_host": "0.0.0.0",
        "exporter_port": EXPORTER_PORT,
    }
    return (
        *given,
        *("--model", model_files.model_place(source)),
        *model_files.revision_arguments(source),
        *("--served-model-name", pod.spec.model.served_name),
        *("--host", "0.0.0.0"),
        *("--port", str(HTTP_PORT)),
        *("--shutdown-timeout", str(_DRAIN_S)),
        *("--scheduler-cls", _SCHEDULER),
        *(MERGED_ARGUMENT, json.dumps(additional, sort_keys=True)),
        *_kv_arguments(pod.role),
    )


def _kv_arguments(role: Role) -> tuple[str, ...]:
    if role not in _KV_ROLES:
        return ()
    config = {"kv_connector": "NixlConnector", "kv_role": _KV_ROLES[role]}
    return ("--kv-transfer-config", json.dumps(config, sort_keys=True))


def _nixl_ports(role: Role) -> tuple[tuple[str, int], ...]:
    return (("nixl", NIXL_PORT),) if role in _KV_ROLES else ()


def _nixl_env(role: Role) -> tuple[Object, ...]:
    if role not in _KV_ROLES:
        return ()
    return (
        env_field("VLLM_NIXL_SIDE_CHANNEL_HOST", "status.podIP"),
        env_value("VLLM_NIXL_SIDE_CHANNEL_PORT", str(NIXL_PORT)),
    )
