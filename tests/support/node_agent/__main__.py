"""The node agent as a command: `python -m tests.support.node_agent --kubeconfig FILE --node NAME --workdir DIR`.

Test equipment; what it does and does not do stands in `agent`. SIGTERM and SIGINT end it with all its processes.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from pathlib import Path

from tests.support.node_agent.agent import NodeAgent
from tests.support.node_agent.backoff import BackOff
from tests.support.node_agent.settings import AgentSettings


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def parse(arguments: list[str] | None = None) -> AgentSettings:
    parser = argparse.ArgumentParser(prog="python -m tests.support.node_agent", description=__doc__)
    add = parser.add_argument
    add("--kubeconfig", type=Path, required=True, help="credentials of system:node:NAME in system:nodes")
    add("--node", required=True, help="the Node's name")
    add("--workdir", type=Path, required=True, help="folder for pods; one agent's own; keep the path short")
    add("--address-base", help="two octets of 127.0.0.0/8 for node and pods; chosen if left out")
    add("--accelerator", type=_pair, action="append", default=[], metavar="RESOURCE=COUNT")
    add("--label", type=_pair, action="append", default=[], metavar="KEY=VALUE", help="of the Node")
    add("--cpu", default="64")
    add("--memory", default="256Gi")
    add("--image", type=_pair, action="append", default=[], metavar="GLOB=FOLDER", help="first match wins")
    add("--default-image-folder", type=Path, help="for images that no glob matches")
    add("--proxy-kubeconfig", type=Path, help="forward Services, with credentials to list Services and all pods")
    add("--service-lag", type=float, default=0.0, help="seconds after which its Services know of a change of pods")
    add("--back-off-base", type=float, default=BackOff.base_s, help="seconds (%(default)g, as a kubelet's)")
    add("--back-off-cap", type=float, default=BackOff.cap_s, help="seconds (%(default)g, as a kubelet's)")
    add("--stop-grace", type=float, default=5.0, help="seconds that processes get when the agent is stopped")
    add("--tls-certificate", type=Path, help="for the log server; self-signed if left out")
    add("--tls-key", type=Path)
    given = parser.parse_args(arguments)
    return AgentSettings(
        kubeconfig=given.kubeconfig,
        node_name=given.node,
        workdir=given.workdir.resolve(),
        address_base=given.address_base,
        cpu=given.cpu,
        memory=given.memory,
        accelerators={name: int(count) for name, count in given.accelerator},
        labels=dict(given.label),
        images=tuple((glob, Path(folder).absolute()) for glob, folder in given.image),
        default_image=given.default_image_folder and given.default_image_folder.absolute(),
        proxy_kubeconfig=given.proxy_kubeconfig,
        service_lag_s=given.service_lag,
        back_off=BackOff(given.back_off_base, given.back_off_cap),
        stop_grace_s=given.stop_grace,
        certificate=given.tls_certificate,
        key=given.tls_key,
    )


async def _run(settings: AgentSettings) -> None:
    serving = asyncio.create_task(NodeAgent(settings).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    await asyncio.wait([serving])
    if not serving.cancelled():
        serving.result()


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(_run(parse()))


if __name__ == "__main__":
    main()
