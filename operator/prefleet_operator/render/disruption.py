"""How much of a role, or of the router, may be taken down on purpose at once (a node being drained): one replica.

Only where there are two replicas or more: of a single one nothing is kept up by it, while a drain would have to wait
for as long as that one is not ready. For the same reason pods that are not ready may always be evicted: an engine
that loads for half an hour, or never starts, serves nobody. Of groups all pods are counted, workers too: one that
is evicted takes its group down, and until all of that group is ready again no other may go.
"""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def render_disruption_budget(metadata: Object, replicas: int, selector: dict[str, str]) -> list[Object]:
    """The PodDisruptionBudget of the pods that `selector` finds; none for a single replica."""
    if replicas < 2:
        return []
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata,
            "spec": {
                "maxUnavailable": 1,
                "selector": {"matchLabels": selector},
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        }
    ]
