"""Starts the node agent for tests and the demo, as a process that ends with the one that started it.

    with start_agent(plane, folder, default_image=Path(sys.prefix)) as agent:
        plane.kubectl("apply", "-f", ...)

The agent acts as system:node:NAME under the Node authoriser; its Service proxy as the administrator, since it looks
at all pods. Of the agents of one control plane only one may forward Services.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from tests.support.node_agent.agent import READY_FILE
from tests.support.plane.processes import Process

READY_TIMEOUT_S = 30.0

_REPOSITORY = Path(__file__).parents[3]
_STOP_S = 20.0


class Plane(Protocol):
    """What is needed of a control plane."""

    kubeconfig: Path

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path: ...

    def kubectl(self, *arguments: str) -> str: ...


class AgentHandle:
    """A running agent; a context that stops it."""

    def __init__(self, plane: Plane, process: Process, node_name: str, workdir: Path) -> None:
        self._plane = plane
        self._process = process
        self.node_name = node_name
        self.workdir = workdir
        self.log = process.log
        facts = json.loads((workdir / READY_FILE).read_text())
        self.pid: int = facts["pid"]
        self.address: str = facts["address"]

    def stop(self) -> None:
        """Ends the agent and every process of its pods; the pods stay in the API. Twice is harmless."""
        self._process.stop()

    def kill(self) -> None:
        """SIGKILL, as an accident would have it: its watchdog ends the processes a moment later."""
        self._process.kill()

    def leave(self) -> None:
        """Stops, and takes the Node out of the cluster, so that nothing is scheduled to it any more."""
        self.stop()
        self._plane.kubectl("delete", "node", self.node_name, "--wait=false")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start_agent(
    plane: Plane,
    workdir: Path,
    *,
    name: str = "node-a",
    default_image: Path | None = None,
    images: Mapping[str, Path] | None = None,
    accelerators: Mapping[str, int] | None = None,
    forward_services: bool = True,
    back_off_base_s: float | None = None,
    flags: tuple[str, ...] = (),
) -> AgentHandle:
    """Starts an agent and returns when its Node is registered; raises ProcessFailed with the log's end.

    `default_image` is the folder for images that no glob of `images` matches: this interpreter's if left out.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / READY_FILE).unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "tests.support.node_agent"),
        *("--kubeconfig", str(plane.kubeconfig_for(f"system:node:{name}", ["system:nodes"]))),
        *("--node", name, "--workdir", str(workdir)),
        *("--default-image-folder", str(default_image or sys.prefix)),
        *(f"--image={glob}={folder}" for glob, folder in (images or {}).items()),
        *(f"--accelerator={resource}={count}" for resource, count in (accelerators or {}).items()),
    ]
    if forward_services:
        command.append(f"--proxy-kubeconfig={plane.kubeconfig}")
    if back_off_base_s is not None:
        command.append(f"--back-off-base={back_off_base_s}")
    process = Process.start(
        f"node agent {name}", [*command, *flags], workdir / "agent.log", cwd=_REPOSITORY, grace_s=_STOP_S
    )
    try:
        process.wait_ready((workdir / READY_FILE).exists, READY_TIMEOUT_S)
    except BaseException:
        process.stop()
        raise
    return AgentHandle(plane, process, name, workdir)
