"""A container's spec -> what to run on this machine (`Plan`).

The variables are gathered as Kubernetes defines them, references are expanded, and only then mount paths, 0.0.0.0 and
the names of Services are mapped (`rewriting`), so that a variable that stands in an argument is mapped once. The base
variables (PATH, HOME and the like) are true for this machine already and are not mapped.

A subPath of a published volume is copied at each start and so stays as it is while the container runs; a subPath of
another volume is the folder or file itself.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.node_agent.api import Json
from tests.support.node_agent.environment import (
    EnvironmentUnavailableError,
    container_variables,
    service_addresses,
)
from tests.support.node_agent.processes import MARK_VARIABLE, Launch
from tests.support.node_agent.rewriting import expand, map_any_address, map_paths, map_service_names
from tests.support.node_agent.sandbox import Sandbox

TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NotLaunchableError(Exception):
    """A container that cannot be started (now); the reason as a container's status shows it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Plan:
    launch: Launch
    mounts: Mapping[str, Path]
    address: str
    services: Mapping[str, str]

    def command(self, argv: list[str]) -> Launch:
        """Another command in the same container; a kubelet expands no variables in those of probes and hooks."""
        return self.launch.running([_localize(text, self.mounts, self.address, self.services) for text in argv])


async def plan_launch(sandbox: Sandbox, container: Json) -> Plan:
    """Raises NotLaunchableError."""
    image = _image_folder(sandbox, container)
    base = _base_variables(sandbox, container, image)
    try:
        variables = await container_variables(sandbox.host.api, sandbox.pod, container, base)
        services = await service_addresses(sandbox.host.api)
    except EnvironmentUnavailableError as error:
        raise NotLaunchableError("CreateContainerConfigError", str(error)) from error
    mounts = _mounts(sandbox, container, variables)
    if "/tmp" in mounts:
        variables.setdefault("TMPDIR", "/tmp")
    environment = {
        name: value if base.get(name) == value else _localize(value, mounts, sandbox.address, services)
        for name, value in variables.items()
    }
    written = [*container["command"], *container.get("args", [])]
    argv = tuple(_localize(expand(text, variables), mounts, sandbox.address, services) for text in written)
    folder = _working_folder(sandbox, container, mounts)
    return Plan(Launch(argv, environment, folder), mounts, sandbox.address, services)


def _localize(text: str, mounts: Mapping[str, Path], address: str, services: Mapping[str, str]) -> str:
    return map_service_names(map_any_address(map_paths(text, mounts), address), services)


def _image_folder(sandbox: Sandbox, container: Json) -> Path:
    name = container["image"]
    folder = sandbox.host.settings.image_folder(name)
    if folder is None:
        raise NotLaunchableError(
            "ErrImageNeverPull",
            f"no folder is known for image {name}: this node runs images that are folders; "
            f"start it with --image '{name}=FOLDER' or --default-image-folder",
        )
    if not folder.is_dir():
        # There are no registries here: this is what a kubelet says where one does not have the image.
        told = f'Back-off pulling image "{name}": ErrImagePull: {name}: not found'
        raise NotLaunchableError("ImagePullBackOff", told)
    if not container.get("command"):
        raise NotLaunchableError(
            "ErrImageNeverPull",
            f"container {container['name']} has no command: image {name} is the folder {folder}, "
            "which has no entrypoint; write the command in the pod",
        )
    return folder


def _base_variables(sandbox: Sandbox, container: Json, image: Path) -> dict[str, str]:
    base = {
        "PATH": f"{image / 'bin'}:{_SYSTEM_PATH}",
        "VIRTUAL_ENV": str(image),
        "HOME": str(sandbox.folder / "home"),
        "HOSTNAME": sandbox.pod["metadata"]["name"],
        "LANG": "C.UTF-8",
        MARK_VARIABLE: f"{sandbox.mark}/{container['name']}",
        # Programs that set their process title would otherwise write it over the mark.
        "SPT_NOENV": "1",
    }
    for mount in container.get("volumeMounts", []):
        token = sandbox.volumes.token_source(mount["name"])
        if token and mount["mountPath"] == TOKEN_FOLDER:
            path = sandbox.volumes.path(mount["name"]) / token["path"]
            base["KUBECONFIG"] = str(sandbox.write_kubeconfig(path))
    return base


def _mounts(sandbox: Sandbox, container: Json, variables: Mapping[str, str]) -> dict[str, Path]:
    mounts: dict[str, Path] = {}
    for number, mount in enumerate(container.get("volumeMounts", [])):
        path = sandbox.volumes.path(mount["name"])
        if sub := mount.get("subPath") or expand(mount.get("subPathExpr", ""), variables):
            copies = sandbox.folder / "subpaths" / container["name"] / str(number)
            published = sandbox.volumes.is_published(mount["name"])
            path = _copied(path / sub, copies) if published else _made(path / sub)
        mounts[os.path.normpath(mount["mountPath"])] = path
    return mounts


def _copied(source: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    target = folder / source.name
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.exists():
        shutil.copy(source, target)
    else:
        raise NotLaunchableError("CreateContainerConfigError", f"the subPath {source.name} is not in its volume")
    return target


def _made(path: Path) -> Path:
    if not path.exists():
        path.mkdir(parents=True)
    return path


def _working_folder(sandbox: Sandbox, container: Json, mounts: Mapping[str, Path]) -> Path:
    wanted = container.get("workingDir")
    if not wanted:
        return sandbox.folder / "home"
    mapped = map_paths(wanted, mounts)
    folder = Path(mapped) if mapped != wanted else sandbox.folder / "root" / wanted.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
