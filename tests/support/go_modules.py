"""The folder of a Go module in Go's cache, downloaded if need be: for the definitions that modules carry."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support.binaries import find_go

DOWNLOAD_TIMEOUT_S = 300


class ModuleMissing(RuntimeError):
    """The module could not be had; the message says why."""


def module_folder(module: str, needed_for: str, within: Path) -> Path:
    """Where the files of `module` lie. `within`: the folder whose go.mod says the version, unless `module` does."""
    done = subprocess.run(
        [str(find_go([needed_for])), "mod", "download", "-json", module],
        cwd=within,
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise ModuleMissing(f"go mod download {module}: {done.stderr.strip() or done.stdout.strip()}")
    return Path(json.loads(done.stdout)["Dir"])
