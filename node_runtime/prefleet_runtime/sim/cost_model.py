"""What one engine step costs in seconds: a linear model, and presets derived from published figures.

    step = fixed + prefill_tokens * per_prefill_token + decode_tokens * per_decode_token
         + attention_pairs * per_attention_pair + decode_context * per_decode_context_token

`attention_pairs` is the number of (query, key) pairs that the prefill chunks of the step look at
(`stage.chunk_pairs`), so a late
chunk of a long prompt costs more than its first; `decode_context` is the number of KV entries that the
decodes of the step read. The first four numbers are the usual ones; the fifth is there because prefill
attention is bound by compute and decode attention by memory, which differ by a factor of 25.

A preset is a named model on a named accelerator (`hardware`). Its numbers are *computed* here from the architecture,
the datasheet and measured efficiencies, each with its source, so that one can check or replace any of them.

Left out: tensor parallelism, quantisation, CUDA-graph sizes (real steps are stairs, these are lines), and the
overlap of scheduling with compute (vLLM's asynchronous scheduling): the measured efficiencies contain both.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from typing import Any

from prefleet_runtime.sim.hardware import (
    A100_40GB_SXM,
    A100_80GB_SXM,
    H100_80GB_SXM,
    LLAMA_2_7B,
    LLAMA_3_1_8B,
    QWEN_2_5_7B,
    Accelerator,
    Transformer,
)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The five numbers, all in seconds (per step, token, pair or context token)."""

    fixed_s: float
    per_prefill_token_s: float
    per_decode_token_s: float
    per_attention_pair_s: float = 0.0
    per_decode_context_token_s: float = 0.0

    def __post_init__(self) -> None:
        for name in _FIELDS:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}: give a finite number of seconds, 0 or more")
        if self.fixed_s + self.per_prefill_token_s == 0 or self.fixed_s + self.per_decode_token_s == 0:
            raise ValueError("a step that costs nothing never ends a queue: give fixed_s, or both token costs")

    def step_s(
        self, prefill_tokens: int, decode_tokens: int, attention_pairs: float = 0.0, decode_context: int = 0
    ) -> float:
        """Seconds of one step; see the module's formula."""
        return (
            self.fixed_s
            + prefill_tokens * self.per_prefill_token_s
            + decode_tokens * self.per_decode_token_s
            + attention_pairs * self.per_attention_pair_s
            + decode_context * self.per_decode_context_token_s
        )


