"""Everything that the demo runs on, started in order and stopped in reverse: also on Ctrl-C at any time.

Control plane, node agent, Prometheus, and the operator installed by Helm as a pod under its own rights. State
lives in a fresh folder; what is measured goes elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.demo.fleet import NAMESPACE, SOURCE, VLLM_IMAGE
from tests.support.demo.progress import Show
from tests.support.node_agent.launch import start_agent
from tests.support.plane.plane import ControlPlane
from tests.support.plane.prometheus import Prometheus, fleet_scrape

REPOSITORY = Path(__file__).resolve().parents[3]
CHART = REPOSITORY / "helm" / "prefleet"
OPERATOR_NAMESPACE = "prefleet-system"
HELM_TIMEOUT_S = 120
SCRAPE_INTERVAL_S = 2.0


class HelmFailed(RuntimeError):
    """Helm ended with an error; the message is what it wrote."""


@dataclass(frozen=True, slots=True)
class Stack:
    """What runs: the plane and the address of Prometheus."""

    plane: ControlPlane
    prometheus_url: str


@contextmanager
def running_stack(
    folder: Path, binaries: Mapping[str, Path], vllm_environment: Path | None, show: Show
) -> Iterator[Stack]:
    """Start everything in `folder`; `vllm_environment` is the folder whose bin/python3 has vLLM."""
    images = {VLLM_IMAGE: vllm_environment} if vllm_environment else {}
    with ExitStack() as stack:
        show.line("starting etcd, API server, controller manager and scheduler", keep=True)
        plane = stack.enter_context(ControlPlane(folder / "plane", binaries))
        show.line("starting a node whose pods are processes", keep=True)
        agent = start_agent(
            plane,
            folder / "node",
            accelerators={"nvidia.com/gpu": 4},
            images=images,
            default_image=Path(sys.prefix),
        )
        stack.callback(agent.stop)
        show.line("starting Prometheus", keep=True)
        prometheus = stack.enter_context(
            Prometheus(folder / "prometheus", binaries["prometheus"], fleet_scrape(plane.kubeconfig, SCRAPE_INTERVAL_S))
        )
        plane.create_namespace(NAMESPACE)
        show.line("helm install prefleet", keep=True)
        _helm_install(plane, binaries["helm"], prometheus.url, folder)
        yield Stack(plane, prometheus.url)


def _helm_install(plane: ControlPlane, helm: Path, prometheus_url: str, folder: Path) -> None:
    values = {
        "loopInterval": "2s",
        "metricsSources": [{"name": SOURCE, "type": "Prometheus", "url": prometheus_url}],
    }
    values_file = folder / "values.json"
    values_file.write_text(json.dumps(values))
    command = [
        *(
            str(helm),
            "install",
            "prefleet",
            str(CHART),
            "--namespace",
            OPERATOR_NAMESPACE,
            "--create-namespace",
        ),
        *("--values", str(values_file), "--wait", "--timeout", f"{HELM_TIMEOUT_S}s"),
    ]
    homes = {f"HELM_{name}_HOME": str(folder / "helm" / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    environment = {**os.environ, **homes, "KUBECONFIG": str(plane.kubeconfig)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=HELM_TIMEOUT_S + 30, check=False
    )
    if done.returncode:
        raise HelmFailed(f"helm install ended with status {done.returncode}: {done.stderr.strip()}")
