"""What a change would do to the objects of a fleet: which change, in what, and which pods are replaced for it. Pure.

Two states of each object are compared as the API server keeps them, or as they are rendered where there is no server.
What the server counts and stamps of itself is left out, and so are the revision, which repeats the template, and the
template's digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from prefleet_operator.core.differences import Difference, differences
from prefleet_operator.render.names import REVISION_ANNOTATION, ROLE_LABEL
from prefleet_operator.render.revision import TEMPLATE_FIELDS, bare_template

Object = dict[str, Any]
ObjectKey = tuple[str, str]
"""Kind and name."""

_LEFT_OUT = {"apiVersion", "kind", "metadata", "data", "status"}
"""What is no field to be compared as it is."""
_COUNTED = {"creationTimestamp", "generation", "managedFields", "resourceVersion", "uid"}


class Happening(StrEnum):
    """What becomes of an object."""

    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One object that changes. `role`: of its pods, "" where it makes none; `replaced` and `removed`: how many."""

    kind: str
    name: str
    happening: Happening
    fields: tuple[Difference, ...] = ()
    role: str = ""
    replaced: int = 0
    removed: int = 0


def compare_objects(
    before: Mapping[ObjectKey, Object], after: Mapping[ObjectKey, Object], pods: Mapping[ObjectKey, int]
) -> tuple[ObjectChange, ...]:
    """The objects that change, in the order of `after`, then those that go. `pods`: how many each workload has now."""
    found = [_compare(key, before.get(key), wanted, pods.get(key, 0)) for key, wanted in after.items()]
    gone = [
        ObjectChange(*key, Happening.DELETE, role=_role(each), removed=pods.get(key, 0))
        for key, each in before.items()
        if key not in after
    ]
    return (*(change for change in found if change is not None), *gone)


def key_of(found: Object) -> ObjectKey:
    """How an object is told from the others of its fleet."""
    return found["kind"], found["metadata"]["name"]


def by_key(objects: Sequence[Object]) -> dict[ObjectKey, Object]:
    """Objects by kind and name, in their order."""
    return {key_of(each): each for each in objects}


def _compare(key: ObjectKey, before: Object | None, after: Object, pods: int) -> ObjectChange | None:
    if before is None:
        return ObjectChange(*key, Happening.CREATE, role=_role(after))
    fields = differences(_told(before), _told(after))
    if not fields:
        return None
    field = TEMPLATE_FIELDS.get(key[0])
    replaced = pods if field is not None and before["spec"][field] != after["spec"][field] else 0
    return ObjectChange(*key, Happening.CHANGE, fields, _role(after), replaced)


def _role(found: Object) -> str:
    if found["kind"] not in TEMPLATE_FIELDS:
        return ""
    return str((found["metadata"].get("labels") or {}).get(ROLE_LABEL, ""))


def _told(found: Object) -> Object:
    """An object without what the server adds; of a ConfigMap, documents in JSON are opened."""
    metadata = {name: value for name, value in found["metadata"].items() if name not in _COUNTED}
    annotations = {
        name: text for name, text in (metadata.get("annotations") or {}).items() if name != REVISION_ANNOTATION
    }
    told = {name: value for name, value in found.items() if name not in _LEFT_OUT}
    field = TEMPLATE_FIELDS.get(found["kind"])
    if field is not None:
        told["spec"] = told["spec"] | {field: bare_template(found["kind"], told["spec"][field])}
    data = {name: _opened(text) for name, text in (found.get("data") or {}).items()}
    return told | {"metadata": metadata | {"annotations": annotations}, "data": data}


def _opened(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
