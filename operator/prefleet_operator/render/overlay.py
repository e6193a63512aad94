"""`podTemplate`: a user's overlay on a rendered pod, merged as Kubernetes merges strategically.

Maps merge, null takes a key away, lists that Kubernetes tells apart by a key merge by that key (an item with a
known key is merged in place, a new one is appended), all other values and lists are replaced. Directives
(`$patch` and its kin) are refused, as null and keys say enough here.

What is laid over is a pod's in the types of its fields (`pod_shape`). It may not change what makes the pod a pod of
this fleet; each such thing is a `_Protected`, compared before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prefleet_operator.api import OPERATOR_ENV, InvalidSpecError, Role
from prefleet_operator.engines import EXPORTER_PORT, HTTP_PORT, POLICY_FOLDER, RUNTIME_FOLDER
from prefleet_operator.render.names import (
    FLEET_LABEL,
    GENERATION_ANNOTATION,
    ROLE_LABEL,
    ROUTER,
    TEMPLATE_ANNOTATION,
)
from prefleet_operator.render.pod import (
    ENGINE_CONTAINER,
    POLICY_VOLUME,
    RUNTIME_CONTAINER,
    RUNTIME_VOLUME,
)
from prefleet_operator.render.pod_shape import shape_faults

Object = dict[str, Any]

MERGE_KEYS: Final = {
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Kubernetes' patchMergeKey of each list of a pod template."""

_PORT_NAMES: Final = {"http", "prefleet", "nixl", "kv", "bootstrap", "management", "metrics"}


def apply_overlay(template: Object, overlay: Mapping[str, Any], role: Role) -> Object:
    """`template` with `overlay` laid over it.

    Raises:
        InvalidSpecError: the overlay is malformed or changes what the operator needs.
    """
    return _lay_over(template, overlay, f"spec.{role.value}.podTemplate", _PROTECTED)


def apply_router_overlay(template: Object, overlay: Mapping[str, Any]) -> Object:
    """The same for the router's pod.

    Raises:
        InvalidSpecError: the overlay is malformed or changes what the operator needs.
    """
    return _lay_over(template, overlay, "spec.router.podTemplate", _ROUTER_PROTECTED)


def _lay_over(template: Object, overlay: Mapping[str, Any], where: str, protected: tuple[_Protected, ...]) -> Object:
    if unknown := sorted(overlay.keys() - {"metadata", "spec"}):
        raise InvalidSpecError(f"{where}: remove {', '.join(unknown)}: write metadata and spec, as in a pod")
    if faults := list(shape_faults(overlay, where)):
        raise InvalidSpecError("; ".join(faults))
    merged = _merge(template, overlay, where)
    changed = next((part for part in protected if part.of(template) != part.of(merged)), None)
    if changed is not None:
        raise InvalidSpecError(_tell_change(template, overlay, changed, where))
    return merged


def _tell_change(template: Object, overlay: Mapping[str, Any], changed: _Protected, where: str) -> str:
    """Of a null that takes away all that holds what is protected, the fault is the null: nothing there was changed."""
    for path, alone in _nulls(overlay):
        if changed.of(_merge(template, alone, where)) != changed.of(template):
            return f"{where}{path}: null takes away {changed.what}: leave it out, and write only what you change"
    return f"{where}: changes {changed.what}: {changed.fix}"


def _nulls(overlay: Mapping[str, Any]) -> Iterator[tuple[str, Object]]:
    """Each null of an overlay: its path, and an overlay that holds nothing else."""
    for key, value in overlay.items():
        if value is None:
            yield f".{key}", {key: None}
        elif isinstance(value, Mapping):
            yield from ((f".{key}{path}", {key: alone}) for path, alone in _nulls(value))
        elif isinstance(value, list) and key in MERGE_KEYS:
            for name, item in ((item[MERGE_KEYS[key]], item) for item in value):
                found = _nulls(item)
                yield from (
                    (f".{key}[{name}]{path}", {key: [{MERGE_KEYS[key]: name} | alone]}) for path, alone in found
                )


def _merge(base: Mapping[str, Any], overlay: Mapping[str, Any], where: str) -> Object:
    merged = dict(base)
    for key, value in overlay.items():
        if key.startswith("$"):
            raise InvalidSpecError(f"{where}: remove {key}: write null to take a key away")
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge_value(key, merged.get(key), value, f"{where}.{key}")
    return merged


def _merge_value(key: str, base: Any, value: Any, where: str) -> Any:
    if isinstance(value, dict):
        return _merge(base or {}, value, where)
    if isinstance(value, list) and key in MERGE_KEYS:
        return _merge_list(MERGE_KEYS[key], base or [], value, where)
    return value


def _merge_list(merge_key: str, base: list[Any], overlay: list[Any], where: str) -> list[Any]:
    merged = {item[merge_key]: item for item in base}
    for item in overlay:
        if not isinstance(item, Mapping) or not isinstance(item.get(merge_key), str | int):
            raise InvalidSpecError(f"{where}: write {merge_key} in each item: items are merged by it")
        name = item[merge_key]
        merged[name] = _merge(merged.get(name, {}), item, f"{where}[{name}]")
    return list(merged.values())


