"""MindIE's server, whose stage policy decides between prefill and decode, and which has one queue order.

How it is told. By ScheduleConfig in its config.json, read at the start. The image's own file is kept but for what the
operator and the user lay over it: the container begins with a few lines that merge the JSON objects in its arguments
into a copy, of which MindIE learns by MIES_CONFIG_JSON_PATH. They stand in the pod and in no ConfigMap, since a
container that starts again must start as its pod was told, not as a later one is.

- `stage: TPT`: supportSelectBatch with the two times, pinned or as slo.interTokenGap asks (`core.stage_times`).
- `stage: Latency`: the policy that picks the stage nearer to missing slo.shortTTFT or slo.interTokenGap.
- `stage: Mixed`: as the image has it.

Split-fuse ignores every stage policy, so it is refused beside one.

Mixed pods alone: prefill and decode pods are joined by MindIE's controller and coordinator, which nothing here renders.
Health and metrics are on ports of their own, on the pod's address. Names of metrics have no prefix of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from prefleet_operator.api import InvalidSpecError, ModelSource, PrefillPolicySpec, StageType, format_duration
from prefleet_operator.core.engine_metrics import EngineMetrics
from prefleet_operator.core.native_policy import LatencyTargets, NativePolicy, TptTimes
from prefleet_operator.core.stage_times import DECODE_COST_MS, PREFILL_COST_MS, is_pinned, stage_times
from prefleet_operator.engines import model_files
from prefleet_operator.engines.base import HTTP_PORT, EngineContainer, Object, PodRequest, env_field, env_value
from prefleet_operator.engines.user_arguments import json_object

MANAGEMENT_PORT: Final = 1026
METRICS_PORT: Final = 1027
CONFIG_FILE: Final = "/tmp/prefleet-mindie-config.json"

_MAX_PREFILL_BATCH = 50

_MERGE: Final = """\
import json, os, sys

def merge(old, new):
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: merge(old.get(key), value) for key, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [merge(*pair) for pair in zip(old, new)]
    return new

source, target, *parts = sys.argv[1:]
with open(source) as file:
    config = json.load(file)
for part in parts:
    config = merge(config, json.loads(part))
with open(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o640), "w") as file:
    json.dump(config, file, indent=4)
"""

_START: Final = """\
for setting in ascend-toolkit nnal/atb atb-models mindie; do
  if [ -f "/usr/local/Ascend/$setting/set_env.sh" ]; then . "/usr/local/Ascend/$setting/set_env.sh"; fi
done
home="${MIES_INSTALL_PATH:-/usr/local/Ascend/mindie/latest/mindie-service}"
merge="$1"
shift
python3 -c "$merge" "$home/conf/config.json" "$MIES_CONFIG_JSON_PATH" "$@" || exit 1
cd "$home" && exec ./bin/mindieservice_daemon
"""


class MindIE:
    """Engine type MindIE."""

    metrics: EngineMetrics | None = EngineMetrics(
        port=METRICS_PORT,
        prompt_lengths=("request_prompt_tokens",),
        first_token=("time_to_first_token_seconds",),
        waiting=("num_requests_waiting",),
        running=("num_requests_running",),
        kv_usage=("npu_cache_usage_perc",),
    )

    def warnings(self, spec: PrefillPolicySpec) -> tuple[str, ...]:
        """What TPT's pair, pinned or derived, does to running answers."""
        if spec.scheduling.stage.type is not StageType.TPT:
            return ()
        times = stage_times(spec)
        told = f"prefillTimeMsPerReq {times.prefill_ms} and decodeTimeMsPerReq {times.decode_ms}"
        if times.decode_steps_between(1) is None:
            return (f"scheduling.stage: with {told} MindIE never prefills while it decodes: raise decodePerRequest.",)
        if times.longest_gap_ms() <= spec.slo.inter_token_gap_s * 1000:
            return ()
        count = times.prefills_in_a_row
        if count > 1:
            fix = "leave both out" if is_pinned(spec.scheduling.stage) else "lower maxBatch or raise slo.interTokenGap"
            return (
                f"scheduling.stage puts prefill first: with {told} up to {count} prefills may come before a decode "
                f"step, more than slo.interTokenGap {spec.slo.inter_token_gap} has room for: {fix}.",
            )
        least = format_duration((PREFILL_COST_MS + DECODE_COST_MS) / 1000)
        return (
            f"slo.interTokenGap {spec.slo.inter_token_gap} has no room for one prefill before a decode step: write "
            f"{least} or more, or have MindIE prefill less at once (maxPrefillTokens).",
        )

    def container(self, pod: PodRequest) -> EngineContainer:
        """The server's container, which merges its configuration and then becomes the server."""
        source = pod.spec.model.source or ModelSource()
        own = _configuration(pod, source)
        return EngineContainer(
            image=pod.spec.engine.image or "",
            command=("bash", "-c", _START, "mindie", _MERGE),
            args=(*_users_parts(pod, own), json.dumps(own, sort_keys=True)),
            ports=(("http", HTTP_PORT), ("management", MANAGEMENT_PORT), ("metrics", METRICS_PORT)),
            env=(
                env_value("MIES_CONFIG_JSON_PATH", CONFIG_FILE),
                env_field("MIES_CONTAINER_IP", "status.podIP"),
                env_field("MIES_CONTAINER_MANAGEMENT_IP", "status.podIP"),
                env_value("MIES_SERVICE_MONITOR_MODE", "1"),
            ),
            volumes=model_files.volumes(source),
            mounts=model_files.mounts(source),
            reads_policy=False,
            health_port="management",
            ready_path="/v2/health/ready",
            live_path="/v2/health/live",
        )