_FIELDS = tuple(f.name for f in fields(StepCost))


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Measured fractions of peak: `linear` at a chunk of `chunk` tokens, `attention` and `memory`."""

    linear: float
    chunk: int
    attention: float
    memory: float


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """What the simulated engine needs to stand in for a model on an accelerator.

    `kv_cache_tokens`: KV entries that fit; `kv_transfer_token_s`: seconds to move one token's KV to a pod.
    """

    name: str
    cost: StepCost
    kv_cache_tokens: int
    kv_transfer_token_s: float


def linear_efficiency(model: Transformer, chip: Accelerator, layer_s: float, chunk: int) -> float:
    """Fraction of peak FLOP/s in a measured layer: `layer_s` seconds for `chunk` tokens."""
    return 2 * model.layer_parameters * chunk / layer_s / chip.peak_flop_s


def memory_efficiency(model: Transformer, chip: Accelerator, tokens_s: float) -> float:
    """Fraction of peak bandwidth where a lone request decodes `tokens_s`, each of which reads the weights once."""
    return tokens_s * model.weight_bytes / chip.memory_bytes_s


def derive_cost(model: Transformer, chip: Accelerator, measured: Efficiency) -> StepCost:
    """The five numbers of `model` on one `chip`.

    The fixed cost is the time to read the weights once, at the measured fraction of memory bandwidth. The
    token cost is the slope of the line from there to the measured time of a full chunk (so that a full
    chunk costs what was measured, instead of that plus the weights' reading, which it hides).
    """
    fixed_s = model.weight_bytes / (chip.memory_bytes_s * measured.memory)
    flop_s = chip.peak_flop_s * measured.linear
    full_chunk_s = measured.chunk * model.layer_flop_per_token / flop_s
    per_token_s = (full_chunk_s - fixed_s) / measured.chunk
    return StepCost(
        fixed_s=fixed_s,
        per_prefill_token_s=per_token_s,
        per_decode_token_s=per_token_s + model.logits_flop / flop_s,
        per_attention_pair_s=model.attention_flop_per_pair / (chip.peak_flop_s * measured.attention),
        per_decode_context_token_s=model.kv_bytes_per_token / (chip.memory_bytes_s * measured.memory),
    )


GPU_MEMORY_UTILIZATION = 0.92
"""vLLM 0.32's default of --gpu-memory-utilization."""

ACTIVATION_BYTES = 4e9
"""Assumed: activations, CUDA graphs and the sampler's buffers of an 8B model at 2,048 batched tokens."""


def derive_profile(model: Transformer, chip: Accelerator, measured: Efficiency) -> EngineProfile:
    """The profile of `model` on one `chip`: KV capacity is what vLLM's defaults leave after the weights."""
    kv_bytes = GPU_MEMORY_UTILIZATION * chip.memory_bytes - model.weight_bytes - ACTIVATION_BYTES
    return EngineProfile(
        name=f"{model.name}-{chip.name}",
        cost=derive_cost(model, chip, measured),
        kv_cache_tokens=int(kv_bytes // model.kv_bytes_per_token),
        kv_transfer_token_s=model.kv_bytes_per_token / chip.network_bytes_s,
    )


# One layer of Meta-Llama-3-8B (the same architecture) on an A100 at 2,048 tokens, medians in milliseconds:
# profiling data of Vidur ("Vidur: A Large-Scale Simulation Framework for LLM Inference", MLSys 2024; file
# profiling/compute/a100/meta-llama/Meta-Llama-3-8B/mlp.csv). The residual addition runs twice per layer.
VIDUR_CHUNK_TOKENS = 2048
VIDUR_LAYER_MS = {
    "input_layernorm": 0.0545,
    "attn_pre_proj": 0.467,
    "attn_rope": 0.048,
    "attn_post_proj": 0.308,
    "post_attention_layernorm": 0.056,
    "mlp_up_proj": 2.2485,
    "mlp_act": 0.174,
    "mlp_down_proj": 1.049,
    "add": 2 * 0.026,
}
VIDUR_LAYER_S = sum(VIDUR_LAYER_MS.values()) / 1e3

LLAMA_ON_A100 = Efficiency(
    # 0.64 of peak.
    linear=linear_efficiency(LLAMA_3_1_8B, A100_80GB_SXM, VIDUR_LAYER_S, VIDUR_CHUNK_TOKENS),
    chunk=VIDUR_CHUNK_TOKENS,
    # "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning" reports 50-73% of
    # peak on an A100; the low end, since paged chunks are less regular than its benchmark.
    attention=0.5,
    # Llama-3.1-8B in BF16 under vLLM 0.23 on an A100 (40 GB, 1,555 GB/s) decodes 75 tokens/s one request at
    # a time, 77% of what its bandwidth allows: "vLLM throughput-latency sweep on NVIDIA A100" (J. Musgrave).
    # The fraction, which contains launch and scheduling overhead, is assumed to hold for the 80 GB part.
    memory=0.77,
)

QWEN_ON_A100 = Efficiency(
    # Assumed to be those of Llama-3-8B, whose matrices are of like size.
    linear=LLAMA_ON_A100.linear,
    chunk=LLAMA_ON_A100.chunk,
    attention=LLAMA_ON_A100.attention,
    # 0.63: "Qwen2.5 Speed Benchmark" (Qwen's documentation) reports 84.28 tokens/s of Qwen2.5-7B-Instruct in BF16 under
    # vLLM 0.6.3 on an A100 80GB, one request at a time.
    memory=memory_efficiency(QWEN_2_5_7B, A100_80GB_SXM, 84.28),
)

# One layer of Llama-2-7b on an H100 of a DGX at 4,096 tokens, medians in milliseconds: Vidur's profiling data, file
# profiling/compute/h100/meta-llama/Llama-2-7b-hf/mlp.csv, tensor parallelism 1.
VIDUR_H100_CHUNK_TOKENS = 4096
VIDUR_H100_LAYER_MS = {
    "input_layernorm": 0.0665,
    "attn_pre_proj": 0.584,
    "attn_rope": 0.0835,
    "attn_post_proj": 0.193,
    "post_attention_layernorm": 0.067,
    "mlp_up_proj": 0.987,
    "mlp_act": 0.139,
    "mlp_down_proj": 0.441,
    "add": 2 * 0.031,
}
VIDUR_H100_LAYER_S = sum(VIDUR_H100_LAYER_MS.values()) / 1e3

LLAMA_ON_H100 = Efficiency(
    # 0.64 of peak, measured with Llama-2-7b; assumed to hold for Llama-3.1-8B, whose matrices are larger.
    linear=linear_efficiency(LLAMA_2_7B, H100_80GB_SXM, VIDUR_H100_LAYER_S, VIDUR_H100_CHUNK_TOKENS),
    chunk=VIDUR_H100_CHUNK_TOKENS,
    # "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision" reports up to 75% of peak on an
    # H100 in 16 bits; assumed lower, since paged chunks are less regular than its benchmark.
    attention=0.5,
    # Assumed to be that of the A100.
    memory=LLAMA_ON_A100.memory,
)

DEFAULT_PROFILE = derive_profile(LLAMA_3_1_8B, A100_80GB_SXM, LLAMA_ON_A100)

PRESETS = {
    profile.name: profile
    for profile in (
        DEFAULT_PROFILE,
        derive_profile(LLAMA_3_1_8B, A100_40GB_SXM, LLAMA_ON_A100),
        derive_profile(LLAMA_3_1_8B, H100_80GB_SXM, LLAMA_ON_H100),
        derive_profile(QWEN_2_5_7B, A100_80GB_SXM, QWEN_ON_A100),
    )
}


def parse_profile(text: str) -> EngineProfile:
    """A preset's name, or a JSON object with the fields of `StepCost` (the last two may be left out).

    With numbers of your own, KV capacity and transfer are those of the default preset.

    Raises:
        ValueError: neither; the message says what to write.
    """
    if text in PRESETS:
        return PRESETS[text]
    if not text.lstrip().startswith("{"):
        known = ", ".join(sorted(PRESETS))
        costs = ", ".join(_FIELDS)
        raise ValueError(f"no cost model is named {text!r}: write one of {known}, or a JSON object of {costs}")
    return EngineProfile(
        name="custom",
        cost=StepCost(**_numbers(text)),
        kv_cache_tokens=DEFAULT_PROFILE.kv_cache_tokens,
        kv_transfer_token_s=DEFAULT_PROFILE.kv_transfer_token_s,
    )


def _numbers(text: str) -> dict[str, float]:
    try:
        raw: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'the cost model is no JSON object ({error}): write {{"fixed_s": 0.01, ...}}') from None
    unknown = [f"has an unknown {name}" for name in sorted(set(raw) - set(_FIELDS))]
    missing = [f"lacks {name}" for name in _FIELDS[:3] if name not in raw]
    if unknown or missing:
        raise ValueError(f"the cost model {' and '.join(missing + unknown)}: write some of {', '.join(_FIELDS)}")
    for name, value in raw.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} is {value!r}: give a number of seconds")
    return {name: float(value) for name, value in raw.items()}
