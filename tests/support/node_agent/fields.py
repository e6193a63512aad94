"""The downward API: what a pod may learn about itself, by field path. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from tests.support.node_agent.api import Json

_ENTRY = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")

_PLAIN: Mapping[str, Callable[[Json], str]] = {
    "metadata.name": lambda pod: pod["metadata"]["name"],
    "metadata.namespace": lambda pod: pod["metadata"]["namespace"],
    "metadata.uid": lambda pod: pod["metadata"]["uid"],
    "metadata.labels": lambda pod: _lines(pod["metadata"].get("labels", {})),
    "metadata.annotations": lambda pod: _lines(pod["metadata"].get("annotations", {})),
    "spec.nodeName": lambda pod: pod["spec"]["nodeName"],
    "spec.serviceAccountName": lambda pod: pod["spec"].get("serviceAccountName", "default"),
    "status.podIP": lambda pod: pod["status"]["podIP"],
    "status.podIPs": lambda pod: ",".join(item["ip"] for item in pod["status"]["podIPs"]),
    "status.hostIP": lambda pod: pod["status"]["hostIP"],
    "status.hostIPs": lambda pod: ",".join(item["ip"] for item in pod["status"]["hostIPs"]),
}


class UnknownFieldError(ValueError):
    """A field path that the downward API does not have."""


def field_value(pod: Json, path: str) -> str:
    """The value at a field path; a label or annotation that is not there is empty."""
    if entry := _ENTRY.fullmatch(path):
        return str(pod["metadata"].get(entry[1], {}).get(entry[2], ""))
    if path not in _PLAIN:
        raise UnknownFieldError(f"the field path is {path}; known are {', '.join(_PLAIN)}")
    return _PLAIN[path](pod)


def _lines(entries: Mapping[str, str]) -> str:
    return "\n".join(f"{key}={json.dumps(value)}" for key, value in sorted(entries.items()))
