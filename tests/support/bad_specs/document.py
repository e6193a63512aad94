"""A PrefillPolicy that is good, and what makes one bad."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from prefleet_operator.api import GROUP, KIND, VERSION

GOOD: dict[str, Any] = {
    "apiVersion": f"{GROUP}/{VERSION}",
    "kind": KIND,
    "metadata": {"name": "chat"},
    "spec": {
        "model": {"servedName": "chat", "source": {"hub": {"repo": "owner/model"}}},
        "engine": {"type": "VLLM", "version": "0.32.0"},
        "prefill": {"replicas": 2, "accelerator": {"resource": "nvidia.com/gpu"}},
        "decode": {"replicas": 1},
    },
}


@dataclass(frozen=True)
class BadSpec:
    """`change`: what is laid over GOOD, by dotted path; None takes a field away.

    `sentence` is what both judges say, from the rule; `field` is the path that both name.
    """

    name: str
    change: dict[str, Any]
    field: str
    sentence: str

    def document(self, **metadata: str) -> dict[str, Any]:
        """The whole resource, with `metadata` added."""
        document = copy.deepcopy(GOOD)
        document["metadata"] |= metadata
        for path, value in self.change.items():
            _set(document, path.split("."), copy.deepcopy(value))
        return document


def _set(tree: dict[str, Any], path: list[str], value: Any) -> None:
    *parents, last = path
    for parent in parents:
        tree = tree.setdefault(parent, {})
    if value is None:
        tree.pop(last, None)
    else:
        tree[last] = value
