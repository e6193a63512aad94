"""The releases of vLLM that the runtime supports are stated once in code and once for installers."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path

import pytest
from prefleet_runtime.vllm.releases import UnsupportedReleaseError, require_supported, supported_range

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def test_the_extra_names_the_releases_that_the_code_accepts() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert extras["vllm"] == [f"vllm{supported_range()}"]


@pytest.mark.parametrize("version", ["0.32.0", "0.32.5", "0.33.1.dev3+gabc.cpu", "0.28.0rc1"])
def test_any_patch_of_a_supported_minor_release_is_accepted(version: str) -> None:
    require_supported(version)


@pytest.mark.parametrize("version", ["0.27.9", "0.34.0", "1.32.0", "0.3.2"])
def test_another_minor_release_is_refused_with_what_to_do(version: str) -> None:
    with pytest.raises(UnsupportedReleaseError, match=rf"this is vLLM {version}: use an image of a supported"):
        require_supported(version)


def test_a_source_build_without_a_number_is_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        require_supported("dev")
    assert "'dev'" in caplog.text
