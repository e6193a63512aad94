"""The CustomResourceDefinition, made from the models and nothing else. Equal models give equal output.

Pydantic writes a JSON schema with references, nulls and draft 2020 keywords; the API server wants a
structural schema: everything inline, one type a node (or its own word for a number or a string), no nulls
(absence says it), `exclusiveMinimum` as a flag. Free-form objects keep unknown fields. The default of a part
with parts of its own is spelled out from the parts' defaults: `{}` would be filled in just so, but the API
server judges defaults by the rules before it fills them in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from prefleet_operator.api.base import GROUP, KIND, PLURAL, SHORT_NAME, VERSION
from prefleet_operator.api.parse import NAME_RULE
from prefleet_operator.api.rule import VALIDATIONS
from prefleet_operator.api.spec import PrefillPolicySpec
from prefleet_operator.api.status import PrefillPolicyStatus

_KEPT: Final = (
    "type",
    "enum",
    "minLength",
    "maxLength",
    "pattern",
    "minimum",
    "maximum",
    "maxItems",
    "maxProperties",
    "required",
    VALIDATIONS,
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)


def _column(name: str, kind: str, path: str, description: str, priority: int = 0) -> dict[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return column | ({"priority": priority} if priority else {})


def _condition(name: str) -> str:
    return f'.status.conditions[?(@.type=="{name}")].status'


_COLUMNS: Final = [
    _column("Policy", "string", ".status.effective.policy", "The queue policy that runs now"),
    _column("Threshold", "integer", ".status.effective.threshold", "Tokens of the longest short request"),
    _column("MaxWait", "string", ".status.effective.longMaxWait", "How long a long request waits at most"),
    _column("Prefill", "string", ".status.pods.prefill", "Ready of desired pods that prefill"),
    _column("Decode", "string", ".status.pods.decode", "Ready of desired pods that decode"),
    _column("Ready", "string", _condition("Ready"), "Whether every role has its pods"),
    _column("Reason", "string", ".status.reason", "Why, if anything is not as it should be"),
    _column("Active", "string", _condition("PolicyActive"), "Whether every ready pod runs the policy", priority=1),
    _column("Tuned", "string", _condition("Tuned"), "Whether the values were learned from traffic", priority=1),
    _column("Age", "date", ".metadata.creationTimestamp", "Time since the policy was made"),
]


def custom_resource_definition() -> dict[str, Any]:
    """The CRD of PrefillPolicy as an object for the API server."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
                "categories": ["prefleet"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _COLUMNS,
                    "schema": {"openAPIV3Schema": _resource_schema()},
                }
            ],
        },
    }


def _resource_schema() -> dict[str, Any]:
    name_rule = NAME_RULE.as_validation()
    name_rule["rule"] = name_rule["rule"].replace("self.", "self.metadata.name.", 1)
    return {
        "type": "object",
        "description": "One LLM inference fleet and how its prefill queue is scheduled.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _model_schema(PrefillPolicySpec),
            "status": _model_schema(PrefillPolicyStatus),
        },
        VALIDATIONS: [name_rule],
    }


def _model_schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True)
    return _structural(schema, schema.get("$defs", {}))


def _structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """One node of the structural schema, with everything below it."""
    node = _resolved(schema, definitions)
    kept = {key: node[key] for key in _KEPT if key in node}
    if "description" in node:
        kept = {"description": " ".join([*node["description"].split(), *_form(node)])} | kept
    if "const" in node:
        kept["enum"] = [node["const"]]
    if "exclusiveMinimum" in node:
        kept |= {"minimum": node["exclusiveMinimum"], "exclusiveMinimum": True}
    if "items" in node:
        kept["items"] = _structural(node["items"], definitions)
    if "properties" in node:
        kept["properties"] = {
            name: _structural(child, definitions) for name, child in sorted(node["properties"].items())
        }
    elif isinstance(node.get("additionalProperties"), dict):
        kept["additionalProperties"] = _structural(node["additionalProperties"], definitions)
    elif node.get("type") == "object":
        kept["x-kubernetes-preserve-unknown-fields"] = True
    if node.get("default") is not None:
        kept["default"] = _default(kept, node["default"])
    return kept


def _form(node: Mapping[str, Any]) -> list[str]:
    """How a duration is written, by its own rule: `kubectl explain` shows descriptions and no rules."""
    messages = (rule["message"] for rule in node.get(VALIDATIONS, ()))
    return [
        f"{form.capitalize()}." for form in (each.removeprefix("write ") for each in messages) if "duration" in form
    ]


def _default(node: Mapping[str, Any], default: Any) -> Any:
    if "properties" not in node:
        return default
    return {name: child["default"] for name, child in node["properties"].items() if "default" in child}


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The node with its reference followed and its null branch dropped; what stands beside them wins."""
    node = dict(schema)
    if "anyOf" in node:
        (branch,) = (option for option in node.pop("anyOf") if option.get("type") != "null")
        return _resolved(branch, definitions) | node
    if "$ref" in node:
        target = definitions[node.pop("$ref").removeprefix("#/$defs/")]
        return _resolved(target, definitions) | node
    return node
