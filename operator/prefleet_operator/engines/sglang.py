"""SGLang, whose schedule policy orders its queue.

How it is told. By --schedule-policy at the start. It runs `hrrn` as `fcfs`, without a word, while more than 128
requests wait and whenever the radix cache is off: the first is a warning, the second is refused. Its HRRN counts
uncached tokens. `shortest-prefill-first`, which it calls experimental, does not start without the radix cache.

Prefill and decode know each other through a router that tells both of a pair of pods (SGLang's own router does);
decode pods stay first come, first served. How they hand over is left to the engine (--disaggregation-transfer-backend
is the user's).

Metrics only with --enable-metrics. Each stage of a pipeline shows the same queue, and every tensor-parallel rank if
asked to; where it schedules by priorities, each of them is shown beside their total, whose label is empty.
"""

from __future__ import annotations

from typing import Final

from prefleet_operator.api import InvalidSpecError, ModelSource, PrefillPolicySpec, Role, SchedulingPolicy
from prefleet_operator.core.engine_metrics import EngineMetrics
from prefleet_operator.engines import model_files
from prefleet_operator.engines.base import HTTP_PORT, EngineContainer, PodRequest
from prefleet_operator.engines.user_arguments import has_flag

BOOTSTRAP_PORT: Final = 8998
"""Where a prefill pod is asked for the way to its KV cache."""

HRRN_LIMIT: Final = 128
"""Waiting requests above which SGLang orders by arrival."""

_POLICIES: Final = {
    SchedulingPolicy.FCFS: "fcfs",
    SchedulingPolicy.HRRN: "hrrn",
    SchedulingPolicy.SHORTEST_PREFILL_FIRST: "shortest-prefill-first",
}


class SGLang:
    """Engine type SGLang."""

    metrics: EngineMetrics | None = EngineMetrics(
        port=HTTP_PORT,
        prompt_lengths=("sglang:prompt_tokens_histogram", "sglang_prompt_tokens_histogram"),
        uncached_lengths=("sglang:uncached_prompt_tokens_histogram", "sglang_uncached_prompt_tokens_histogram"),
        queue_waits=("sglang:queue_time_seconds", "sglang_queue_time_seconds"),
        first_token=("sglang:time_to_first_token_seconds", "sglang_time_to_first_token_seconds"),
        waiting=("sglang:num_queue_reqs", "sglang_num_queue_reqs"),
        running=("sglang:num_running_reqs", "sglang_num_running_reqs"),
        kv_usage=("sglang:token_usage", "sglang_token_usage"),
        rank="dp_rank",
    )

    def warnings(self, spec: PrefillPolicySpec) -> tuple[str, ...]:
        """HRRN has a limit that nothing in the engine tells of."""
        if spec.scheduling.policy is not SchedulingPolicy.HRRN:
            return ()
        return (
            f"SGLang silently runs HRRN as FCFS on a pod while more than {HRRN_LIMIT} requests wait there: add "
            "replicas so that fewer do, or choose ShortestPrefillFirst.",
        )

    def container(self, pod: PodRequest) -> EngineContainer:
        """The OpenAI server's container."""
        source = pod.spec.model.source or ModelSource()
        return EngineContainer(
            image=pod.spec.engine.image or f"lmsysorg/sglang:v{pod.spec.engine.version}",
            command=("python3", "-m", "sglang.launch_server"),
            args=_arguments(pod, source),
            ports=(("http", HTTP_PORT), *((("bootstrap", BOOTSTRAP_PORT),) if pod.role is Role.PREFILL else ())),
            env=model_files.hub_env(source),
            volumes=model_files.volumes(source),
            mounts=model_files.mounts(source),
            reads_policy=False,
        )


def _arguments(pod: PodRequest, source: ModelSource) -> tuple[str, ...]:
    policy = SchedulingPolicy.FCFS if pod.role is Role.DECODE else pod.native.policy
    if policy is not SchedulingPolicy.FCFS and has_flag(pod.args, "--disable-radix-cache"):
        raise InvalidSpecError(
            f"spec.{pod.role.value}.args: remove --disable-radix-cache or write scheduling.policy FCFS: without the "
            "radix cache SGLang silently runs HRRN as FCFS, and does not start with ShortestPrefillFirst"
        )
    return (
        *pod.args,
        *("--model-path", model_files.model_place(source)),
        *model_files.revision_arguments(source),
        *("--served-model-name", pod.spec.model.served_name),
        *("--host", "0.0.0.0"),
        *("--port", str(HTTP_PORT)),
        "--enable-metrics",
        *("--schedule-policy", _POLICIES[policy]),
        *_apart(pod.role),
    )


def _apart(role: Role) -> tuple[str, ...]:
    if role is Role.MIXED:
        return ()
    bootstrap = ("--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT)) if role is Role.PREFILL else ()
    return ("--disaggregation-mode", role.value, *bootstrap)
