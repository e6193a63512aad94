"""A node agent that runs the real vllm-router under an image's name, beside simulated pods."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.node_agent.launch import start_agent
from tests.support.plane.plane import ControlPlane
from tests.support.router_env import ensure_router_env

ROUTER_IMAGE = "example.com/vllm-router:0.1.17"


@contextmanager
def routing_node(plane: ControlPlane, folder: Path, name: str) -> Iterator[None]:
    """The node, out of the cluster again at the end."""
    routers = ensure_router_env(lambda line: print(line, flush=True))
    images = {ROUTER_IMAGE: routers}
    handle = start_agent(plane, folder, name=name, default_image=Path(sys.prefix), images=images)
    try:
        yield
    finally:
        handle.leave()
