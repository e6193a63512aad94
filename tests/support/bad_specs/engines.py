"""What one engine cannot do, or does under conditions: the rules of `api/engine_rules.py`."""

from __future__ import annotations

from typing import Any

from tests.support.bad_specs.document import BadSpec

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


BAD = (
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
    *(
        _of(
            kind,
            f"release {version} without an image",
            {"spec.engine.version": version, "spec.scheduling.policy": "FCFS"},
            "engine.version: write a release as the tag of the stock image names it, such as 0.5.23 or 0.25.1rc1",
        )
        for kind, version in (
            ("VLLM", "0.33.0+cu129"),
            ("VLLMAscend", "latest"),
            ("SGLang", "v0.5.23"),
            ("SGLang", "0.5." + 125 * "1"),
        )
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
