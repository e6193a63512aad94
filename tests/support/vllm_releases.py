"""The other releases of vLLM that the runtime supports, for tests of its scheduler without an engine.

Only vLLM's own package differs from release to release here: each is built from its official source without
kernels (VLLM_TARGET_DEVICE=empty, about 50 MB) into a folder of its own, and put on PYTHONPATH before the
packages of the one environment that holds torch and everything else (`vllm_env`). What a release asks of its
dependencies is therefore not checked: the scheduler needs few of them.

Folders are keyed, locked and renamed into place as that environment is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.vllm_env import (
    REPOSITORY,
    Progress,
    cache_folder,
    find_uv,
    only_one_builder,
    run,
)
from tests.support.vllm_server import RUNTIME_FOLDER, server_environment

RELEASES_FILE = REPOSITORY / "requirements" / "vllm-releases.txt"
_PREFIX = "vllm=="


@dataclass(frozen=True)
class Release:
    """One release; `requirement` is its line of the file with its hashes."""

    version: str
    requirement: str

    @property
    def minor(self) -> tuple[int, int]:
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)


def pinned_releases() -> list[Release]:
    """The releases of requirements/vllm-releases.txt, in its order."""
    lines = RELEASES_FILE.read_text().replace("\\\n", " ").splitlines()
    requirements = [line for line in lines if line.startswith(_PREFIX)]
    return [Release(line.split()[0].removeprefix(_PREFIX), line) for line in requirements]


def ensure_release(release: Release, python: Path, progress: Progress) -> Path:
    """Build a release if it is not there yet, with the environment's `python`; the folder that holds its package.

    Raises:
        VllmEnvironmentError: uv is missing, or the build failed.
    """
    key = hashlib.sha256(f"{sys.version_info[:2]} {release.requirement}".encode()).hexdigest()[:16]
    place = cache_folder() / f"release-{release.version}-{key}"
    if not place.exists():
        with only_one_builder(place):
            if not place.exists():
                _build(release, place, python, progress)
    return place


def _build(release: Release, place: Path, python: Path, progress: Progress) -> None:
    partial = place.with_name(place.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    requirements = partial / "requirements.txt"
    requirements.write_text(release.requirement + "\n")
    progress(f"building vLLM {release.version} without kernels (about 50 MB, once) in {place}")
    command = [find_uv(), "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--no-binary", "vllm", "--no-build-isolation", "--python", str(python)]
    command += ["--target", str(partial), "-r", str(requirements)]
    run(command, progress, {**os.environ, "VLLM_TARGET_DEVICE": "empty"})
    partial.rename(place)


def release_environment(python: Path, folder: Path) -> dict[str, str]:
    """The environment of a process that imports the release in `folder`, on the CPU, and the runtime."""
    return server_environment(python) | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(RUNTIME_FOLDER)]),
        "VLLM_TARGET_DEVICE": "cpu",  # a build without kernels does not know where it runs
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
