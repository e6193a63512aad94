"""How many pods a fleet has, by its load."""

from __future__ import annotations

from typing import Any

from tests.support.bad_specs.attached import BY_LABEL, attached
from tests.support.bad_specs.document import BadSpec

_MIXED: dict[str, Any] = {"minReplicas": 1, "maxReplicas": 8}
_BOTH: dict[str, Any] = {"prefill": {"maxReplicas": 8}, "decode": {"maxReplicas": 8}}

BAD = (
    BadSpec(
        "autoscaling of no role",
        {"spec.autoscaling": {"actuator": "HPA"}},
        "spec.autoscaling",
        "write the bounds of a role, such as prefill: {minReplicas: 1, maxReplicas: 8}",
    ),
    BadSpec(
        "autoscaling of a role that the fleet has not",
        {"spec.autoscaling": {"mixed": _MIXED}},
        "spec",
        "autoscaling: name only roles that the fleet has: prefill and decode, or mixed",
    ),
    BadSpec(
        "autoscaling of pods of others",
        attached(BY_LABEL) | {"spec.autoscaling": {"mixed": _MIXED}},
        "spec",
        "autoscaling: remove it: how many attached pods there are is for those to say who make them",
    ),
    BadSpec(
        "autoscaling of an engine that does not tell its load",
        {
            "spec.prefill": None,
            "spec.decode": None,
            "spec.mixed": {},
            "spec.engine": {"type": "LightLLM", "image": "mine/lightllm:1"},
            "spec.model.source": {"pvc": {"claimName": "models"}},
            "spec.scheduling.policy": "HRRN",
            "spec.autoscaling": {"mixed": _MIXED},
        },
        "spec",
        "autoscaling: remove it: LightLLM tells neither how many sequences run nor how full its KV cache is",
    ),
    BadSpec(
        "KEDA without a Prometheus",
        {"spec.autoscaling": {"actuator": "KEDA", **_BOTH}},
        "spec",
        "metricsSource: name a source of type Prometheus, or write autoscaling.actuator HPA or Direct: KEDA asks",
    ),
    BadSpec(
        "an actuator that does not exist",
        {"spec.autoscaling": {"actuator": "VPA", **_BOTH}},
        "spec.autoscaling.actuator",
        "KEDA",
    ),
    BadSpec(
        "bounds without a top",
        {"spec.autoscaling": {"prefill": {"minReplicas": 1}}},
        "spec.autoscaling.prefill.maxReplicas",
        "equired",
    ),
    BadSpec(
        "bounds from nothing",
        {"spec.autoscaling": {"prefill": {"minReplicas": 0, "maxReplicas": 8}}},
        "spec.autoscaling.prefill.minReplicas",
        "greater than or equal to 1",
    ),
    BadSpec(
        "bounds upside down",
        {"spec.autoscaling": {"decode": {"minReplicas": 5, "maxReplicas": 4}}},
        "spec.autoscaling.decode",
        "write a minReplicas of at most maxReplicas, such as minReplicas: 1 and maxReplicas: 8",
    ),
    BadSpec(
        "a ratio with one side alone",
        {"spec.autoscaling": {"prefill": {"maxReplicas": 8}, "ratio": {"min": 0.5, "max": 4}}},
        "spec.autoscaling",
        "ratio: write prefill and decode beside it, or remove it: it moves both",
    ),
    BadSpec(
        "a ratio of more prefill pods than there may be",
        {
            "spec.autoscaling": {
                "prefill": {"maxReplicas": 2},
                "decode": {"minReplicas": 3, "maxReplicas": 8},
                "ratio": {"min": 1, "max": 4},
            }
        },
        "spec.autoscaling",
        "ratio: widen it, or the bounds of prefill and decode: no numbers within those bounds keep it",
    ),
    BadSpec(
        "a ratio of more decode pods than there may be",
        {
            "spec.autoscaling": {
                "prefill": {"minReplicas": 5, "maxReplicas": 8},
                "decode": {"maxReplicas": 2},
                "ratio": {"min": 0.5, "max": 2},
            }
        },
        "spec.autoscaling",
        "ratio: widen it, or the bounds of prefill and decode: no numbers within those bounds keep it",
    ),
    BadSpec(
        "a ratio upside down",
        {"spec.autoscaling": {**_BOTH, "ratio": {"min": 4, "max": 0.5}}},
        "spec.autoscaling.ratio",
        "write a min of at most max, such as min: 0.5 and max: 4",
    ),
    BadSpec(
        "a ratio of no prefill pods",
        {"spec.autoscaling": {**_BOTH, "ratio": {"min": 0, "max": 4}}},
        "spec.autoscaling.ratio.min",
        "greater than 0",
    ),
    BadSpec(
        "no accelerators at all",
        {"spec.autoscaling": {**_BOTH, "maxAccelerators": 0}},
        "spec.autoscaling.maxAccelerators",
        "greater than or equal to 1",
    ),
    BadSpec(
        "more accelerators than the fleet may have",
        {
            "spec.prefill.accelerator.count": 4,
            "spec.prefill.nodesPerReplica": 2,
            "spec.decode.accelerator": {"resource": "nvidia.com/gpu"},
            "spec.autoscaling": {"prefill": {"minReplicas": 2, "maxReplicas": 8}, "maxAccelerators": 16},
        },
        "spec",
        "autoscaling.maxAccelerators: raise it, or lower minReplicas (or replicas of a role that is not sized)",
    ),
    BadSpec(
        "a limit on accelerators that nobody asks for",
        {"spec.prefill.accelerator": None, "spec.autoscaling": {**_BOTH, "maxAccelerators": 16}},
        "spec",
        "autoscaling.maxAccelerators: remove it, or say what a pod asks for",
    ),
    BadSpec(
        "a backlog that is gone at once",
        {"spec.autoscaling": {**_BOTH, "drainTime": "0s"}},
        "spec.autoscaling.drainTime",
        'write a duration from 1s to 24h with its unit (ms, s, m, h), such as "2m"',
    ),
    BadSpec(
        "a window without a unit",
        {"spec.autoscaling": {**_BOTH, "downWindow": "600"}},
        "spec.autoscaling.downWindow",
        'write a duration from 10s to 24h with its unit (ms, s, m, h), such as "5m"',
    ),
)
