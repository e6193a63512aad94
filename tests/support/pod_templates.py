"""What users lay over pods, one example for each thing that they ask for: judged by the merge, by Kubernetes' schema
and by the API server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PodTemplateExample:
    """`path`: where the rendered pod's spec then holds `value`; a string step finds a list's item of that name."""

    name: str
    spec: dict[str, Any]
    path: tuple[str, ...]
    value: Any


def _on_engine(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "engine", **fields}]}


_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
_H200 = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-H200"]}
_NODE_AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [_H200]}]}
    }
}
_CACHE = {"name": "cache", "persistentVolumeClaim": {"claimName": "hub-cache"}}
_CACHE_MOUNT = {"name": "cache", "mountPath": "/root/.cache/huggingface"}
_SECRET = {"name": "certificates", "secret": {"secretName": "certificates"}}
_TOKEN = {"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "api"}}}

EXAMPLES = (
    PodTemplateExample("tolerations", {"tolerations": [_TAINT]}, ("tolerations",), [_TAINT]),
    PodTemplateExample(
        "a node selector",
        {"nodeSelector": {"accelerator-type": "module-910b-8"}},
        ("nodeSelector",),
        {"accelerator-type": "module-910b-8"},
    ),
    PodTemplateExample("affinity", {"affinity": _NODE_AFFINITY}, ("affinity",), _NODE_AFFINITY),
    PodTemplateExample(
        "a volume and its mount",
        {"volumes": [_CACHE], **_on_engine(volumeMounts=[_CACHE_MOUNT])},
        ("containers", "engine", "volumeMounts", "cache"),
        _CACHE_MOUNT,
    ),
    PodTemplateExample("a secret as a volume", {"volumes": [_SECRET]}, ("volumes", "certificates"), _SECRET),
    PodTemplateExample(
        "a secret as a variable", _on_engine(env=[_TOKEN]), ("containers", "engine", "env", "API_KEY"), _TOKEN
    ),
    PodTemplateExample(
        "a pull secret",
        {"imagePullSecrets": [{"name": "registry"}]},
        ("imagePullSecrets", "registry"),
        {"name": "registry"},
    ),
    PodTemplateExample(
        "the size of the shared memory",
        {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "16Gi"}}]},
        ("volumes", "shm"),
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
    ),
    PodTemplateExample(
        "memory and processors beside the accelerators",
        _on_engine(resources={"requests": {"cpu": "16", "memory": "200Gi"}}),
        ("containers", "engine", "resources", "requests"),
        {"nvidia.com/gpu": "8", "cpu": "16", "memory": "200Gi"},
    ),
    PodTemplateExample(
        "a right that a network card needs",
        _on_engine(securityContext={"capabilities": {"add": ["IPC_LOCK"]}}),
        ("containers", "engine", "securityContext", "capabilities"),
        {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    ),
    PodTemplateExample(
        "a container beside the engine",
        {"containers": [{"name": "proxy", "image": "example.com/proxy:1"}]},
        ("containers", "proxy"),
        {"name": "proxy", "image": "example.com/proxy:1"},
    ),
    PodTemplateExample("a scheduler of its own", {"schedulerName": "volcano"}, ("schedulerName",), "volcano"),
    PodTemplateExample("a runtime class", {"runtimeClassName": "nvidia"}, ("runtimeClassName",), "nvidia"),
)

RESOURCES = (
    "nvidia.com/gpu",
    "nvidia.com/mig-3g.40gb",
    "amd.com/gpu",
    "huawei.com/Ascend910",
    "huawei.com/Ascend910B4-1",
    "huawei.com/ascend-1980",
    "gpu.intel.com/i915",
    "cambricon.com/mlu",
)
"""Accelerators as clusters name them."""


def found_at(tree: Any, path: tuple[str, ...]) -> Any:
    """What stands at a path of `PodTemplateExample`."""
    for step in path:
        tree = next(item for item in tree if item["name"] == step) if isinstance(tree, list) else tree[step]
    return tree
