"""The policy ConfigMap: what the runtime in every pod of a fleet reads.

Two files of one generation: `policy.json` for prefill and mixed pods, `decode.json` for decode pods.
"""

from __future__ import annotations

from typing import Any

from prefleet_runtime.contract import DECODE_POLICY_FILE, POLICY_FILE

from prefleet_operator.core.runtime_policy import RuntimePolicies
from prefleet_operator.render.names import GENERATION_ANNOTATION, fleet_labels, policy_config_map_name


def render_policy_config_map(fleet: str, namespace: str, policies: RuntimePolicies) -> dict[str, Any]:
    """The ConfigMap that carries both documents."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": policy_config_map_name(fleet),
            "namespace": namespace,
            "labels": fleet_labels(fleet),
            "annotations": {GENERATION_ANNOTATION: str(policies.prefill.generation)},
        },
        "data": {
            POLICY_FILE: policies.prefill.to_json(),
            DECODE_POLICY_FILE: policies.decode.to_json(),
        },
    }
