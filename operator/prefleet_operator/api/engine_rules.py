"""The rules that tie a spec to its engine: one for each engine and thing, each saying what is possible.

`ENGINE_RULES` are about `spec.engine` alone, `FLEET_RULES` about the whole spec. Most are made from the table of
capabilities; what only one engine knows (the releases of VLLMAscend that would silently ignore the setting) stands
at the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from prefleet_operator.api.engine_types import CAPABILITIES, EngineType, SchedulingPolicy, StageType
from prefleet_operator.api.rule import Rule

if TYPE_CHECKING:
    from prefleet_operator.api.spec import EngineSpec, PrefillPolicySpec

SUPPORTED_VLLM = ("0.28", "0.29", "0.30", "0.31", "0.32", "0.33")
"""The vLLM releases, major and minor, that the runtime is tested with, oldest first, without gaps."""

_A_SUPPORTED_VLLM: Final = "^(" + "|".join(minor.replace(".", "[.]") for minor in SUPPORTED_VLLM) + ")[.]"

TOP_LEVEL_VLLM_ASCEND: Final = "0.24.0rc1"
"""The release that has ShortRequestFirst under a key of its own, and not on prefill pods."""

_KNOWS_SHORT_FIRST: Final = (
    f"^{TOP_LEVEL_VLLM_ASCEND.replace('.', '[.]')}$|^0[.](25[.][1-9]|2[6-9][.]|[3-9][0-9][.])|^[1-9][0-9]*[.]"
)
_TAGGED: Final = "^[0-9][A-Za-z0-9_.-]{0,126}$"
"""A release as it stands in the tag of a stock image, behind a v: a tag has 128 characters, and no +."""

_FIRST_SGLANG: Final = "^0[.]5[.](2[3-9]|[3-9][0-9]|[1-9][0-9]{2})|^0[.]([6-9]|[1-9][0-9])[.]|^[1-9][0-9]*[.]"


def listed(names: Sequence[str]) -> str:
    """ "A", "A or B", "A, B or C"."""
    *rest, last = names
    return f"{', '.join(rest)} or {last}" if rest else last


def _needs_version_or_image(kind: EngineType) -> Rule:
    release = CAPABILITIES[kind].release
    if release is None:
        return Rule(
            f"self.type != '{kind}' || has(self.image)",
            f"write image: there is no stock image of a {kind} release that fits all hardware",
            lambda engine: engine.type is not kind or bool(engine.image),
        )
    return Rule(
        f"self.type != '{kind}' || has(self.version) || has(self.image)",
        f"write version (such as {release}) or image: type {kind} needs one of them",
        lambda engine: engine.type is not kind or bool(engine.version or engine.image),
    )


def _has_version_like(engine: EngineSpec, kind: EngineType, pattern: str) -> bool:
    return engine.type is not kind or engine.version is None or re.search(pattern, engine.version) is not None


ENGINE_RULES: Final = (
    *(_needs_version_or_image(kind) for kind in EngineType if kind is not EngineType.SIMULATOR),
    Rule(
        f"self.type != 'VLLM' || !has(self.version) || self.version.matches('{_A_SUPPORTED_VLLM}')",
        f"version: write a release of vLLM {SUPPORTED_VLLM[0]} to {SUPPORTED_VLLM[-1]}, such as "
        f"{SUPPORTED_VLLM[-1]}.0: the runtime supports no other",
        lambda engine: _has_version_like(engine, EngineType.VLLM, _A_SUPPORTED_VLLM),
    ),
    Rule(
        "self.type != 'Simulator' || !(has(self.version) || has(self.image))",
        "remove version and image: type Simulator runs in the image of spec.runtime",
        lambda engine: engine.type is not EngineType.SIMULATOR or not (engine.version or engine.image),
    ),
)
"""Of `spec.engine`."""


def _runs_the_policy(kind: EngineType) -> Rule:
    policies = CAPABILITIES[kind].policies
    return Rule(
        f"self.engine.type != '{kind}' || self.scheduling.policy in [{', '.join(repr(str(p)) for p in policies)}]",
        f"scheduling.policy: write {listed(policies)}: {kind} can run no other",
        lambda spec: spec.engine.type is not kind or spec.scheduling.policy in policies,
    )


def _runs_the_stage(kind: EngineType) -> Rule:
    stages = CAPABILITIES[kind].stages
    return Rule(
        f"self.engine.type != '{kind}' || self.scheduling.stage.type in [{', '.join(repr(str(s)) for s in stages)}]",
        f"scheduling.stage.type: write {listed(stages)}: {kind} knows no other",
        lambda spec: spec.engine.type is not kind or spec.scheduling.stage.type in stages,
    )


def _has_a_model(kind: EngineType) -> Rule:
    if CAPABILITIES[kind].hub:
        return Rule(
            f"self.engine.type != '{kind}' || has(self.attach) || has(self.model.source)",
            f"model.source: write one of hub, pvc or hostPath: engine type {kind} needs a model",
            lambda spec: bool(spec.engine.type is not kind or spec.attach or spec.model.source),
        )
    return Rule(
        f"self.engine.type != '{kind}' || has(self.attach) || (has(self.model.source) && !has(self.model.source.hub))",
        f"model.source: write pvc or hostPath: {kind} reads its model from a folder",
        lambda spec: bool(
            spec.engine.type is not kind
            or spec.attach
            or (spec.model.source is not None and spec.model.source.hub is None)
        ),
    )


def _runs_mixed_alone(kind: EngineType) -> Rule:
    return Rule(
        f"self.engine.type != '{kind}' || !(has(self.prefill) || has(self.decode))",
        f"write mixed in place of prefill and decode: {kind}'s prefill and decode pods need "
        f"{CAPABILITIES[kind].apart_needs}, which Prefleet does not render",
        lambda spec: spec.engine.type is not kind or (spec.prefill is None and spec.decode is None),
    )


def _chooses_a_tag(spec: PrefillPolicySpec) -> bool:
    """Whether the stock image of the release is what the pods run."""
    return spec.attach is None and spec.engine.image is None and spec.engine.version is not None


def _short_first_on_ascend(spec: PrefillPolicySpec) -> bool:
    return spec.engine.type is EngineType.VLLM_ASCEND and spec.scheduling.policy is SchedulingPolicy.SHORT_REQUEST_FIRST


_OTHERWISE: Final = "self.engine.type != 'VLLMAscend' || self.scheduling.policy != 'ShortRequestFirst'"

FLEET_RULES: Final = (
    *(_has_a_model(kind) for kind in EngineType if kind is not EngineType.SIMULATOR),
    *(_runs_the_policy(kind) for kind in EngineType),
    *(_runs_the_stage(kind) for kind in EngineType),
    *(_runs_mixed_alone(kind) for kind in EngineType if CAPABILITIES[kind].apart_needs),
    Rule(
        "has(self.attach) || has(self.engine.image) || !has(self.engine.version)"
        f" || self.engine.version.matches('{_TAGGED}')",
        "engine.version: write a release as the tag of the stock image names it, such as 0.5.23 or 0.25.1rc1, "
        "without v and without +; or write image beside it",
        lambda spec: not _chooses_a_tag(spec) or re.search(_TAGGED, spec.engine.version or "") is not None,
    ),
    Rule(
        "self.engine.type == 'MindIE' || self.scheduling.stage.type != 'TPT' || has(self.scheduling.stage.maxBatch)"
        " && has(self.scheduling.stage.prefillPerRequest)",
        "scheduling.stage: write prefillPerRequest, decodePerRequest and maxBatch with type TPT, all three: "
        "only MindIE's are derived from slo.interTokenGap",
        lambda spec: (
            spec.engine.type is EngineType.MINDIE
            or spec.scheduling.stage.type is not StageType.TPT
            or None not in (spec.scheduling.stage.max_batch, spec.scheduling.stage.prefill_per_request)
        ),
    ),
    Rule(
        f"{_OTHERWISE} || has(self.engine.version)",
        "engine.version: write the release that is in the image, such as "
        f"{CAPABILITIES[EngineType.VLLM_ASCEND].release}: it decides how VLLMAscend is told ShortRequestFirst",
        lambda spec: not _short_first_on_ascend(spec) or spec.engine.version is not None,
    ),
    Rule(
        f"{_OTHERWISE} || !has(self.engine.version) || self.engine.version.matches('{_KNOWS_SHORT_FIRST}')",
        f"engine.version: write {TOP_LEVEL_VLLM_ASCEND}, or 0.25.1rc1 or later, or scheduling.policy FCFS: "
        "other releases of VLLMAscend have no ShortRequestFirst",
        lambda spec: (
            not _short_first_on_ascend(spec) or _has_version_like(spec.engine, spec.engine.type, _KNOWS_SHORT_FIRST)
        ),
    ),
    Rule(
        f"{_OTHERWISE} || !has(self.engine.version) || self.engine.version != '{TOP_LEVEL_VLLM_ASCEND}'"
        " || !has(self.prefill)",
        f"engine.version: write 0.25.1rc1 or later, or mixed in place of prefill and decode: on prefill pods "
        f"VLLMAscend {TOP_LEVEL_VLLM_ASCEND} silently ignores ShortRequestFirst",
        lambda spec: (
            not _short_first_on_ascend(spec) or spec.engine.version != TOP_LEVEL_VLLM_ASCEND or spec.prefill is None
        ),
    ),
    Rule(
        "self.engine.type != 'SGLang' || self.scheduling.policy == 'FCFS' || !has(self.engine.version)"
        f" || self.engine.version.matches('{_FIRST_SGLANG}')",
        "engine.version: write 0.5.23 or later, or scheduling.policy FCFS: HRRN and ShortestPrefillFirst are "
        "tested with no older SGLang",
        lambda spec: (
            spec.scheduling.policy is SchedulingPolicy.FCFS
            or _has_version_like(spec.engine, EngineType.SGLANG, _FIRST_SGLANG)
        ),
    ),
)
"""Of the whole spec."""
