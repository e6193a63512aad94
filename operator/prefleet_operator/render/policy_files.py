"""The policy ConfigMap: what the runtime in every pod of a fleet reads, or what its engine was told at its start.

Two files of one generation: `policy.json` for prefill and mixed pods, `decode.json` for decode pods,
which is always first come first served: their queue holds requests whose prefill is done. Clients' priorities
count in both or in neither. Of an engine that is told at its start there is one file, `engine.json`, which no pod
reads: the operator's memory.
"""

from __future__ import annotations

from typing import Any

from prefleet_runtime.contract import DECODE_POLICY_FILE, POLICY_FILE, RuntimePolicy

from prefleet_operator.core.native_policy import NATIVE_POLICY_FILE, FleetPolicy, NativePolicy
from prefleet_operator.render.names import GENERATION_ANNOTATION, fleet_labels, policy_config_map_name


def render_policy_config_map(fleet: str, namespace: str, policy: FleetPolicy) -> dict[str, Any]:
    """The ConfigMap that carries `policy`."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": policy_config_map_name(fleet),
            "namespace": namespace,
            "labels": fleet_labels(fleet),
            "annotations": {GENERATION_ANNOTATION: str(policy.generation)},
        },
        "data": _files(policy),
    }


def _files(policy: FleetPolicy) -> dict[str, str]:
    if isinstance(policy, NativePolicy):
        return {NATIVE_POLICY_FILE: policy.to_json()}
    return {POLICY_FILE: policy.to_json(), DECODE_POLICY_FILE: _decode_policy(policy).to_json()}


def _decode_policy(policy: RuntimePolicy) -> RuntimePolicy:
    return RuntimePolicy(generation=policy.generation, trust_client_priority=policy.trust_client_priority)
