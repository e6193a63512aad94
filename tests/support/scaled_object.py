"""KEDA's ScaledObject as KEDA itself defines it: the CRD that comes with its Go module. Nothing of KEDA is built here.

From it follow the schema for rendered objects and what the test control plane serves, where nobody acts on it.
"""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.binaries import MODULES, find_go
from tests.support.plane.plane import ControlPlane

MODULE = "github.com/kedacore/keda/v2@v2.21.0"
GROUP = "keda.sh"
CRD_NAME = f"scaledobjects.{GROUP}"
DOWNLOAD_TIMEOUT_S = 300


class KedaMissing(RuntimeError):
    """The module could not be had; the message says why."""


@functools.cache
def custom_resource_definition() -> dict[str, Any]:
    """The CRD, from Go's cache, downloaded if need be (3 MB)."""
    done = subprocess.run(
        [str(find_go(["KEDA's definitions"])), "mod", "download", "-json", MODULE],
        cwd=MODULES,
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise KedaMissing(f"go mod download {MODULE}: {done.stderr.strip() or done.stdout.strip()}")
    path = Path(json.loads(done.stdout)["Dir"]) / "config" / "crd" / "bases" / f"{GROUP}_scaledobjects.yaml"
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def schema() -> dict[str, Any]:
    """The whole object, as the rendered one is judged."""
    (version,) = custom_resource_definition()["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


@contextmanager
def served(plane: ControlPlane) -> Iterator[None]:
    """A control plane that serves the kind, for as long as the context lasts."""
    plane.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(custom_resource_definition()))
    try:
        plane.await_established(CRD_NAME)
        yield
    finally:
        plane.kubectl("delete", "crd", CRD_NAME)
