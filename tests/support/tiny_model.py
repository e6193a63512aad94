"""A Llama that loads in a second: a folder made on the spot, whose weights are the engine's seeded dummies.

The sizes are chosen so that a prefill of 2,000 tokens takes a noticeable fraction of a second on two cores
and a decode step a few milliseconds, which is what makes a queue form. The head size is 64, the smallest that
the CPU attention kernel of vLLM accepts. The tokenizer knows one token per word: `w0` .. `w8188` are words of
its vocabulary, any other word is the unknown token, so a text of n words is a prompt of n tokens.

Run it: `python -m tests.support.tiny_model FOLDER`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 8192
CONTEXT = 32768
SPECIAL = ("<unk>", "<s>", "</s>")
FIRST_WORD = len(SPECIAL)
"""Token ids from here up to `VOCABULARY` are plain words."""

CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": SPECIAL.index("<s>"),
    "eos_token_id": SPECIAL.index("</s>"),
}

TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "model_max_length": CONTEXT,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}


def write_tiny_model(folder: Path, **changes: int) -> Path:
    """Write config.json, with `changes`, and the tokenizer into `folder` (made if absent) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = {
        "config.json": CONFIG | changes,
        "tokenizer_config.json": TOKENIZER_CONFIG,
        "tokenizer.json": _tokenizer(),
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1) + "\n")
    return folder


def _tokenizer() -> dict[str, Any]:
    words = [*SPECIAL, *(f"w{number}" for number in range(VOCABULARY - FIRST_WORD))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special_token(index, word) for index, word in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: index for index, word in enumerate(words)},
            "unk_token": "<unk>",
        },
    }


def _special_token(index: int, word: str) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": index, "content": word, **plain, "special": True}


if __name__ == "__main__":
    print(write_tiny_model(Path(sys.argv[1])))
