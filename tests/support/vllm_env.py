"""The environment in which the real vLLM runs on a CPU: built once, then shared by tests and demo.

It lies in the user's cache under a name made of the lock file's hash and the interpreter's version, so a
changed lock makes a new one and an unchanged one is never touched again. It is built beside its place and
renamed into it, under a file lock: whoever comes second waits and finds it ready, and an interrupted build
leaves nothing that could be mistaken for a finished one.

Prefleet itself is not installed in it: the runtime reaches the engine by PYTHONPATH, as in a pod.

Run it: `python -m tests.support.vllm_env` prints the interpreter's path.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LOCK_FILE = REPOSITORY / "requirements" / "vllm.txt"
BUILD_TIMEOUT_S = 1800
PROGRESS_EVERY_S = 15

Progress = Callable[[str], None]


class VllmEnvironmentError(RuntimeError):
    """The environment cannot be built here; the message says what to do."""


def ensure_vllm_env(progress: Progress) -> Path:
    """Build the environment if it is not there yet; return its Python interpreter.

    Raises:
        VllmEnvironmentError: uv is missing, or the installation failed.
    """
    place = cache_folder() / f"vllm-{_key()}"
    python = place / "bin" / "python"
    if python.exists():
        return python
    with only_one_builder(place):
        if not python.exists():
            _build(place, progress)
    return python


def cache_folder() -> Path:
    """Where environments are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "prefleet"


def _key() -> str:
    digest = hashlib.sha256(LOCK_FILE.read_bytes())
    digest.update(f"{sys.version_info[:2]} {platform.machine()}".encode())
    return digest.hexdigest()[:16]


@contextmanager
def only_one_builder(place: Path) -> Iterator[None]:
    """Held by whoever builds `place`; others wait."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(place: Path, progress: Progress) -> None:
    uv = find_uv()
    partial = place.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    progress(f"building the vLLM environment (about 6 GB, once) in {place}")
    run(
        [uv, "venv", "--quiet", "--relocatable", "--no-project", "--python", sys.executable, str(partial)],
        progress,
    )
    python = str(partial / "bin" / "python")
    run([uv, "pip", "sync", "--quiet", "--require-hashes", "--python", python, str(LOCK_FILE)], progress)
    partial.rename(place)
    progress(f"the vLLM environment is ready: {place}")
    for other in sorted(place.parent.glob("vllm-*/bin/python")):
        if other.parents[1] not in (place, partial):
            progress(f"an older vLLM environment may be deleted: {other.parents[1]}")


def find_uv() -> str:
    """The installer. Raises VllmEnvironmentError if there is none."""
    beside_us = Path(sys.executable).with_name("uv")
    uv = str(beside_us) if beside_us.exists() else shutil.which("uv")
    if uv is None:
        raise VllmEnvironmentError(
            "uv was not found beside this Python nor on PATH: run `pip install uv` and try again"
        )
    return uv


def run(command: list[str], progress: Progress, env: Mapping[str, str] | None = None) -> None:
    """Run an installer to its end, with a line now and then; `env` (ours by default) is its whole environment.

    Raises:
        VllmEnvironmentError: it failed, or took too long.
    """
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    try:
        output = _wait(process, started, progress)
    finally:
        process.kill()
    if process.returncode != 0:
        tail = "\n".join(output.splitlines()[-15:])
        raise VllmEnvironmentError(f"`{' '.join(command[1:3])}` failed with status {process.returncode}:\n{tail}")


def _wait(process: subprocess.Popen[str], started: float, progress: Progress) -> str:
    while True:
        try:
            output, _ = process.communicate(timeout=PROGRESS_EVERY_S)
            return output
        except subprocess.TimeoutExpired:
            elapsed = time.monotonic() - started
            if elapsed > BUILD_TIMEOUT_S:
                raise VllmEnvironmentError(
                    f"vLLM was not installed within {elapsed:.0f} s (limit {BUILD_TIMEOUT_S} s): "
                    "check the network and try again; what was downloaded is kept"
                ) from None
            progress(f"installing vLLM: {elapsed:.0f} s")


if __name__ == "__main__":
    print(ensure_vllm_env(lambda line: print(line, file=sys.stderr, flush=True)))
