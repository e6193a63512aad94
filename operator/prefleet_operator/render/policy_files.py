"""The policy ConfigMap: what the runtime in every pod of a fleet reads.

Two files of one generation: `policy.json` for prefill and mixed pods, `decode.json` for decode pods,
which is always first come first served: their queue holds requests whose prefill is done. Clients' priorities
count in both or in neither.
"""

from __future__ import annotations

from typing import Any

from prefleet_runtime.contract import DECODE_POLICY_FILE, POLICY_FILE, RuntimePolicy

from prefleet_operator.render.names import GENERATION_ANNOTATION, fleet_labels, policy_config_map_name


def render_policy_config_map(fleet: str, namespace: str, policy: RuntimePolicy) -> dict[str, Any]:
    """The ConfigMap that carries `policy` and its counterpart for decode pods."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": policy_config_map_name(fleet),
            "namespace": namespace,
            "labels": fleet_labels(fleet),
            "annotations": {GENERATION_ANNOTATION: str(policy.generation)},
        },
        "data": {
            POLICY_FILE: policy.to_json(),
            DECODE_POLICY_FILE: _decode_policy(policy).to_json(),
        },
    }


def _decode_policy(policy: RuntimePolicy) -> RuntimePolicy:
    return RuntimePolicy(generation=policy.generation, trust_client_priority=policy.trust_client_priority)
