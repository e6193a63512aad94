"""Pods that someone else makes."""

from __future__ import annotations

from typing import Any

from tests.support.bad_specs.document import BadSpec

BY_LABEL: dict[str, Any] = {"matchLabels": {"app": "chat"}}


def attached(selector: dict[str, Any], **attach: Any) -> dict[str, Any]:
    """The change from GOOD to a spec that attaches mixed pods."""
    return {
        "spec.prefill": None,
        "spec.decode": None,
        "spec.model.source": None,
        "spec.attach": {"mixed": {"podSelector": selector}, **attach},
    }


BAD = (
    BadSpec(
        "pods of others beside pods of the operator's making",
        {"spec.attach": {"mixed": {"podSelector": BY_LABEL}}, "spec.model.source": None},
        "spec",
        "write either prefill and decode together, or mixed alone, or attach alone",
    ),
    BadSpec(
        "a model for pods of others",
        attached(BY_LABEL) | {"spec.model.source": {"hub": {"repo": "owner/model"}}},
        "spec",
        "attach: remove model.source, engine.image and runtime.image: attached pods have their own",
    ),
    BadSpec(
        "a runtime image for pods of others",
        attached(BY_LABEL) | {"spec.runtime": {"image": "mine/runtime:1"}},
        "spec",
        "attach: remove model.source, engine.image and runtime.image: attached pods have their own",
    ),
    BadSpec(
        "a security profile for pods of others",
        attached(BY_LABEL) | {"spec.security": {"profile": "Restricted"}},
        "spec",
        "security.profile: remove it: as which user attached pods run",
    ),
    BadSpec(
        "attached decode pods without prefill pods",
        {**attached(BY_LABEL), "spec.attach": {"decode": {"podSelector": BY_LABEL}}},
        "spec.attach",
        "write prefill, with decode or without it, or mixed alone",
    ),
    BadSpec(
        "attached mixed pods beside prefill pods",
        attached(BY_LABEL, prefill={"podSelector": BY_LABEL}),
        "spec.attach",
        "write prefill, with decode or without it, or mixed alone",
    ),
    BadSpec(
        "a selector of everything",
        attached({}),
        "spec.attach.mixed.podSelector",
        "write a label in matchLabels, or one in matchExpressions with In or Exists",
    ),
    BadSpec(
        "a selector that only says what pods have not",
        attached({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}),
        "spec.attach.mixed.podSelector",
        "write a label in matchLabels, or one in matchExpressions with In or Exists",
    ),
    BadSpec(
        "a label without a value to be in",
        attached({"matchExpressions": [{"key": "app", "operator": "In"}]}),
        "spec.attach.mixed.podSelector.matchExpressions",
        "write values with operators In and NotIn, and none with Exists and DoesNotExist",
    ),
    BadSpec(
        "a key that no label has",
        attached({"matchExpressions": [{"key": "app name", "operator": "Exists"}]}),
        "spec.attach.mixed.podSelector.matchExpressions",
        "write the key of a label, such as app or app.kubernetes.io/name",
    ),
    BadSpec(
        "a key in matchLabels that no label has",
        attached({"matchLabels": {"example..com/app": "chat"}}),
        "spec.attach.mixed.podSelector.matchLabels",
        "write keys of labels, such as app or app.kubernetes.io/name",
    ),
    BadSpec(
        "a value that no label has",
        attached({"matchLabels": {"app": "chat, or any"}}),
        "spec.attach.mixed.podSelector.matchLabels",
        "write the value of a label: at most 63 letters, digits, -, _ and .",
    ),
    BadSpec(
        "a port that is none",
        {**attached(BY_LABEL), "spec.attach": {"mixed": {"podSelector": BY_LABEL, "metricsPort": 0}}},
        "spec.attach.mixed.metricsPort",
        "greater than or equal to 1",
    ),
    BadSpec(
        "a name that no ConfigMap can have",
        attached(BY_LABEL, policyConfigMap="Chat_Policy"),
        "spec.attach.policyConfigMap",
        "write the name of a ConfigMap: a-z, 0-9, - and .",
    ),
)