@dataclass(frozen=True, slots=True)
class _Protected:
    """What an overlay may not change, how to get what the user may have wanted, and where it stands."""

    what: str
    fix: str
    of: Callable[[Object], Any]


def _named(items: Any, name: str) -> Object:
    found: Object = next((item for item in items or () if item["name"] == name), {})
    return found


def _pod(template: Object) -> Object:
    pod: Object = template.get("spec", {})
    return pod


def _engine(template: Object) -> Object:
    return _named(_pod(template).get("containers"), ENGINE_CONTAINER)


def _labels(template: Object) -> list[Any]:
    labels = template.get("metadata", {}).get("labels", {})
    return [labels.get(FLEET_LABEL), labels.get(ROLE_LABEL)]


def _annotations(template: Object) -> list[Any]:
    annotations = template.get("metadata", {}).get("annotations", {})
    return [annotations.get(GENERATION_ANNOTATION), annotations.get(TEMPLATE_ANNOTATION)]


def _environment(template: Object) -> list[Any]:
    return [variable for variable in _engine(template).get("env", ()) if variable["name"] in OPERATOR_ENV]


def _ports(template: Object) -> list[Any]:
    own = _PORT_NAMES | {HTTP_PORT, EXPORTER_PORT}
    ports = _engine(template).get("ports", ())
    return [port for port in ports if {port["containerPort"], port.get("name")} & own]


def _listeners_beside(template: Object, name: str) -> list[Any]:
    """The ports of that container for which others that run beside it ask, too: all of a pod share one network."""
    own = {_listens_at(port) for port in _named(_pod(template).get("containers"), name).get("ports", ())}
    sidecars = [each for each in _pod(template).get("initContainers", ()) if each.get("restartPolicy") == "Always"]
    return [
        (other["name"], port)
        for other in (*sidecars, *_pod(template).get("containers", ()))
        if other["name"] != name
        for port in other.get("ports", ())
        if _listens_at(port) in own
    ]


def _listens_at(port: Object) -> tuple[Any, str]:
    return port["containerPort"], port.get("protocol", "TCP")


def _mounts(template: Object) -> list[Any]:
    """The mounts at, above or below the folders that the runtime reads."""
    folders = (f"{POLICY_FOLDER}/", f"{RUNTIME_FOLDER}/")
    return [
        mount
        for mount in _engine(template).get("volumeMounts", ())
        for path in [mount["mountPath"].rstrip("/") + "/"]
        if any(path.startswith(folder) or folder.startswith(path) for folder in folders)
    ]


def _volumes(template: Object) -> list[Any]:
    return [_named(_pod(template).get("volumes"), name) for name in (POLICY_VOLUME, RUNTIME_VOLUME)]


def _installer(template: Object) -> list[Any]:
    container = _named(_pod(template).get("initContainers"), RUNTIME_CONTAINER)
    return [container.get(key) for key in ("image", "command", "args", "volumeMounts")]


_PROTECTED: Final = (
    _Protected(
        f"the labels {FLEET_LABEL} and {ROLE_LABEL}", "leave them out: the fleet's pods are found by them", _labels
    ),
    _Protected(
        f"the annotation {GENERATION_ANNOTATION} or {TEMPLATE_ANNOTATION}",
        "leave it out: the operator writes it",
        _annotations,
    ),
    _Protected(
        "the engine's image", "write spec.engine.image instead", lambda template: _engine(template).get("image")
    ),
    _Protected(
        "the engine's command or args",
        "write the role's args instead",
        lambda template: [_engine(template).get(key) for key in ("command", "args")],
    ),
    _Protected(
        f"one of the variables {', '.join(OPERATOR_ENV)}", "leave them out: the operator sets them", _environment
    ),
    _Protected(
        "a port that the operator uses",
        "give further ports other numbers and names",
        _ports,
    ),
    _Protected(
        "who listens at the engine's ports",
        "have other containers listen elsewhere",
        lambda template: _listeners_beside(template, ENGINE_CONTAINER),
    ),
    _Protected(f"the mounts at {POLICY_FOLDER} and {RUNTIME_FOLDER}", "mount elsewhere", _mounts),
    _Protected(f"the volumes {POLICY_VOLUME} and {RUNTIME_VOLUME}", "give your volumes other names", _volumes),
    _Protected(
        f"what the init container {RUNTIME_CONTAINER} does", "write spec.runtime.image for its image", _installer
    ),
)


def _router(template: Object) -> Object:
    return _named(_pod(template).get("containers"), ROUTER)


_ROUTER_PROTECTED: Final = (
    *_PROTECTED[:2],
    _Protected(
        "the router's image", "write spec.router.image instead", lambda template: _router(template).get("image")
    ),
    _Protected(
        "the router's command, args or ports",
        "write spec.router.args instead",
        lambda template: [_router(template).get(key) for key in ("command", "args", "ports")],
    ),
    _Protected(
        "who listens at the router's ports",
        "have other containers listen elsewhere",
        lambda template: _listeners_beside(template, ROUTER),
    ),
    _Protected(
        "the pod's service account",
        "write spec.router.serviceAccountName instead",
        lambda template: [_pod(template).get(key) for key in ("serviceAccountName", "serviceAccount")],
    ),
)