def _configuration(pod: PodRequest, source: ModelSource) -> Object:
    """What the operator lays over the image's config.json."""
    accelerator = pod.spec.roles()[pod.role].accelerator
    model: Object = {"modelName": pod.spec.model.served_name, "modelWeightPath": model_files.model_place(source)}
    backend: Object = {"ModelDeployConfig": {"ModelConfig": [model]}}
    if accelerator is not None:
        model["worldSize"] = accelerator.count
        backend["npuDeviceIds"] = [list(range(accelerator.count))]
    if schedule := schedule_config(pod.native):
        backend["ScheduleConfig"] = schedule
    server = {
        "port": HTTP_PORT,
        "managementPort": MANAGEMENT_PORT,
        "metricsPort": METRICS_PORT,
        "httpsEnabled": False,
    }
    return {"ServerConfig": server, "BackendConfig": backend}


def schedule_config(policy: NativePolicy) -> Object:
    """MindIE's ScheduleConfig, as far as the policy says anything of it."""
    match policy.stage:
        case TptTimes(prefill_ms=prefill_ms, decode_ms=decode_ms, max_batch=max_batch):
            return {
                "supportSelectBatch": True,
                "prefillTimeMsPerReq": prefill_ms,
                "decodeTimeMsPerReq": decode_ms,
                "maxBatchSize": max_batch,
                "maxPrefillBatchSize": min(_MAX_PREFILL_BATCH, max_batch),
            }
        case LatencyTargets(first_token_ms=first_token_ms, token_gap_ms=token_gap_ms):
            return {
                "supportSelectBatch": False,
                "stageSelectPolicy": 2,
                "prefillExpectedTime": first_token_ms,
                "decodeExpectedTime": token_gap_ms,
            }
    return {}


def _users_parts(pod: PodRequest, own: Object) -> tuple[str, ...]:
    """The user's arguments, each a part of config.json.

    Raises:
        InvalidSpecError: one is no JSON object, or says what the operator says, or turns the stage policy off.
    """
    where = f"spec.{pod.role.value}.args"
    for arg in pod.args:
        part = json_object(arg, where, "JSON objects, each a part of MindIE's config.json")
        if (path := _shared_key(part, own)) is not None:
            raise InvalidSpecError(f"{where}: remove {path}: the operator writes it")
        if pod.native.stage is not None and _splits(part):
            raise InvalidSpecError(
                f"{where}: remove split-fuse or write scheduling.stage Mixed: with it MindIE ignores every stage policy"
            )
    return tuple(pod.args)


def _shared_key(given: Any, own: Any) -> str | None:
    """The path of a value that stands in both, the first by name: what is said must not change by itself."""
    if isinstance(given, list) and isinstance(own, list) and len(given) == len(own):
        return next((path for pair in zip(given, own, strict=True) if (path := _shared_key(*pair)) is not None), None)
    if not (isinstance(given, Mapping) and isinstance(own, Mapping)):
        return ""
    for key in sorted(given.keys() & own.keys()):
        below = _shared_key(given[key], own[key])
        if below is not None:
            return f"{key}.{below}".removesuffix(".")
    return None


def _splits(part: Object) -> bool:
    backend = part.get("BackendConfig")
    schedule = backend.get("ScheduleConfig") if isinstance(backend, Mapping) else None
    if isinstance(schedule, Mapping) and (schedule.get("templateType") == "Mix" or schedule.get("enableSplit")):
        return True
    return "splitfuse" in json.dumps(part)
