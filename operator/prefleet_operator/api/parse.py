"""From a document to a spec, refused with the sentences that the API server would use.

Strict as the API server is: a number in quotes is not a number. Rules that neither schema nor CEL can express
(a podTemplate that takes away what the operator needs, an --additional-config that is not JSON) are found
when the fleet is rendered, and raise the same `InvalidSpecError`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from prefleet_operator.api.base import GROUP, KIND, VERSION, matching
from prefleet_operator.api.spec import PrefillPolicySpec

NAME_RULE = matching(
    "^[a-z]([a-z0-9-]{0,53}[a-z0-9])?$",
    "metadata.name: write at most 55 of the characters a-z, 0-9 and -, beginning with a letter and not "
    "ending with -: the fleet's Services are named after it",
)


_GROUP_AND_KIND = (f"{GROUP}/{VERSION}", KIND)


class InvalidSpecError(ValueError):
    """A spec that must not run; the message is one sentence per fault, with the field and the fix."""


@dataclass(frozen=True, slots=True)
class PolicyDocument:
    """A PrefillPolicy as it stands in a file."""

    name: str
    namespace: str
    spec: PrefillPolicySpec


def parse_document(raw: Any) -> PolicyDocument:
    """Parse a whole PrefillPolicy, as `kubectl apply` would admit it; the namespace is `default` if not
    given.

    Raises:
        InvalidSpecError: it is not a PrefillPolicy, or its name or spec must not run.
    """
    if not isinstance(raw, Mapping) or raw.get("kind") != KIND or raw.get("apiVersion") != f"{GROUP}/{VERSION}":
        raise InvalidSpecError(f"not a PrefillPolicy: write apiVersion: {GROUP}/{VERSION} and kind: {KIND}")
    metadata = raw.get("metadata") or {}
    name = str(metadata.get("name", ""))
    if not NAME_RULE.holds(name):
        raise InvalidSpecError(NAME_RULE.message)
    return PolicyDocument(name, metadata.get("namespace", "default"), parse_spec(raw.get("spec") or {}))


def parse_spec(raw: Any) -> PrefillPolicySpec:
    """Parse `.spec` of a PrefillPolicy as the API server would admit it.

    Raises:
        InvalidSpecError: a field is wrong or a rule across fields is broken.
    """
    try:
        return PrefillPolicySpec.model_validate_json(json.dumps(raw, default=_plain), strict=True)
    except ValidationError as error:
        raise InvalidSpecError("; ".join(_sentence(fault) for fault in error.errors(include_url=False))) from None


def _plain(value: Any) -> Any:
    """What json cannot write: a read-only mapping as a dict, anything else (a YAML date) as the text it
    was."""
    return dict(value) if isinstance(value, Mapping) else str(value)


def _sentence(fault: ErrorDetails) -> str:
    path = ".".join(["spec", *map(str, fault["loc"])])
    match fault["type"]:
        case "extra_forbidden":
            known = _siblings(fault["loc"])
            return f"{path}: no such field in this release: remove it, or write one of {known}"
        case "missing":
            return f"{path}: is required: write it"
        case "enum" if isinstance(fault["input"], bool):
            return f"{path}: {fault['msg']}: write it in quotes, since YAML reads a bare On or Off as a boolean"
    return f"{path}: {fault['msg'].removeprefix('Value error, ')}"


def _siblings(loc: tuple[int | str, ...]) -> str:
    """The fields that may stand where `loc` points at an unknown one."""
    model: type[BaseModel] = PrefillPolicySpec
    for part in loc[:-1]:
        if isinstance(part, str):
            model = _model_of(model, part)
    return ", ".join(sorted(str(field.alias) for field in model.model_fields.values()))


def _model_of(parent: type[BaseModel], alias: str) -> type[BaseModel]:
    annotation = next(field.annotation for field in parent.model_fields.values() if field.alias == alias)
    types = (found for found in _flatten(annotation) if isinstance(found, type))
    return next(found for found in types if issubclass(found, BaseModel))


def _flatten(annotation: Any) -> list[Any]:
    """The types inside `X | None` and `list[X]`, outermost first."""
    return [annotation, *(inner for part in get_args(annotation) for inner in _flatten(part))]
