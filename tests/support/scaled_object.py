"""KEDA's ScaledObject as KEDA itself defines it: the CRD that comes with its Go module. Nothing of KEDA is built here.

From it follow the schema for rendered objects and what the test control plane serves, where nobody acts on it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.binaries import MODULES
from tests.support.go_modules import module_folder
from tests.support.plane.plane import ControlPlane

GROUP = "keda.sh"
CRD_NAME = f"scaledobjects.{GROUP}"


def keda_folder() -> Path:
    """KEDA's module in Go's cache, in the version that its programs would be built from (3 MB)."""
    return module_folder("github.com/kedacore/keda/v2", "KEDA's definitions", MODULES / "keda")


@functools.cache
def custom_resource_definition() -> dict[str, Any]:
    """The CRD."""
    path = keda_folder() / "config" / "crd" / "bases" / f"{GROUP}_scaledobjects.yaml"
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
