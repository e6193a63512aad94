"""The environment with the real routers, vllm-router and sglang-router: built once into the user's cache, 180 MB.

It is made as that of the real vLLM is (`vllm_env`): named by its lock file, built aside and renamed. As a folder with
`bin/` in it, it also stands for the router's image on the node agent, which runs images that are folders.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
from pathlib import Path

from tests.support.vllm_env import REPOSITORY, Progress, cache_folder, find_uv, only_one_builder, run

LOCK_FILE = REPOSITORY / "requirements" / "routers.txt"


def ensure_router_env(progress: Progress) -> Path:
    """Build the environment if it is not there yet; return its folder.

    Raises:
        VllmEnvironmentError: uv is missing, or the installation failed.
    """
    digest = hashlib.sha256(LOCK_FILE.read_bytes())
    digest.update(f"{sys.version_info[:2]} {platform.machine()}".encode())
    place = cache_folder() / f"routers-{digest.hexdigest()[:16]}"
    with only_one_builder(place):
        if not (place / "bin" / "python").exists():
            _build(place, progress)
    return place


def _build(place: Path, progress: Progress) -> None:
    uv = find_uv()
    partial = place.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    progress(f"building the routers' environment (about 180 MB, once) in {place}")
    run([uv, "venv", "--quiet", "--relocatable", "--no-project", "--python", sys.executable, str(partial)], progress)
    python = str(partial / "bin" / "python")
    run([uv, "pip", "sync", "--quiet", "--require-hashes", "--python", python, str(LOCK_FILE)], progress)
    partial.rename(place)
