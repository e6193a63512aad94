"""A kubeconfig as one self-contained file, certificates inside, so that it can be handed to any process."""

import base64
import json
from pathlib import Path

from tests.support.plane.certs import Pair


def write_kubeconfig(path: Path, server: str, ca: Path, client: Pair) -> Path:
    """JSON is YAML: every client reads it. The file holds a private key, so only its owner may read it."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "plane",
        "clusters": [{"name": "plane", "cluster": {"server": server, "certificate-authority-data": _encoded(ca)}}],
        "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": "user"}}],
        "users": [
            {
                "name": "user",
                "user": {
                    "client-certificate-data": _encoded(client.cert),
                    "client-key-data": _encoded(client.key),
                },
            }
        ],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=2))
    return path


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
