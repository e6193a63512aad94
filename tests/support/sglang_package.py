"""SGLang's own package, for tests that ask its argument parser; no engine of it runs here.

It lies in a folder of its own in the user's cache, installed without what SGLang asks for (CUDA builds of much that
vLLM has too), from requirements/sglang.txt with its hashes. Put on PYTHONPATH behind nothing and before the packages
of the vLLM environment, which stays as it is, it can be imported there. Folders are keyed, locked and renamed into
place as that environment is.

Run it: `python -m tests.support.sglang_package` prints the folder's path.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from tests.support.vllm_env import (
    REPOSITORY,
    Progress,
    cache_folder,
    ensure_vllm_env,
    find_uv,
    only_one_builder,
    run,
)

LOCK_FILE = REPOSITORY / "requirements" / "sglang.txt"


def ensure_sglang(python: Path, progress: Progress) -> Path:
    """Install the package if it is not there yet, for the environment's `python`; the folder that holds it.

    Raises:
        VllmEnvironmentError: uv is missing, or the installation failed.
    """
    key = hashlib.sha256(LOCK_FILE.read_bytes() + str(sys.version_info[:2]).encode()).hexdigest()[:16]
    place = cache_folder() / f"sglang-{key}"
    if not place.exists():
        with only_one_builder(place):
            if not place.exists():
                _build(place, python, progress)
    return place


def _build(place: Path, python: Path, progress: Progress) -> None:
    partial = place.with_name(place.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    progress(f"installing SGLang's package (about 140 MB, once) in {place}")
    command = [find_uv(), "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--python", str(python)]
    run([*command, "--target", str(partial), "-r", str(LOCK_FILE)], progress)
    partial.rename(place)


if __name__ == "__main__":

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    print(ensure_sglang(ensure_vllm_env(tell), tell))
