"""`spec.attach`: pods that somebody else makes, found by their labels.

The operator writes one ConfigMap for them and reads their exporters; what runs them (a Deployment, KServe, a
LeaderWorkerSet) stays the user's. A selector must name at least one label that pods have: one that only says what
pods have not would match pods of anything.

Left out: a scale target. Nothing scales attached pods yet, and a field that does nothing would be believed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

from prefleet_runtime.contract import DEFAULT_EXPORTER_PORT
from pydantic import Field

from prefleet_operator.api.base import DNS_NAME, SHORT_NAME_PATTERN, Model, matching
from prefleet_operator.api.rule import Rule

ATTACHABLE_ENGINES: Final = ("VLLM", "Simulator")
"""Engine types that follow the policy file of a ConfigMap; the others are told at their start, by their arguments."""

_KEY: Final = f"^({DNS_NAME}/)?{SHORT_NAME_PATTERN}$"
_VALUE: Final = f"^({SHORT_NAME_PATTERN})?$"

LabelKey = Annotated[
    str,
    Field(min_length=1, max_length=317),
    matching(_KEY, "write the key of a label, such as app or app.kubernetes.io/name"),
]
LabelValue = Annotated[
    str,
    Field(max_length=63),
    matching(_VALUE, "write the value of a label: at most 63 letters, digits, -, _ and ."),
]


class SelectorOperator(StrEnum):
    """How a label is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


_WITH_VALUES: Final = (SelectorOperator.IN, SelectorOperator.NOT_IN)
_FOUND_BY: Final = (SelectorOperator.IN, SelectorOperator.EXISTS)


class SelectorRequirement(Model):
    """One condition on a label."""

    key: LabelKey
    """The label's key."""
    operator: SelectorOperator
    """In, NotIn: the label's value is one of values, or none of them. Exists, DoesNotExist: whether the pod has it."""
    values: Annotated[list[LabelValue], Field(max_length=20)] = []
    """What In and NotIn compare with."""

    RULES: ClassVar = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (self.values.size() > 0)",
            "write values with operators In and NotIn, and none with Exists and DoesNotExist",
            lambda requirement: (requirement.operator in _WITH_VALUES) is bool(requirement.values),
        ),
    )

    @property
    def text(self) -> str:
        """The requirement as the API server takes it in a query."""
        values = f"({','.join(self.values)})"
        return {
            SelectorOperator.IN: f"{self.key} in {values}",
            SelectorOperator.NOT_IN: f"{self.key} notin {values}",
            SelectorOperator.EXISTS: self.key,
            SelectorOperator.DOES_NOT_EXIST: f"!{self.key}",
        }[self.operator]


def _are_labels(labels: Mapping[str, str]) -> bool:
    return all(len(key) <= 317 and re.search(_KEY, key) for key in labels)


MatchLabels = Annotated[
    dict[str, LabelValue],
    Field(max_length=20),
    Rule(
        f"self.all(key, key.matches('{_KEY}'))",
        "write keys of labels, such as app or app.kubernetes.io/name",
        _are_labels,
    ),
]


class PodSelector(Model):
    """Which pods, by their labels: all conditions must hold."""

    match_labels: MatchLabels = {}
    """Labels that a pod must have, with these values."""
    match_expressions: Annotated[list[SelectorRequirement], Field(max_length=10)] = []
    """Further conditions on labels."""

    RULES: ClassVar = (
        Rule(
            "self.matchLabels.size() > 0"
            " || self.matchExpressions.exists(each, each.operator == 'In' || each.operator == 'Exists')",
            "write a label in matchLabels, or one in matchExpressions with In or Exists: "
            "otherwise pods of anything would match",
            lambda selector: bool(
                selector.match_labels or any(each.operator in _FOUND_BY for each in selector.match_expressions)
            ),
        ),
    )

    @property
    def text(self) -> str:
        """The selector as the API server takes it in a query, equal for equal selectors."""
        labels = [f"{key}={value}" for key, value in sorted(self.match_labels.items())]
        return ",".join((*labels, *(each.text for each in self.match_expressions)))


class AttachedRole(Model):
    """The pods of one role."""

    pod_selector: PodSelector
    """Labels of the pods, in the policy's namespace."""
    metrics_port: Annotated[int, Field(ge=1, le=65535)] = DEFAULT_EXPORTER_PORT
    """Where the runtime in these pods serves its metrics."""


ConfigMapName = Annotated[
    str,
    Field(min_length=1, max_length=253),
    matching(
        f"^{DNS_NAME}$",
        "write the name of a ConfigMap: a-z, 0-9, - and ., beginning and ending with a letter or a digit",
    ),
]


class AttachSpec(Model):
    """Pods that somebody else makes: tuned and watched, never changed."""

    prefill: AttachedRole | None = None
    """Pods that only prefill; decode may stand beside it."""
    decode: AttachedRole | None = None
    """Pods that only decode, where they run the runtime too; goes together with prefill."""
    mixed: AttachedRole | None = None
    """Pods that do both; stands alone."""
    policy_config_map: ConfigMapName | None = None
    """The ConfigMap that the operator writes and the pods mount; NAME-policy if left out, NAME being the policy's.
    It stays when the policy is deleted."""

    RULES: ClassVar = (
        Rule(
            "has(self.mixed) ? !(has(self.prefill) || has(self.decode)) : has(self.prefill)",
            "write prefill, with decode or without it, or mixed alone",
            lambda attach: (
                attach.prefill is None and attach.decode is None if attach.mixed else attach.prefill is not None
            ),
        ),
    )


def attachable_engine_rules(types: Iterable[str]) -> tuple[Rule, ...]:
    """The rule that keeps engines out that read no policy file; none while there is no such engine to break it."""
    if set(types) <= set(ATTACHABLE_ENGINES):
        return ()
    return (
        Rule(
            f"!has(self.attach) || self.engine.type in [{', '.join(map(repr, ATTACHABLE_ENGINES))}]",
            f"attach works with engine types {' and '.join(ATTACHABLE_ENGINES)}: others are told their policy at their "
            "start, so let the operator make their pods",
            lambda spec: spec.attach is None or spec.engine.type in ATTACHABLE_ENGINES,
        ),
    )


def brings_nothing_of_its_own(spec: Any) -> bool:
    """Whether the spec says nothing about how attached pods are made, which nobody would follow."""
    return spec.attach is None or not (spec.model.source or spec.engine.image or spec.runtime.image)
