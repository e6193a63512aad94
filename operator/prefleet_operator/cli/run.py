"""`prefleet run`: the operator. All of its configuration comes from a file and from flags."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from prefleet_operator.app.main import Options


def run(
    config: Annotated[Path, typer.Option(help="The installation's configuration, a YAML file.")],
    namespace: Annotated[
        list[str] | None,
        typer.Option(help="Serve this namespace alone; may be repeated. Replaces what the file says."),
    ] = None,
    lease: Annotated[str, typer.Option(help="Name of the Lease by which one operator leads.")] = "prefleet",
    host: Annotated[str, typer.Option(help="Address that health and metrics are served on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of /healthz, /readyz and /metrics.")] = 8080,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the operator until SIGTERM.

    In a pod it uses the service account, elsewhere KUBECONFIG. POD_NAME names this process, and POD_NAMESPACE
    says where the Lease is kept.
    """
    import asyncio

    from prefleet_operator.adapters.kube import KubeError
    from prefleet_operator.app.config import ConfigError, load_config
    from prefleet_operator.app.main import Process
    from prefleet_operator.cli.documents import fail

    _set_up_logging(log_level)
    try:
        settings = load_config(config).with_namespaces(tuple(namespace or ()))
        asyncio.run(Process(settings, _options(lease, host, port)).run())
    except (ConfigError, KubeError, OSError) as error:
        fail(f"prefleet run: {error}")


def _options(lease: str, host: str, port: int) -> Options:
    import os
    import secrets
    import socket

    from prefleet_operator.app.main import Options

    return Options(
        lease=lease,
        lease_namespace=os.environ.get("POD_NAMESPACE") or "default",
        identity=os.environ.get("POD_NAME") or f"{socket.gethostname()}-{secrets.token_hex(4)}",
        host=host,
        port=port,
    )


def _set_up_logging(level: str) -> None:
    import logging

    names = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
    if level not in names:
        raise typer.BadParameter(f"{level} is not a level: write one of {', '.join(names)}")
    logging.basicConfig(level=names[level], format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("kopf", "aiohttp", "asyncio"):
        logging.getLogger(noisy).setLevel(max(names[level], logging.WARNING))
