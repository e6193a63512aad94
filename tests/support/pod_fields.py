"""`render/pod_fields.json`: the types of a pod's fields, drawn from Kubernetes' own OpenAPI documents.

python -m tests.support.pod_fields      writes the file anew, after the pinned release of Kubernetes has changed
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.kubernetes_schema import schemas

FILE = Path(__file__).parents[2] / "operator" / "prefleet_operator" / "render" / "pod_fields.json"
_ROOT = "io.k8s.api.core.v1.PodTemplateSpec"


def pod_fields() -> str:
    """The file's text: for each type that has fields, their shapes (as `render/pod_shape.py` reads them)."""
    found: dict[str, dict[str, Any]] = {}
    waiting = [_ROOT]
    while waiting:
        name = waiting.pop()
        fields = schemas()[name].get("properties")
        if fields is not None and _short(name) not in found:
            found[_short(name)] = {key: _shape(field) for key, field in sorted(fields.items())}
            waiting += [reference for field in fields.values() for reference in _references(field)]
    lines = (f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in sorted(found.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _shape(schema: dict[str, Any]) -> Any:
    names = list(_direct(schema))
    if names:
        name = names[0]
        known = schemas()[name]
        return "object" if known.get("type") == "object" and "properties" not in known else _short(name)
    if schema["type"] == "array":
        return [_shape(schema["items"])]
    if schema["type"] == "object":
        return {"": _shape(schema["additionalProperties"])}
    return schema["type"]


def _direct(schema: dict[str, Any]) -> Iterator[str]:
    """The type that a schema names itself, if it does."""
    for part in (schema, *schema.get("allOf", ())):
        if "$ref" in part:
            yield part["$ref"].rsplit("/", 1)[-1]


def _references(schema: dict[str, Any]) -> Iterator[str]:
    yield from _direct(schema)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _references(schema[key])


def _short(name: str) -> str:
    return name.rsplit(".", 1)[-1]


if __name__ == "__main__":
    FILE.write_text(pod_fields())
