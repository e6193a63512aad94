"""The policy ConfigMap: what the runtime in every pod of a fleet reads, or what its engine was told at its start.

Two files of one generation: `policy.json` for prefill and mixed pods, `decode.json` for decode pods,
which is always first come first served: their queue holds requests whose prefill is done. Clients' priorities
count in both or in neither. Of an engine that is told at its start there is one file, `engine.json`, which no pod
reads: the operator's memory.

A ConfigMap that pods of others mount is kept when its policy is deleted, and says so in an annotation.
"""

from __future__ import annotations

from typing import Any

from prefleet_runtime.contract import DECODE_POLICY_FILE, POLICY_FILE, RuntimePolicy

from prefleet_operator.core.native_policy import NATIVE_POLICY_FILE, FleetPolicy, NativePolicy
from prefleet_operator.render.names import GENERATION_ANNOTATION, KEPT_ANNOTATION, fleet_labels


def render_policy_config_map(
    fleet: str, namespace: str, name: str, policy: FleetPolicy, kept: bool = False
) -> dict[str, Any]:
    """The ConfigMap that carries `policy`."""
    annotations = {GENERATION_ANNOTATION: str(policy.generation)}
    if kept:
        annotations[KEPT_ANNOTATION] = (
            f"Written for PrefillPolicy {fleet} and kept when that is deleted, since pods that others make mount it: "
            "delete it once none does."
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": fleet_labels(fleet),
            "annotations": annotations,
        },
        "data": _files(policy),
    }


def _files(policy: FleetPolicy) -> dict[str, str]:
    if isinstance(policy, NativePolicy):
        return {NATIVE_POLICY_FILE: policy.to_json()}
    return {POLICY_FILE: policy.to_json(), DECODE_POLICY_FILE: _decode_policy(policy).to_json()}


def _decode_policy(policy: RuntimePolicy) -> RuntimePolicy:
    return RuntimePolicy(generation=policy.generation, trust_client_priority=policy.trust_client_priority)
