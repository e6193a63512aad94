"""One control plane for the whole session, a fresh namespace for every test."""

import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.binaries import ensure
from tests.support.installation import Fleet, Helm, OperatorProcess, installed
from tests.support.plane.plane import ControlPlane

collect_ignore = ["keda"]
"""Needs programs that few have built: collected where it is asked for by its path, as `make test-keda` does."""


@pytest.fixture(scope="session")
def binaries() -> Mapping[str, Path]:
    """Every usual tool by name, built where the machine has none (tests/support/binaries.py shows its progress)."""
    return ensure()


@pytest.fixture(scope="session")
def plane(binaries: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane"), binaries, audit=True) as plane:
        yield plane


@pytest.fixture(scope="module")
def helm(plane: ControlPlane, binaries: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helm]:
    """The release without an operator pod: its rights are what an `OperatorProcess` runs under."""
    program = Helm(binaries["helm"], tmp_path_factory.mktemp("helm"), plane.kubeconfig)
    with installed(plane, program, {"replicas": 0}):
        # One that was there before the CRD would not collect what policies own for a minute.
        plane.restart_controller_manager()
        yield program


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """Deleted afterwards without waiting: the name is random, so nothing meets what is still going."""
    name = f"test-{secrets.token_hex(4)}"
    plane.create_namespace(name)
    yield name
    plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def operator_config() -> Mapping[str, Any]:
    """What a module's operators are configured with beside the defaults; a module that needs more has its own."""
    return {}


@pytest.fixture
def operator(
    plane: ControlPlane, helm: Helm, operator_config: Mapping[str, Any], tmp_path: Path
) -> Iterator[OperatorProcess]:
    """A process of the operator for one test."""
    with OperatorProcess(plane, tmp_path / "operator", operator_config) as process:
        yield process.start()


@pytest.fixture(scope="module")
def module_operator(
    plane: ControlPlane, helm: Helm, operator_config: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One for all tests of a module, as those that tell one story over one fleet need it."""
    with OperatorProcess(plane, tmp_path_factory.mktemp("operator"), operator_config) as process:
        yield process.start()


@pytest.fixture
def fleet(plane: ControlPlane, namespace: str) -> Fleet:
    return Fleet(plane, namespace)
