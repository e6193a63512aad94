"""Every state that the pods of a namespace go through, one change after another, as the API server's watch tells it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.plane.plane import ControlPlane

Json = dict[str, Any]


@dataclass(frozen=True)
class SeenPod:
    """One pod at one moment. `template`: its digest."""

    name: str
    role: str
    template: str
    ready: bool


class PodWatch:
    """A context in which the pods of a namespace are watched. `states`: all so far, each without those that end."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._command = [
            str(plane.binaries["kubectl"]), f"--cache-dir={plane.folder / 'kubectl-cache'}", "-n", namespace,
            "get", "pods", "--watch", "--output-watch-events", "-o", "json",
        ]  # fmt: skip
        self._kubeconfig: Path = plane.kubeconfig
        self.states: list[Mapping[str, SeenPod]] = []

    def __enter__(self) -> PodWatch:
        environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig)}
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, env=environment)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._thread.join()

    def _read(self) -> None:
        now: dict[str, SeenPod] = {}
        for event in self._events():
            pod = event["object"]
            uid, metadata = pod["metadata"]["uid"], pod["metadata"]
            if event["type"] == "DELETED" or "deletionTimestamp" in metadata:
                now.pop(uid, None)
            else:
                now[uid] = _seen(pod)
            self.states.append(dict(now))

    def _events(self) -> Iterator[Json]:
        """kubectl writes each event as a JSON document of one line, or of several with the last one not indented."""
        assert self._process.stdout is not None
        text = ""
        for line in self._process.stdout:
            text += line
            if line.startswith("}") or (line.startswith("{") and line.rstrip().endswith("}")):
                yield json.loads(text)
                text = ""


def is_ready(pod: Json) -> bool:
    """Whether it serves."""
    conditions = pod["status"].get("conditions") or ()
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def _seen(pod: Json) -> SeenPod:
    metadata = pod["metadata"]
    return SeenPod(
        name=metadata["name"],
        role=metadata["labels"]["prefleet.dev/role"],
        template=(metadata.get("annotations") or {}).get("prefleet.dev/template", ""),
        ready=is_ready(pod),
    )
