"""A container's variables as Kubernetes defines them, before anything is mapped to this machine.

Later ones win: the base (PATH of the image's folder, HOME, LANG), the Services of the namespace (unless the pod
turns them off), envFrom, env; `$(NAME)` refers to what stands before. Values are kept as written by the pod's
author, since they may be referred to again; `launching` maps them at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from tests.support.node_agent.api import Api, ApiError, Json
from tests.support.node_agent.fields import UnknownFieldError, field_value
from tests.support.node_agent.rewriting import expand
from tests.support.node_agent.volumes import object_data

_PLURALS = {"configMapKeyRef": "configmaps", "secretKeyRef": "secrets"}


class EnvironmentUnavailableError(Exception):
    """A variable's value cannot be had (yet); a sentence for the container's status."""


async def container_variables(api: Api, pod: Json, container: Json, base: Mapping[str, str]) -> dict[str, str]:
    """All variables of a container; raises EnvironmentUnavailableError."""
    namespace = pod["metadata"]["namespace"]
    variables = dict(base)
    variables |= await _service_links(api, pod)
    for source in container.get("envFrom", []):
        variables |= await _all_keys(api, namespace, source)
    for entry in container.get("env", []):
        if "valueFrom" not in entry:
            variables[entry["name"]] = expand(entry.get("value", ""), variables)
        elif (value := await _referred(api, pod, entry["valueFrom"])) is not None:
            variables[entry["name"]] = value
    return variables


async def _service_links(api: Api, pod: Json) -> dict[str, str]:
    variables: dict[str, str] = {}
    if pod["spec"].get("enableServiceLinks", True):
        namespace = pod["metadata"]["namespace"]
        try:
            listing = await api.get(f"/api/v1/namespaces/{namespace}/services")
        except ApiError as error:
            raise EnvironmentUnavailableError(f"the Services of {namespace} could not be read: {error}") from error
        for service in listing["items"]:
            variables |= service_variables(service)
    return variables | server_variables(api.credentials.server)


async def service_addresses(api: Api) -> dict[str, str]:
    """The ClusterIP of every Service that has one, by NAME.NAMESPACE.svc; raises EnvironmentUnavailableError."""
    try:
        listing = await api.get("/api/v1/services")
    except ApiError as error:
        raise EnvironmentUnavailableError(f"the Services could not be read: {error}") from error
    named = (
        (f"{item['metadata']['name']}.{item['metadata']['namespace']}.svc", item["spec"].get("clusterIP", ""))
        for item in listing["items"]
    )
    return {name: address for name, address in named if address not in ("", "None")}


def server_variables(server: str) -> dict[str, str]:
    """The API server under the names of its Service: its own address, since its ClusterIP has no pods behind it."""
    parts = urlsplit(server)
    port = str(parts.port or 443)
    return {
        "KUBERNETES_SERVICE_HOST": parts.hostname or "",
        "KUBERNETES_SERVICE_PORT": port,
        "KUBERNETES_SERVICE_PORT_HTTPS": port,
    }


def service_variables(service: Json) -> dict[str, str]:
    """What a kubelet sets for a Service with a ClusterIP: the {NAME}_SERVICE_* and the older {NAME}_PORT_* ones."""
    spec, address = service["spec"], service["spec"].get("clusterIP", "")
    ports: list[Json] = spec.get("ports", [])
    if address in ("", "None") or not ports:
        return {}
    name = _upper(service["metadata"]["name"])
    variables = {f"{name}_SERVICE_HOST": address, f"{name}_SERVICE_PORT": str(ports[0]["port"])}
    for port in ports:
        if port.get("name"):
            variables[f"{name}_SERVICE_PORT_{_upper(port['name'])}"] = str(port["port"])
    variables[f"{name}_PORT"] = _url(address, ports[0])
    for port in ports:
        protocol = port.get("protocol", "TCP")
        prefix = f"{name}_PORT_{port['port']}_{protocol}"
        variables |= {
            prefix: _url(address, port),
            f"{prefix}_PROTO": protocol.lower(),
            f"{prefix}_PORT": str(port["port"]),
            f"{prefix}_ADDR": address,
        }
    return variables


def _upper(name: str) -> str:
    return name.upper().replace("-", "_")


def _url(address: str, port: Json) -> str:
    return f"{port.get('protocol', 'TCP').lower()}://{address}:{port['port']}"


async def _all_keys(api: Api, namespace: str, source: Json) -> dict[str, str]:
    plural, reference = (
        ("configmaps", source["configMapRef"]) if "configMapRef" in source else ("secrets", source["secretRef"])
    )
    data = await _object(api, namespace, plural, reference)
    prefix = source.get("prefix", "")
    return {prefix + key: content.decode() for key, content in (data or {}).items()}


async def _referred(api: Api, pod: Json, source: Json) -> str | None:
    """The value that a reference names; None where an optional one leads nowhere."""
    if "fieldRef" in source:
        try:
            return field_value(pod, source["fieldRef"]["fieldPath"])
        except UnknownFieldError as error:
            raise EnvironmentUnavailableError(str(error)) from error
    kind = next((kind for kind in _PLURALS if kind in source), None)
    if kind is None:
        raise EnvironmentUnavailableError(f"values from {', '.join(source)} are not provided by this node")
    reference: dict[str, Any] = source[kind]
    data = await _object(api, pod["metadata"]["namespace"], _PLURALS[kind], reference)
    if data is not None and reference["key"] in data:
        return data[reference["key"]].decode()
    if reference.get("optional"):
        return None
    raise EnvironmentUnavailableError(f"couldn't find key {reference['key']} in {_PLURALS[kind]} {reference['name']}")


async def _object(api: Api, namespace: str, plural: str, reference: Json) -> dict[str, bytes] | None:
    try:
        return object_data(await api.get(f"/api/v1/namespaces/{namespace}/{plural}/{reference['name']}"))
    except ApiError as error:
        if error.status == 404 and reference.get("optional"):
            return None
        raise EnvironmentUnavailableError(f"{plural} {reference['name']} could not be read: {error}") from error
