"""From a document to a spec, refused with the sentences that the API server would use.

Strict as the API server is: a number in quotes is not a number. Rules that neither schema nor CEL can express
(a podTemplate that takes away what the operator needs, an --additional-config that is not JSON) are found
when the fleet is rendered, and raise the same `InvalidSpecError`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from prefleet_operator.api.base import GROUP, KIND, VERSION, matching
from prefleet_operator.api.faults import tell_faults
from prefleet_operator.api.spec import PrefillPolicySpec

NAME_RULE = matching(
    "^[a-z]([a-z0-9-]{0,53}[a-z0-9])?$",
    "metadata.name: write at most 55 of the characters a-z, 0-9 and -, beginning with a letter and not "
    "ending with -: the fleet's Services are named after it",
)


NAMESPACE_RULE = matching(
    "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
    "metadata.namespace: write at most 63 of the characters a-z, 0-9 and -, neither beginning nor ending with -",
)

_TOP_LEVEL = ("apiVersion", "kind", "metadata", "spec", "status")


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
    unknown = [str(key) for key in raw if key not in _TOP_LEVEL]
    if unknown:
        raise InvalidSpecError(f"{unknown[0]}: no such field: remove it, or write one of {', '.join(_TOP_LEVEL)}")
    name, namespace = _identity(raw.get("metadata") or {})
    return PolicyDocument(name, namespace, parse_spec(raw.get("spec") or {}))


def _identity(metadata: Any) -> tuple[str, str]:
    """Name and namespace. Raises InvalidSpecError."""
    if not isinstance(metadata, Mapping):
        raise InvalidSpecError("metadata: should be an object: write metadata: {name: chat}")
    for field in ("annotations", "labels"):
        entries = metadata.get(field) or {}
        if not isinstance(entries, Mapping) or not all(isinstance(value, str) for value in entries.values()):
            raise InvalidSpecError(f"metadata.{field}: write text for each key, numbers and true or false in quotes")
    name, namespace = str(metadata.get("name", "")), str(metadata.get("namespace") or "default")
    for rule, text in ((NAME_RULE, name), (NAMESPACE_RULE, namespace)):
        if not rule.holds(text):
            raise InvalidSpecError(rule.message)
    return name, namespace


def parse_spec(raw: Any) -> PrefillPolicySpec:
    """Parse `.spec` of a PrefillPolicy as the API server would admit it.

    Raises:
        InvalidSpecError: a field is wrong or a rule across fields is broken.
    """
    try:
        text = json.dumps(raw, default=_plain)
    except ValueError:
        raise InvalidSpecError("spec: an alias in it stands for what holds it: write out what is meant") from None
    try:
        return PrefillPolicySpec.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise InvalidSpecError(tell_faults(error.errors(include_url=False))) from None


def _plain(value: Any) -> Any:
    """What json cannot write: a read-only mapping as a dict, anything else (YAML's !!binary) as text."""
    return dict(value) if isinstance(value, Mapping) else str(value)
