"""Models and accelerators by their published figures: what a step's cost is derived from (`cost_model`).

Left out: mixtures of experts, quantised weights, and accelerators of which nobody has published a measured step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Transformer:
    """A dense decoder-only transformer with grouped-query attention and a gated MLP, in `dtype_bytes`."""

    name: str
    parameters: float
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    dtype_bytes: int = 2

    @property
    def layer_parameters(self) -> int:
        """Weights of the matrix products of one layer."""
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_size * self.dtype_bytes

    @property
    def layer_flop_per_token(self) -> int:
        """All layers' matrix products: one multiplication and one addition per weight."""
        return 2 * self.layers * self.layer_parameters

    @property
    def logits_flop(self) -> int:
        """The output projection, computed once per sampled token (not per prompt token)."""
        return 2 * self.hidden * self.vocabulary

    @property
    def attention_flop_per_pair(self) -> int:
        """QK^T and the weighted sum of V, over all heads and layers."""
        return 4 * self.layers * self.heads * self.head_size


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Peak figures of the datasheet: dense 16-bit FLOP/s, memory bytes/s, memory bytes, network bytes/s."""

    name: str
    peak_flop_s: float
    memory_bytes_s: float
    memory_bytes: float
    network_bytes_s: float


# Sources: "The Llama 3 Herd of Models" (table 3) and the model card and config.json of Llama-3.1-8B.
LLAMA_3_1_8B = Transformer(
    name="llama-3.1-8b",
    parameters=8.03e9,
    layers=32,
    hidden=4096,
    intermediate=14336,
    heads=32,
    kv_heads=8,
    head_size=128,
    vocabulary=128256,
)

# Sources: "Llama 2: Open Foundation and Fine-Tuned Chat Models" and config.json of Llama-2-7b-hf.
LLAMA_2_7B = Transformer(
    name="llama-2-7b",
    parameters=6.74e9,
    layers=32,
    hidden=4096,
    intermediate=11008,
    heads=32,
    kv_heads=32,
    head_size=128,
    vocabulary=32000,
)

# Sources: "Qwen2.5 Technical Report" and config.json of Qwen2.5-7B-Instruct (28 query heads of 128, 4 for keys).
QWEN_2_5_7B = Transformer(
    name="qwen2.5-7b",
    parameters=7.616e9,
    layers=28,
    hidden=3584,
    intermediate=18944,
    heads=28,
    kv_heads=4,
    head_size=128,
    vocabulary=152064,
)

# Sources: "NVIDIA A100 Tensor Core GPU" datasheet (80GB SXM: 312 TFLOPS BF16 dense, 2,039 GB/s, 80 GB) and
# "NVIDIA DGX A100" datasheet (one 200 Gb/s InfiniBand port per GPU; its line rate is used).
A100_80GB_SXM = Accelerator(
    name="a100-80gb-sxm",
    peak_flop_s=312e12,
    memory_bytes_s=2039e9,
    memory_bytes=80e9,
    network_bytes_s=200e9 / 8,
)

# The same datasheets: the 40GB SXM part has 1,555 GB/s.
A100_40GB_SXM = replace(A100_80GB_SXM, name="a100-40gb-sxm", memory_bytes_s=1555e9, memory_bytes=40e9)

# Sources: "NVIDIA H100 Tensor Core GPU" datasheet (SXM: 1,979 TFLOPS BF16 with sparsity, half of that dense, 3.35 TB/s,
# 80 GB) and "NVIDIA DGX H100" datasheet (one 400 Gb/s InfiniBand port per GPU; its line rate is used).
H100_80GB_SXM = Accelerator(
    name="h100-80gb-sxm",
    peak_flop_s=989.5e12,
    memory_bytes_s=3350e9,
    memory_bytes=80e9,
    network_bytes_s=400e9 / 8,
)
