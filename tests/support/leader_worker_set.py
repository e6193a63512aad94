"""LeaderWorkerSet as far as this project uses it: a stand-in, since its CRD and controller are in no package.

`SPEC` is written from the API's own reference (fields, enums, bounds), with `POD_TEMPLATE` where pod templates
stand. From it follow the strict schema for rendered objects (pod templates by Kubernetes' own schema) and a CRD
for the test control plane, which keeps pod templates as they come. There is no controller: nobody makes pods.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.plane.plane import ControlPlane

Schema = dict[str, Any]

GROUP = "leaderworkerset.x-k8s.io"
PLURAL = "leaderworkersets"
CRD_NAME = f"{PLURAL}.{GROUP}"

POD_TEMPLATE: Schema = {"$ref": "#/components/schemas/io.k8s.api.core.v1.PodTemplateSpec"}
_OBJECT_META: Schema = {"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}

_COUNT: Schema = {"type": "integer", "minimum": 0}
_COUNT_OR_PERCENT: Schema = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^[0-9]+%$"}]}


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    return schema | ({"required": list(required)} if required else {})


def _enum(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


SPEC: Schema = _object(
    ("leaderWorkerTemplate",),
    replicas=_COUNT,
    startupPolicy=_enum("LeaderCreated", "LeaderReady"),
    leaderWorkerTemplate=_object(
        ("workerTemplate",),
        leaderTemplate=POD_TEMPLATE,
        workerTemplate=POD_TEMPLATE,
        size={"type": "integer", "minimum": 1},
        restartPolicy=_enum("RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"),
    ),
    rolloutStrategy=_object(
        ("type",),
        type=_enum("RollingUpdate"),
        rollingUpdateConfiguration=_object(
            partition=_COUNT, maxUnavailable=_COUNT_OR_PERCENT, maxSurge=_COUNT_OR_PERCENT
        ),
    ),
    networkConfig=_object(("subdomainPolicy",), subdomainPolicy=_enum("Shared", "UniquePerReplica")),
)


def schema() -> Schema:
    """The whole object, as the rendered one is judged: beside Kubernetes' schemas, to which it refers."""
    return _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion=_enum(f"{GROUP}/v1"),
        kind=_enum("LeaderWorkerSet"),
        metadata=_OBJECT_META,
        spec=SPEC,
    )


def custom_resource_definition() -> Schema:
    """The CRD for the test control plane, with the scale and status subresources of the real one."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # The group is protected: it takes a word on who has approved of the API.
        "metadata": {"name": CRD_NAME, "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": "LeaderWorkerSet", "plural": PLURAL, "singular": "leaderworkerset"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                    },
                    "schema": {"openAPIV3Schema": _object(spec=_for_a_crd(SPEC), status=_anything())},
                }
            ],
        },
    }


def _anything() -> Schema:
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _for_a_crd(schema: Schema) -> Schema:
    """The schema as the API server wants it: no references, and its own way to say integer or string."""
    if schema == POD_TEMPLATE:
        return _anything()
    if schema == _COUNT_OR_PERCENT:
        return {"x-kubernetes-int-or-string": True}
    converted = copy.deepcopy(schema)
    if "properties" in converted:
        converted["properties"] = {name: _for_a_crd(child) for name, child in schema["properties"].items()}
    return converted


@contextmanager
def served(plane: ControlPlane) -> Iterator[None]:
    """A control plane that serves the kind, for as long as the context lasts."""
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(custom_resource_definition()))
    try:
        plane.await_established(CRD_NAME)
        yield
    finally:
        plane.kubectl("delete", "crd", CRD_NAME)
