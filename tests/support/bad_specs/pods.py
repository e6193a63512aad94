"""Which roles a fleet has, and what is asked of their pods."""

from __future__ import annotations

from tests.support.bad_specs.document import BadSpec

BAD = (
    BadSpec(
        "data parallelism inside a pod",
        {"spec.prefill.args": ["--data-parallel-size=2"]},
        "spec.prefill",
        "args: remove --data-parallel-size and its kin and raise replicas instead",
    ),
    BadSpec(
        "a place in a group that the operator tells",
        {"spec.prefill.args": ["--node_rank=1"]},
        "spec.prefill",
        "args: remove --nnodes and its kin and write nodesPerReplica instead",
    ),
    BadSpec(
        "nodes in short",
        {"spec.decode.args": ["-n", "2"]},
        "spec.decode",
        "args: remove --nnodes and its kin and write nodesPerReplica instead",
    ),
    BadSpec(
        "a simulator over several nodes",
        {"spec.engine": {"type": "Simulator"}, "spec.decode.nodesPerReplica": 2},
        "spec",
        "nodesPerReplica: leave it at 1: of the engines only type VLLM serves one model from several nodes",
    ),
    BadSpec(
        "a replica of no node",
        {"spec.prefill.nodesPerReplica": 0},
        "spec.prefill.nodesPerReplica",
        "greater than or equal to 1",
    ),
    BadSpec(
        "a rollout that can replace nothing",
        {"spec.prefill.rollout": {"maxSurge": 0, "maxUnavailable": "0%"}},
        "spec.prefill.rollout",
        "write 1 or more for maxSurge or for maxUnavailable: with both at 0 nothing could be replaced",
    ),
    BadSpec(
        "half a rollout",
        {"spec.prefill.rollout": {"maxSurge": 1}},
        "spec.prefill.rollout.maxUnavailable",
        "equired",
    ),
    BadSpec(
        "a share without its sign",
        {"spec.prefill.rollout": {"maxSurge": "25", "maxUnavailable": 0}},
        "spec.prefill.rollout.maxSurge",
        'write a number of replicas from 0 to 10000, or a share of them such as "25%"',
    ),
    BadSpec(
        "more than all",
        {"spec.decode.rollout": {"maxSurge": 0, "maxUnavailable": "120%"}},
        "spec.decode.rollout.maxUnavailable",
        'write a number of replicas from 0 to 10000, or a share of them such as "25%"',
    ),
    BadSpec(
        "a folder of the node under the restricted profile",
        {"spec.model.source": {"hostPath": "/models/llama"}, "spec.security": {"profile": "Restricted"}},
        "spec",
        "model.source: write hub or pvc in place of hostPath, which security.profile Restricted forbids",
    ),
    BadSpec(
        "a profile that pods are not made for",
        {"spec.security": {"profile": "Privileged"}},
        "spec.security.profile",
        "Restricted",
    ),
    BadSpec(
        "prefill without decode",
        {"spec.decode": None},
        "spec",
        "write either prefill and decode together, or mixed alone",
    ),
    BadSpec(
        "mixed beside prefill and decode",
        {"spec.mixed": {"replicas": 1}},
        "spec",
        "write either prefill and decode together, or mixed alone",
    ),
    BadSpec(
        "no role at all",
        {"spec.prefill": None, "spec.decode": None},
        "spec",
        "write either prefill and decode together, or mixed alone",
    ),
    BadSpec(
        "an argument that the operator writes",
        {"spec.prefill.args": ["--max-model-len", "4096", "--port=9000"]},
        "spec.prefill",
        "args: remove what the operator writes itself (--host, --port,",
    ),
    BadSpec(
        "an argument that the operator writes, with underscores",
        {"spec.decode.args": ["--served_model_name", "other"]},
        "spec.decode",
        "args: remove what the operator writes itself (--host, --port,",
    ),
    BadSpec(
        "a part of an argument that the operator writes",
        {"spec.prefill.args": ["--kv-transfer-config.kv_role", "kv_both"]},
        "spec.prefill",
        "args: remove what the operator writes itself (--host, --port,",
    ),
    BadSpec(
        "a part of the merged argument",
        {"spec.prefill.args": ["--additional_config.prefleet", "{}"]},
        "spec.prefill",
        "--additional-config may be given as one JSON value, which is merged",
    ),
    BadSpec(
        "the runtime's own settings in --additional-config",
        {"spec.prefill.args": ["--additional-config", '{"prefleet": {}}']},
        "spec.prefill",
        'args: remove "prefleet" from --additional-config: the operator adds this key',
    ),
    BadSpec(
        "a variable that the operator sets",
        {"spec.prefill.env": [{"name": "PYTHONPATH", "value": "/opt/mine"}]},
        "spec.prefill",
        "env: remove the variables that the operator sets itself (POD_NAME, POD_IP, PYTHONPATH,",
    ),
    BadSpec(
        "a variable with a dash in its name",
        {"spec.prefill.env": [{"name": "MY-VARIABLE"}]},
        "spec.prefill.env",
        "write letters, digits and _, not beginning with a digit",
    ),
    BadSpec(
        "an accelerator without its domain",
        {"spec.prefill.accelerator.resource": "gpu"},
        "spec.prefill.accelerator.resource",
        "write the name that nodes offer it under, such as nvidia.com/gpu",
    ),
    *(
        BadSpec(
            f"an accelerator whose name {fault}",
            {"spec.prefill.accelerator.resource": resource},
            "spec.prefill.accelerator.resource",
            "write the name that nodes offer it under, such as nvidia.com/gpu",
        )
        for fault, resource in (
            ("ends with a dash", "nvidia.com/gpu-"),
            ("has a domain that begins with a dot", ".nvidia.com/gpu"),
            ("has more than 63 characters", f"nvidia.com/{64 * 'g'}"),
        )
    ),
    BadSpec(
        "a negative number of replicas",
        {"spec.prefill.replicas": -1},
        "spec.prefill.replicas",
        "greater than or equal to 0",
    ),
)
