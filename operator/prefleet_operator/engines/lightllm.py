"""LightLLM, whose prefill queue strategy orders what its router has admitted.

How it is told. By --prefill_queue_strategy at the start: `default` (first come, first served), `promote_shortest`
or `hrrn`. A release that does not know the word ends at its start, so none is ignored silently.

Mixed pods alone: prefill and decode pods register with a pd master, which nothing here renders.

Metrics. The buckets of its waits are spelled `..._bucket_bucket`, so the base name ends with `_bucket`.
"""

from __future__ import annotations

from typing import Final

from prefleet_operator.api import ModelSource, PrefillPolicySpec, SchedulingPolicy
from prefleet_operator.core.engine_metrics import EngineMetrics
from prefleet_operator.engines import model_files
from prefleet_operator.engines.base import HTTP_PORT, EngineContainer, PodRequest
from prefleet_operator.engines.user_arguments import option_value

_BATCH_MAX_TOKENS = 16384
_STRATEGIES: Final = {
    SchedulingPolicy.FCFS: "default",
    SchedulingPolicy.PROMOTE_SHORTEST: "promote_shortest",
    SchedulingPolicy.HRRN: "hrrn",
}


class LightLLM:
    """Engine type LightLLM."""

    metrics: EngineMetrics | None = EngineMetrics(
        port=HTTP_PORT,
        prompt_lengths=("lightllm_request_input_length",),
        queue_waits=("lightllm_request_queue_duration_bucket", "lightllm_request_queue_duration"),
        first_token=("lightllm_request_first_token_duration",),
        waiting=("lightllm_queue_size",),
    )

    def warnings(self, spec: PrefillPolicySpec) -> tuple[str, ...]:
        """A chunk as large as the batch leaves no room beside a request that was put first."""
        if spec.scheduling.policy is SchedulingPolicy.FCFS:
            return ()
        return tuple(
            f"spec.{role.value}.args: --chunked_prefill_size equals --batch_max_tokens, so rounds run nearly empty "
            f"whenever {spec.scheduling.policy.value} puts a short request first: leave --chunked_prefill_size out, "
            "which makes it half of the other."
            for role, given in spec.roles().items()
            if _chunk_fills_batch(given.args)
        )

    def container(self, pod: PodRequest) -> EngineContainer:
        """The OpenAI server's container."""
        source = pod.spec.model.source or ModelSource()
        return EngineContainer(
            image=pod.spec.engine.image or "",
            command=("python3", "-m", "lightllm.server.api_server"),
            args=(
                *pod.args,
                *("--run_mode", "normal"),
                *("--model_dir", model_files.model_place(source)),
                *("--model_name", pod.spec.model.served_name),
                *("--host", "0.0.0.0"),
                *("--port", str(HTTP_PORT)),
                *("--prefill_queue_strategy", _STRATEGIES[pod.native.policy]),
            ),
            ports=(("http", HTTP_PORT),),
            volumes=model_files.volumes(source),
            mounts=model_files.mounts(source),
            reads_policy=False,
        )


def _chunk_fills_batch(args: list[str]) -> bool:
    chunk, batch = option_value(args, "--chunked-prefill-size"), option_value(args, "--batch-max-tokens")
    ranks = option_value(args, "--dp") or "1"
    usual = _BATCH_MAX_TOKENS // max(1, int(ranks)) if ranks.isdecimal() else _BATCH_MAX_TOKENS
    return chunk is not None and chunk == (batch or str(usual))
