"""vLLM, stock or in an image of the user's, with the scheduling runtime plugged in by --scheduler-cls.

Roles. Prefill pods produce KV and decode pods consume it through NixlConnector; kv_both is deprecated, and the
buffer's device is left to the connector, which takes the platform's own. Each pod listens for the other side on
its own address (VLLM_NIXL_SIDE_CHANNEL_HOST; the default is loopback, which only works within one node). Decode
pods read decode.json, so that their queue stays first come first served.

Arguments. The user's come first and the operator's last: the last one counts, whatever the spelling. The JSON of
--additional-config is merged, as vLLM has only one.

Several nodes. vLLM's own multiprocessing spreads one engine over the pods of a group, each told its rank and the
leader's address (LeaderWorkerSet sets the variables); stock images bring no Ray. Rank 0 schedules and serves; the
others run `vllm serve --headless`, which the server's module cannot. They resolve no scheduler and are not asked
for a policy, so they get neither. How many accelerators an engine has in all stays the user's argument
(--tensor-parallel-size, --pipeline-parallel-size), of which every node takes an equal part.

Times. Large models take half an hour to load from slow storage, so a start may take 40 minutes. --shutdown-timeout
lets running requests end when the pod is told to stop, and KV that is held for a decode pod be fetched; without it vLLM
aborts them. What still comes then is aborted whatever it says, so the pod's preStop waits until nothing is unfinished;
--middleware makes clients that keep connections leave meanwhile.
"""

from __future__ import annotations

import json
from dataclasses import replace
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
    DRAIN_S,
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

_SCHEDULER = "prefleet_runtime.vllm.scheduler.make_scheduler"
_FRONT = "prefleet_runtime.vllm.front.DrainFront"
KV_ROLES = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


class VLLM:
    """Engine type VLLM."""

    metrics: EngineMetrics | None = None

    def warnings(self, spec: PrefillPolicySpec) -> tuple[str, ...]:
        """None: it does what the runtime does."""
        return ()

    def container(self, pod: PodRequest) -> EngineContainer:
        """The OpenAI server's container."""
        source = pod.spec.model.source or ModelSource()
        container = EngineContainer(
            image=pod.spec.engine.image or f"vllm/vllm-openai:v{pod.spec.engine.version}",
            command=("python3", "-m", "vllm.entrypoints.openai.api_server"),
            args=_arguments(pod, source),
            ports=(("http", HTTP_PORT), ("prefleet", EXPORTER_PORT), *_nixl_ports(pod.role)),
            env=(*model_files.hub_env(source), *_nixl_env(pod.role)),
            volumes=model_files.volumes(source),
            mounts=model_files.mounts(source),
            brings_runtime=True,
            runtime_modules=tuple(plugged.rpartition(".")[0] for plugged in (_SCHEDULER, _FRONT)),
            tells_unfinished=True,
        )
        return container if _nodes(pod) == 1 else _over_nodes(container, pod, source)


def _nodes(pod: PodRequest) -> int:
    return pod.spec.roles()[pod.role].nodes_per_replica


def _over_nodes(single: EngineContainer, pod: PodRequest, source: ModelSource) -> EngineContainer:
    """The leader's container, and with it the workers', of an engine that one pod would run as `single`."""
    leader = replace(
        single,
        args=(*single.args, *_node_arguments(pod, "0")),
        # What the other nodes connect to; vLLM's own guess asks for a route to the Internet.
        env=(*single.env, env_field("VLLM_HOST_IP", "status.podIP")),
    )
    worker = replace(
        leader,
        command=("python3", "-m", "vllm.entrypoints.cli.main", "serve"),
        args=(*_worker_arguments(pod, source), *_node_arguments(pod, "$(LWS_WORKER_INDEX)"), "--headless"),
        ports=(),
        brings_runtime=False,
        tells_unfinished=False,
        leads=False,
    )
    return replace(leader, worker=worker)


def _node_arguments(pod: PodRequest, rank: str) -> tuple[str, ...]:
    return (
        *("--distributed-executor-backend", "mp"),
        *("--nnodes", str(_nodes(pod))),
        *("--node-rank", rank),
        *("--master-addr", "$(LWS_LEADER_ADDRESS)"),
    )


def _worker_arguments(pod: PodRequest, source: ModelSource) -> tuple[str, ...]:
    """The leader's, less what concerns serving and scheduling."""
    given, additional = split_additional_config(pod.spec.roles()[pod.role].args, pod.role)
    return (
        *given,
        *_model_arguments(pod, source),
        *((MERGED_ARGUMENT, json.dumps(additional, sort_keys=True)) if additional else ()),
        *_kv_arguments(pod.role),
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
        *server_arguments(pod, source),
        *("--scheduler-cls", _SCHEDULER),
        *("--middleware", _FRONT),
        *(MERGED_ARGUMENT, json.dumps(additional, sort_keys=True)),
        *_kv_arguments(pod.role),
    )


def _model_arguments(pod: PodRequest, source: ModelSource) -> tuple[str, ...]:
    return (
        *("--model", model_files.model_place(source)),
        *model_files.revision_arguments(source),
        *("--served-model-name", pod.spec.model.served_name),
    )


def server_arguments(pod: PodRequest, source: ModelSource) -> tuple[str, ...]:
    """What every server of vLLM's is told, whatever schedules in it."""
    return (
        *_model_arguments(pod, source),
        *("--host", "0.0.0.0"),
        *("--port", str(HTTP_PORT)),
        *("--shutdown-timeout", str(DRAIN_S)),
    )


def _kv_arguments(role: Role) -> tuple[str, ...]:
    if role not in KV_ROLES:
        return ()
    config = {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[role]}
    return ("--kv-transfer-config", json.dumps(config, sort_keys=True))


def _nixl_ports(role: Role) -> tuple[tuple[str, int], ...]:
    return (("nixl", NIXL_PORT),) if role in KV_ROLES else ()


def _nixl_env(role: Role) -> tuple[Object, ...]:
    if role not in KV_ROLES:
        return ()
    return (
        env_field("VLLM_NIXL_SIDE_CHANNEL_HOST", "status.podIP"),
        env_value("VLLM_NIXL_SIDE_CHANNEL_PORT", str(NIXL_PORT)),
    )
