"""PrefillPolicies that must be refused, and the words that the refusal has to hold.

One table for both judges: `parse_document` in the unit tests, the API server in the control plane's. `sentence` is
what both say, from the rule; `field` is the path that both name.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from prefleet_operator.api import GROUP, KIND, VERSION

from tests.support import bad_autoscaling

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


def _attached(selector: dict[str, Any], **attach: Any) -> dict[str, Any]:
    """The change from GOOD to a spec that attaches mixed pods."""
    return {
        "spec.prefill": None,
        "spec.decode": None,
        "spec.model.source": None,
        "spec.attach": {"mixed": {"podSelector": selector}, **attach},
    }


BY_LABEL: dict[str, Any] = {"matchLabels": {"app": "chat"}}


@dataclass(frozen=True)
class BadSpec:
    """`change`: what is laid over GOOD, by dotted path; None takes a field away."""

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


_ENGINES: dict[str, dict[str, Any]] = {
    "VLLM": {"spec.engine": {"type": "VLLM", "version": "0.32.0"}},
    "Simulator": {"spec.engine": {"type": "Simulator"}},
    "VLLMAscend": {"spec.engine": {"type": "VLLMAscend", "version": "0.25.1rc1"}},
    "LightLLM": {
        "spec.engine": {"type": "LightLLM", "image": "mine/lightllm:1"},
        "spec.scheduling.policy": "HRRN",
    },
    "SGLang": {"spec.engine": {"type": "SGLang", "version": "0.5.23"}, "spec.scheduling.policy": "HRRN"},
    "MindIE": {"spec.engine": {"type": "MindIE", "image": "mine/mindie:1"}, "spec.scheduling.policy": "FCFS"},
}
"""Each engine, as it is laid over GOOD; those that run mixed pods alone get them here."""

for _mixed in ("LightLLM", "MindIE"):
    _ENGINES[_mixed] |= {
        "spec.prefill": None,
        "spec.decode": None,
        "spec.mixed": {},
        "spec.model.source": {"pvc": {"claimName": "models"}},
    }


def engine_document(kind: str, change: dict[str, Any] | None = None) -> dict[str, Any]:
    """A resource for one engine that is good but for `change`."""
    return BadSpec(kind, _ENGINES[kind] | (change or {}), "", "").document()


def _of(kind: str, name: str, change: dict[str, Any], sentence: str, field: str = "spec") -> BadSpec:
    return BadSpec(f"{kind}: {name}", _ENGINES[kind] | change, field, sentence)


_ENGINE_SPECS = (
    *(
        _of(kind, "a policy that it cannot run", {"spec.scheduling.policy": policy}, f"{can}: {kind} can run no other")
        for kind, policy, can in (
            ("VLLM", "ShortestPrefillFirst", "write ShortRequestFirst, PromoteShortest, HRRN or FCFS"),
            ("Simulator", "ShortestPrefillFirst", "write ShortRequestFirst, PromoteShortest, HRRN or FCFS"),
            ("VLLMAscend", "HRRN", "scheduling.policy: write ShortRequestFirst or FCFS"),
            ("LightLLM", "ShortRequestFirst", "scheduling.policy: write PromoteShortest, HRRN or FCFS"),
            ("SGLang", "ShortRequestFirst", "scheduling.policy: write HRRN, ShortestPrefillFirst or FCFS"),
            ("MindIE", "HRRN", "scheduling.policy: write FCFS"),
        )
    ),
    _of(
        "MindIE",
        "without root",
        {"spec.security": {"profile": "Restricted"}},
        "security.profile: write Baseline: MindIE's files belong to root",
    ),
    *(
        _of(kind, "a stage that it does not know", {"spec.scheduling.stage": stage}, f"{can}: {kind} knows no other")
        for kind, stage, can in (
            ("VLLM", {"type": "Latency"}, "scheduling.stage.type: write Mixed, TPT or StallBudget"),
            ("Simulator", {"type": "Latency"}, "scheduling.stage.type: write Mixed, TPT or StallBudget"),
            ("VLLMAscend", {"type": "Latency"}, "scheduling.stage.type: write Mixed"),
            ("LightLLM", {"type": "Latency"}, "scheduling.stage.type: write Mixed"),
            ("SGLang", {"type": "StallBudget", "maxStall": "50ms"}, "scheduling.stage.type: write Mixed"),
            (
                "MindIE",
                {"type": "StallBudget", "maxStall": "50ms"},
                "scheduling.stage.type: write Mixed, TPT or Latency",
            ),
        )
    ),
    *(
        _of(kind, "no model", {"spec.model.source": None}, sentence)
        for kind, sentence in (
            ("VLLMAscend", "model.source: write one of hub, pvc or hostPath: engine type VLLMAscend needs a model"),
            ("SGLang", "model.source: write one of hub, pvc or hostPath: engine type SGLang needs a model"),
            ("LightLLM", "model.source: write pvc or hostPath: LightLLM reads its model from a folder"),
            ("MindIE", "model.source: write pvc or hostPath: MindIE reads its model from a folder"),
        )
    ),
    *(
        _of(kind, "a model from a hub", {"spec.model.source": {"hub": {"repo": "owner/model"}}}, sentence)
        for kind, sentence in (
            ("LightLLM", "model.source: write pvc or hostPath: LightLLM reads its model from a folder"),
            ("MindIE", "model.source: write pvc or hostPath: MindIE reads its model from a folder"),
        )
    ),
    *(
        _of(kind, "prefill and decode apart", {"spec.prefill": {}, "spec.decode": {}, "spec.mixed": None}, sentence)
        for kind, sentence in (
            ("LightLLM", "write mixed in place of prefill and decode: LightLLM's prefill and decode pods need a pd"),
            ("MindIE", "write mixed in place of prefill and decode: MindIE's prefill and decode pods need MindIE's"),
        )
    ),
    *(
        _of(kind, "neither version nor image", {"spec.engine": {"type": kind}}, sentence, "spec.engine")
        for kind, sentence in (
            ("VLLMAscend", "write version (such as 0.25.1rc1) or image: type VLLMAscend needs one of them"),
            ("SGLang", "write version (such as 0.5.23) or image: type SGLang needs one of them"),
            ("LightLLM", "write image: there is no stock image of a LightLLM release that fits all hardware"),
            ("MindIE", "write image: there is no stock image of a MindIE release that fits all hardware"),
        )
    ),
    _of(
        "VLLMAscend",
        "ShortRequestFirst in an image of unknown release",
        {"spec.engine": {"type": "VLLMAscend", "image": "mine/vllm-ascend:1"}},
        "engine.version: write the release that is in the image, such as 0.25.1rc1: it decides how VLLMAscend",
    ),
    _of(
        "VLLMAscend",
        "a release without ShortRequestFirst",
        {"spec.engine.version": "0.23.0"},
        "engine.version: write 0.24.0rc1, or 0.25.1rc1 or later, or scheduling.policy FCFS: other releases",
    ),
    _of(
        "VLLMAscend",
        "a release that ignores ShortRequestFirst on prefill pods",
        {"spec.engine.version": "0.24.0rc1"},
        "engine.version: write 0.25.1rc1 or later, or mixed in place of prefill and decode: on prefill pods VLLMAscend",
    ),
    _of(
        "SGLang",
        "HRRN in an old release",
        {"spec.engine.version": "0.5.9"},
        "engine.version: write 0.5.23 or later, or scheduling.policy FCFS",
    ),
    _of(
        "SGLang",
        "the argument that chooses the policy",
        {"spec.prefill.args": ["--schedule-policy", "lof"]},
        "args: remove what the operator writes itself (--disaggregation-bootstrap-port,",
        "spec.prefill",
    ),
    _of(
        "LightLLM",
        "the argument that chooses the policy",
        {"spec.mixed.args": ["--prefill_queue_strategy=hrrn"]},
        "args: remove what the operator writes itself (--disaggregation-bootstrap-port,",
        "spec.mixed",
    ),
)


BAD_SPECS = (
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
        "pods of others beside pods of the operator's making",
        {"spec.attach": {"mixed": {"podSelector": BY_LABEL}}, "spec.model.source": None},
        "spec",
        "write either prefill and decode together, or mixed alone, or attach alone",
    ),
    BadSpec(
        "a model for pods of others",
        _attached(BY_LABEL) | {"spec.model.source": {"hub": {"repo": "owner/model"}}},
        "spec",
        "attach: remove model.source, engine.image and runtime.image: attached pods have their own",
    ),
    BadSpec(
        "a runtime image for pods of others",
        _attached(BY_LABEL) | {"spec.runtime": {"image": "mine/runtime:1"}},
        "spec",
        "attach: remove model.source, engine.image and runtime.image: attached pods have their own",
    ),
    BadSpec(
        "a security profile for pods of others",
        _attached(BY_LABEL) | {"spec.security": {"profile": "Restricted"}},
        "spec",
        "security.profile: remove it: as which user attached pods run",
    ),
    BadSpec(
        "attached decode pods without prefill pods",
        {**_attached(BY_LABEL), "spec.attach": {"decode": {"podSelector": BY_LABEL}}},
        "spec.attach",
        "write prefill, with decode or without it, or mixed alone",
    ),
    BadSpec(
        "attached mixed pods beside prefill pods",
        _attached(BY_LABEL, prefill={"podSelector": BY_LABEL}),
        "spec.attach",
        "write prefill, with decode or without it, or mixed alone",
    ),
    BadSpec(
        "a selector of everything",
        _attached({}),
        "spec.attach.mixed.podSelector",
        "write a label in matchLabels, or one in matchExpressions with In or Exists",
    ),
    BadSpec(
        "a selector that only says what pods have not",
        _attached({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}),
        "spec.attach.mixed.podSelector",
        "write a label in matchLabels, or one in matchExpressions with In or Exists",
    ),
    BadSpec(
        "a label without a value to be in",
        _attached({"matchExpressions": [{"key": "app", "operator": "In"}]}),
        "spec.attach.mixed.podSelector.matchExpressions",
        "write values with operators In and NotIn, and none with Exists and DoesNotExist",
    ),
    BadSpec(
        "a key that no label has",
        _attached({"matchExpressions": [{"key": "app name", "operator": "Exists"}]}),
        "spec.attach.mixed.podSelector.matchExpressions",
        "write the key of a label, such as app or app.kubernetes.io/name",
    ),
    BadSpec(
        "a key in matchLabels that no label has",
        _attached({"matchLabels": {"example..com/app": "chat"}}),
        "spec.attach.mixed.podSelector.matchLabels",
        "write keys of labels, such as app or app.kubernetes.io/name",
    ),
    BadSpec(
        "a value that no label has",
        _attached({"matchLabels": {"app": "chat, or any"}}),
        "spec.attach.mixed.podSelector.matchLabels",
        "write the value of a label: at most 63 letters, digits, -, _ and .",
    ),
    BadSpec(
        "a port that is none",
        {**_attached(BY_LABEL), "spec.attach": {"mixed": {"podSelector": BY_LABEL, "metricsPort": 0}}},
        "spec.attach.mixed.metricsPort",
        "greater than or equal to 1",
    ),
    BadSpec(
        "a name that no ConfigMap can have",
        _attached(BY_LABEL, policyConfigMap="Chat_Policy"),
        "spec.attach.policyConfigMap",
        "write the name of a ConfigMap: a-z, 0-9, - and .",
    ),
    BadSpec(
        "vLLM without a model",
        {"spec.model.source": None},
        "spec",
        "model.source: write one of hub, pvc or hostPath: engine type VLLM needs a model",
    ),
    BadSpec(
        "a model from two places",
        {"spec.model.source.hostPath": "/models/llama"},
        "spec.model.source",
        "write exactly one of hub, pvc or hostPath",
    ),
    BadSpec(
        "a model from nowhere",
        {"spec.model.source": {}},
        "spec.model.source",
        "write exactly one of hub, pvc or hostPath",
    ),
    BadSpec(
        "a relative path on the node",
        {"spec.model.source": {"hostPath": "models/llama"}},
        "spec.model.source.hostPath",
        "write an absolute path on the node, such as /models/llama",
    ),
    BadSpec(
        "a path that leaves the volume",
        {"spec.model.source": {"pvc": {"claimName": "models", "path": "../secrets"}}},
        "spec.model.source.pvc.path",
        "write a path inside the volume, without a leading / and without ..",
    ),
    BadSpec(
        "a repository that is an address",
        {"spec.model.source.hub.repo": "https://host/owner/model"},
        "spec.model.source.hub.repo",
        "write the repository as owner/name, such as Qwen/Qwen3-8B",
    ),
    BadSpec(
        "a served name that looks like an option",
        {"spec.model.servedName": "--chat"},
        "spec.model.servedName",
        "write a name without spaces that begins with a letter or a digit",
    ),
    BadSpec(
        "vLLM with neither version nor image",
        {"spec.engine.version": None},
        "spec.engine",
        "write version (such as 0.33.0) or image: type VLLM needs one of them",
    ),
    BadSpec(
        "a vLLM release that the runtime does not support",
        {"spec.engine.version": "0.27.1"},
        "spec.engine",
        "version: write a release of vLLM 0.28 to 0.33, such as 0.33.0: the runtime supports no other",
    ),
    BadSpec(
        "a simulator with an image of its own",
        {"spec.engine": {"type": "Simulator", "image": "mine/sim:1"}},
        "spec.engine",
        "remove version and image: type Simulator runs in the image of spec.runtime",
    ),
    BadSpec(
        "an engine that this release cannot run",
        {"spec.engine.type": "TensorRT"},
        "spec.engine.type",
        "VLLM",
    ),
    BadSpec(
        "a policy that this release cannot run",
        {"spec.scheduling.policy": "LongestFirst"},
        "spec.scheduling.policy",
        "PromoteShortest",
    ),
    BadSpec(
        "trust in clients that is no yes or no",
        {"spec.scheduling.trustClientPriority": "high"},
        "spec.scheduling.trustClientPriority",
        "boolean",
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
    BadSpec(
        "a negative number of replicas",
        {"spec.prefill.replicas": -1},
        "spec.prefill.replicas",
        "greater than or equal to 0",
    ),
    BadSpec(
        "a duration without a unit",
        {"spec.slo.shortTTFT": "500"},
        "spec.slo.shortTTFT",
        'write a duration from 1ms to 1h with its unit (ms, s, m, h), such as "500ms"',
    ),
    BadSpec(
        "a promise of nothing",
        {"spec.slo.longQueueWait": "0s"},
        "spec.slo.longQueueWait",
        'write a duration from 100ms to 24h with its unit (ms, s, m, h), such as "8s"',
    ),
    BadSpec(
        "a window too short to see anything",
        {"spec.tuning.window": "1s"},
        "spec.tuning.window",
        'write a duration from 10s to 24h with its unit (ms, s, m, h), such as "5m"',
    ),
    BadSpec(
        "a cooldown of a month",
        {"spec.tuning.cooldown": "720h"},
        "spec.tuning.cooldown",
        'write a duration from 0s to 168h with its unit (ms, s, m, h), such as "15m"',
    ),
    BadSpec(
        "a wait that no clock can count",
        {"spec.scheduling.longMaxWait": "999999h999999h"},
        "spec.scheduling.longMaxWait",
        'write a duration from 0s to 24h with its unit (ms, s, m, h), such as "8s"',
    ),
    BadSpec(
        "a band upside down",
        {"spec.tuning.band": {"low": 85, "high": 70}},
        "spec.tuning.band",
        "write a low below high, such as low: 70 and high: 85",
    ),
    BadSpec(
        "a band above its own default",
        {"spec.tuning.band.low": 90},
        "spec.tuning.band",
        "write a low below high, such as low: 70 and high: 85",
    ),
    BadSpec(
        "no tuning and no values",
        {"spec.tuning.mode": "Off"},
        "spec",
        "scheduling: write threshold and longMaxWait, or set tuning.mode to Auto",
    ),
    BadSpec(
        "no tuning and half the values",
        {"spec.tuning.mode": "Off", "spec.scheduling.threshold": 512},
        "spec",
        "scheduling: write threshold and longMaxWait, or set tuning.mode to Auto",
    ),
    BadSpec(
        "a share of nothing",
        {"spec.scheduling.agedShare": 0},
        "spec.scheduling.agedShare",
        "greater than 0",
    ),
    BadSpec(
        "a name that no Service can have",
        {"metadata.name": "chat.v2"},
        "metadata.name",
        "write at most 55 of the characters a-z, 0-9 and -, beginning with a letter",
    ),
    BadSpec(
        "an unknown long chunk",
        {"spec.scheduling": {"longChunk": "Half"}},
        "spec.scheduling.longChunk",
        "Yield",
    ),
    BadSpec(
        "TPT without its numbers",
        {"spec.scheduling": {"stage": {"type": "TPT", "maxBatch": 64}}},
        "spec",
        "scheduling.stage: write prefillPerRequest, decodePerRequest and maxBatch with type TPT, all three: only",
    ),
    BadSpec(
        "TPT with one of its two costs",
        {"spec.scheduling": {"stage": {"type": "TPT", "maxBatch": 64, "decodePerRequest": "1ms"}}},
        "spec.scheduling.stage",
        "write prefillPerRequest, decodePerRequest and maxBatch with type TPT, all three, and with no other type",
    ),
    BadSpec(
        "the numbers of TPT with another stage",
        {"spec.scheduling": {"stage": {"type": "Mixed", "maxBatch": 64}}},
        "spec.scheduling.stage",
        "write prefillPerRequest, decodePerRequest and maxBatch with type TPT, all three, and with no other type",
    ),
    BadSpec(
        "a stall budget without a limit",
        {"spec.scheduling": {"stage": {"type": "StallBudget"}}},
        "spec.scheduling.stage",
        'write maxStall, such as "50ms", with type StallBudget and with no other type',
    ),
    BadSpec(
        "a stall too short to mean anything",
        {"spec.scheduling": {"stage": {"type": "StallBudget", "maxStall": "0.1ms"}}},
        "spec.scheduling.stage.maxStall",
        'write a duration from 1ms to 1h with its unit (ms, s, m, h), such as "50ms"',
    ),
    BadSpec(
        "a prefill that costs nothing",
        {
            "spec.scheduling": {
                "stage": {"type": "TPT", "prefillPerRequest": "0ms", "decodePerRequest": "1ms", "maxBatch": 8}
            }
        },
        "spec.scheduling.stage.prefillPerRequest",
        'write a duration from 0.001ms to 1h with its unit (ms, s, m, h), such as "80ms"',
    ),
    BadSpec(
        "a decode that takes hours",
        {
            "spec.scheduling": {
                "stage": {"type": "TPT", "prefillPerRequest": "9ms", "decodePerRequest": "9h", "maxBatch": 8}
            }
        },
        "spec.scheduling.stage.decodePerRequest",
        'write a duration from 0ms to 1h with its unit (ms, s, m, h), such as "0.5ms"',
    ),
    BadSpec(
        "a gap between tokens of nothing",
        {"spec.slo.interTokenGap": "0ms"},
        "spec.slo.interTokenGap",
        'write a duration from 1ms to 10s with its unit (ms, s, m, h), such as "200ms"',
    ),
    BadSpec(
        "a restart every hour",
        {"spec.tuning.restartBudget": 24},
        "spec.tuning.restartBudget",
        "less than or equal to 10",
    ),
    BadSpec(
        "a router of another engine",
        {"spec.router": {"type": "SGLangRouter", "image": "example.com/router:1", "serviceAccountName": "finder"}},
        "spec",
        "router.type: write a router that speaks to the engine type (VLLMRouter for VLLM or Simulator; "
        "SGLangRouter for SGLang), or None",
    ),
    BadSpec(
        "SGLang's router by Services, with prefill and decode apart",
        {"spec.router": {"type": "SGLangRouter", "image": "example.com/router:1"}},
        "spec",
        "router.serviceAccountName: write an account that may get, list and watch pods",
    ),
    BadSpec(
        "a busy retry that the router would not do",
        {"spec.router": {"type": "VLLMRouter", "image": "example.com/router:1", "busyRetryTimeout": "5s"}},
        "spec",
        "router.busyRetryTimeout: leave it out: where prefill and decode are apart, VLLMRouter never tries again",
    ),
    BadSpec(
        "a busy retry without an end",
        {"spec.router": {"type": "VLLMRouter", "image": "example.com/router:1", "busyRetryTimeout": "11m"}},
        "spec.router.busyRetryTimeout",
        'write a duration from 0s to 10m with its unit (ms, s, m, h), such as "5s"',
    ),
    BadSpec(
        "a router without an image",
        {"spec.router": {"type": "VLLMRouter"}},
        "spec.router",
        "write image: an image that holds the router, with a release tag: the operator assumes none",
    ),
    BadSpec(
        "a router without a type",
        {"spec.router": {"args": ["--policy", "random"]}},
        "spec.router",
        "write type, such as VLLMRouter: without it there is no router, and the other fields count for nothing",
    ),
    BadSpec(
        "a router's argument that is the operator's",
        {"spec.router": {"type": "VLLMRouter", "image": "example.com/router:1", "args": ["--retry-max-retries=9"]}},
        "spec.router",
        "args: remove what the operator writes itself (--host, --port, --prometheus-host",
    ),
    BadSpec(
        "an account that no account can be named",
        {"spec.router": {"type": "VLLMRouter", "image": "example.com/router:1", "serviceAccountName": "Finder"}},
        "spec.router.serviceAccountName",
        "write the name of a ServiceAccount of the policy's namespace",
    ),
    BadSpec(
        "a router before pods of others",
        _attached(BY_LABEL) | {"spec.router": {"type": "VLLMRouter", "image": "example.com/router:1"}},
        "spec",
        "router: remove it: attached pods are behind the Services, and the router, of whoever makes them",
    ),
    *_ENGINE_SPECS,
    *(BadSpec(*row) for row in bad_autoscaling.ROWS),
)
