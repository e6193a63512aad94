"""Kubernetes' own OpenAPI documents, against which rendered objects are judged strictly and offline.

They come with the Go module from which the control plane's programs are built, in the release pinned there, so
nothing of them is kept in this repository. As published they admit unknown fields; here an object whose fields
are listed admits no others, as `kubectl apply --validate=strict` does.

Left out: what the documents do not say (the values of most enums, the form of names and quantities, rules
across fields). Those the real API server judges in tests/controlplane/test_manifests.py.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from tests.support import leader_worker_set, scaled_object
from tests.support.binaries import MODULES
from tests.support.go_modules import module_folder

Schema = dict[str, Any]

_DOCUMENTS = ("api__v1", "apis__apps__v1", "apis__policy__v1", "apis__autoscaling__v2")
_GROUP_VERSION_KIND = "x-kubernetes-group-version-kind"


def find_fault(rendered: dict[str, Any]) -> str | None:
    """What is wrong with an object, with the path to it; None if nothing is.

    Raises KeyError if no document knows its kind.
    """
    kind = (rendered["apiVersion"], rendered["kind"])
    reference = {"$ref": f"#/components/schemas/{_names()[kind]}", "components": {"schemas": schemas()}}
    error = best_match(Draft202012Validator(reference).iter_errors(rendered))
    return None if error is None else f"{'.'.join(map(str, error.absolute_path))}: {error.message}"


@functools.cache
def schemas() -> dict[str, Schema]:
    """Every schema by name, strict."""
    found: dict[str, Schema] = {"LeaderWorkerSet": leader_worker_set.schema(), "ScaledObject": scaled_object.schema()}
    for name in _DOCUMENTS:
        document = json.loads((folder() / f"{name}_openapi.json").read_text())
        found |= document["components"]["schemas"]
    return {name: _strict(schema) for name, schema in found.items()}


@functools.cache
def _names() -> dict[tuple[str, str], str]:
    """The schema's name of each (apiVersion, kind)."""
    names = {
        (f"{leader_worker_set.GROUP}/v1", "LeaderWorkerSet"): "LeaderWorkerSet",
        (f"{scaled_object.GROUP}/v1alpha1", "ScaledObject"): "ScaledObject",
    }
    for name, schema in schemas().items():
        for kind in schema.get(_GROUP_VERSION_KIND, ()):
            version = "/".join(part for part in (kind["group"], kind["version"]) if part)
            names[(version, kind["kind"])] = name
    return names


@functools.cache
def folder() -> Path:
    """Where the documents lie: in the module's folder in Go's cache, downloaded if need be (20 MB)."""
    found = module_folder("k8s.io/kubernetes", "Kubernetes' schemas", MODULES / "kubernetes")
    return found / "api" / "openapi-spec" / "v3"


def _strict(schema: Schema) -> Schema:
    """The schema with unknown fields refused wherever fields are listed."""
    strict = dict(schema)
    if "properties" in schema:
        strict["properties"] = {name: _strict(child) for name, child in schema["properties"].items()}
        strict.setdefault("additionalProperties", False)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            strict[key] = _strict(schema[key])
    return strict
