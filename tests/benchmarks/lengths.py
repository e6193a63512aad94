"""Prompt lengths as real traffic has them: the public traces beside the repository, or a stand-in for them.

Without numpy, pytest or the product, so that it runs in any engine's environment.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces"

FILES = {
    "AzureLLMInferenceTrace_conv_2023.csv": "ContextTokens",
    "mooncake_conversation_trace.jsonl": "input_length",
    "vidur_arxiv_summarization_lengths.csv": "num_prefill_tokens",
}

QUANTILES = (
    ((0.0, 8), (0.5, 1020), (0.7, 1130), (0.85, 1877), (0.99, 4142), (1.0, 8000)),
    ((0.0, 900), (0.5, 6909), (0.7, 13196), (0.85, 21467), (0.99, 85401), (1.0, 120000)),
)
"""Of Azure's conversations and of Mooncake's, as published; the ends are rough."""


def realistic_lengths(count: int, seed: int) -> tuple[list[int], str]:
    """`count` prompt lengths in tokens, drawn evenly from the traces, and where they come from."""
    rng = random.Random(seed)
    traces = [_read(TRACES / name, column) for name, column in FILES.items() if (TRACES / name).exists()]
    if len(traces) == len(FILES):
        lengths = [rng.choice(rng.choice(traces)) for _ in range(count)]
        return lengths, f"the public traces {', '.join(FILES)}, one third each"
    lengths = [_interpolate(rng.choice(QUANTILES), rng.random()) for _ in range(count)]
    return lengths, "synthetic, by the quantiles of two public traces (the traces are not on this machine)"


def _read(path: Path, column: str) -> list[int]:
    with path.open() as lines:
        rows = map(json.loads, lines) if path.suffix == ".jsonl" else csv.DictReader(lines)
        return [max(1, int(row[column])) for row in rows]


def _interpolate(quantiles: Sequence[tuple[float, int]], share: float) -> int:
    """The length at that share of the traffic; between the quantiles its logarithm is a straight line."""
    for (low, tokens), (high, more) in pairwise(quantiles):
        if share <= high:
            part = (share - low) / (high - low)
            return round(math.exp(math.log(tokens) * (1 - part) + math.log(more) * part))
    return quantiles[-1][1]
