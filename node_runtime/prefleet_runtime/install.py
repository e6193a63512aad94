"""Bring the runtime into a stock engine image: `python3 -m prefleet_runtime.install TARGET_DIR [--needs MODULE ...]`.

An init container from the runtime's image runs this with an emptyDir as TARGET_DIR; the engine's container has
the same directory on its PYTHONPATH. The package is copied beside its place and renamed into it, so that no
reader ever finds half of it, and running it again changes nothing but the copy. Only sources are copied:
byte code belongs to the interpreter that made it, and the engine's is another.

`--needs` names the modules that the engine is to be started with. A runtime that lacks one, since it is older than the
operator that wrote the pod, is refused here, in seconds: an engine would find out once it has loaded its model.

Left out: dependencies. The engine's image has pydantic and prometheus-client, which is all the runtime needs.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).parent


def install(target: Path) -> Path:
    """Copy the package into `target`, made if need be; returns where it lies. Raises OSError."""
    place = target / PACKAGE.name
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".prefleet-", dir=target) as aside:
        copy = Path(aside, "new")
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        if place.exists():
            place.rename(Path(aside, "old"))
        copy.rename(place)
    return place


def missing(modules: Sequence[str]) -> list[str]:
    """Those that this runtime lacks."""
    return [name for name in modules if not _is_here(name)]


def _is_here(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def main(argv: Sequence[str] | None = None) -> int:
    """The console script `prefleet-runtime`; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="prefleet-runtime", description="Copy the Prefleet runtime into a directory that an engine imports from."
    )
    parser.add_argument("target", type=Path, help="directory on the engine's PYTHONPATH, such as /opt/prefleet/runtime")
    parser.add_argument("--needs", nargs="*", default=[], metavar="MODULE", help="refuse to if the runtime lacks one")
    given = parser.parse_args(argv)
    target: Path = given.target
    if lacking := missing(given.needs):
        sys.stderr.write(f"this runtime image lacks {', '.join(lacking)}: use one of the operator's release\n")
        return 1
    try:
        place = install(target)
    except OSError as error:
        reason = error.strerror or str(error)
        sys.stderr.write(f"the runtime cannot be copied to {target} ({reason}): mount a writable volume there\n")
        return 1
    sys.stdout.write(f"the runtime is in {place}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
