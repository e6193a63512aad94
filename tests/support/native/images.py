"""A folder that stands, on the local plane, for the images of engines that schedule by themselves.

Its python3 finds modules under the engines' own names, and its MindIE has a configuration and a daemon; behind each is
the server of this package. `IMAGES` says which image names it stands for, to be given to `start_agent`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.native.start import RELEASE_VARIABLE

REPOSITORY = Path(__file__).parents[3]
MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm-ascend",
    "sglang.launch_server": "sglang",
    "lightllm.server.api_server": "lightllm",
}
IMAGES = ("*vllm-ascend*", "*sglang*", "*lightllm*", "*mindie*")
MINDIE_CONFIG = """\
{
    "ServerConfig": {"ipAddress": "127.0.0.1", "port": 1025, "managementPort": 1026, "metricsPort": 1027},
    "BackendConfig": {
        "npuDeviceIds": [[0]],
        "ModelDeployConfig": {"ModelConfig": [{"modelName": "llama", "modelWeightPath": "/data", "worldSize": 1}]},
        "ScheduleConfig": {"maxBatchSize": 200, "supportSelectBatch": false}
    }
}
"""


def make_native_images(folder: Path, release: str = "0.25.1rc1") -> dict[str, Path]:
    """Make it in an empty folder; the images that it stands for. `release`: of VLLMAscend."""
    packages, home = folder / "packages", folder / "mindie"
    for module, flavour in MODULES.items():
        path = packages / Path(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True)
        path.write_text(
            f"import sys\n\nfrom tests.support.native.__main__ import main\n\nsys.argv.insert(1, {flavour!r})\nmain()\n"
        )
    python = f'{RELEASE_VARIABLE}={release} PYTHONPATH={packages}:{REPOSITORY} exec {sys.executable} "$@"'
    _program(folder / "bin" / "python3", python)
    # What an image's own environment says, and a /tmp of the container's own.
    variables = f'export MIES_INSTALL_PATH={home} MIES_CONFIG_JSON_PATH="$HOME/mindie-config.json"'
    _program(folder / "bin" / "bash", f'{variables}\nexec /bin/bash "$@"')
    _program(home / "bin" / "mindieservice_daemon", "exec python3 -m tests.support.native mindie")
    (home / "conf").mkdir()
    (home / "conf" / "config.json").write_text(MINDIE_CONFIG)
    return dict.fromkeys(IMAGES, folder)


def _program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
