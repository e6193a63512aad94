"""A real Prometheus on 127.0.0.1, and the scrape of a fleet's pods as an installation would configure it."""

import json
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.plane.components import HOST
from tests.support.plane.processes import Process, answers, direct_opener, free_ports

FLEET_LABEL = "prefleet.dev/fleet"
PORT_NAMES = ("prefleet", "http")  # the runtime's own metrics, the engine's
READY_TIMEOUT_S = 60.0


class Prometheus:
    """One server with its data in `folder`. `config`: a mapping, or YAML. A free port unless given."""

    def __init__(self, folder: Path, binary: Path, config: Mapping[str, Any] | str, port: int | None = None) -> None:
        self.folder = folder
        self._binary = binary
        self._config = config if isinstance(config, str) else json.dumps(config, indent=2)  # JSON is YAML
        self._port = port
        self._process: Process | None = None

    def start(self) -> "Prometheus":
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "prometheus.yml").write_text(self._config)
        port = self._port or free_ports(1)[0]
        self.url = f"http://{HOST}:{port}"
        arguments = [
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={HOST}:{port}",
            "--log.level=warn",
        ]
        process = Process.start("prometheus", [self._binary, *arguments], self.folder / "prometheus.log")
        self._process = process
        try:
            process.wait_ready(answers(f"{self.url}/-/ready"), READY_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        return self

    def query(self, expression: str) -> list[Any]:
        """The samples that an instant query finds now: each with its `metric` (labels) and its `value` (time, text)."""
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with direct_opener().open(url, timeout=10) as answer:
            result: list[Any] = json.load(answer)["data"]["result"]
        return result

    def stop(self) -> None:
        if self._process:
            self._process.stop()

    def __enter__(self) -> "Prometheus":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def fleet_scrape(kubeconfig: Path, interval_s: float) -> dict[str, Any]:
    """The configuration that finds every fleet's pods through the API and scrapes their two metrics ports.

    Each series carries the labels `namespace` and `pod`. The user of the kubeconfig must be allowed to list
    and watch pods. Pods that ended are left out: their address may be another's by now.
    """
    interval = f"{round(interval_s * 1000)}ms"
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": [
            {
                "job_name": "prefleet",
                "kubernetes_sd_configs": [
                    {
                        "role": "pod",
                        "kubeconfig_file": str(kubeconfig),
                        "selectors": [{"role": "pod", "label": FLEET_LABEL}],
                    }
                ],
                "relabel_configs": [
                    _when("pod_container_port_name", "keep", "|".join(PORT_NAMES)),
                    _when("pod_phase", "drop", "Succeeded|Failed"),
                    _label("namespace", "namespace"),
                    _label("pod_name", "pod"),
                ],
            }
        ],
    }


def operator_scrape(port: int) -> dict[str, Any]:
    """The scrape of the operator's own metrics, whose label `namespace` is the policy's and is to stay that."""
    return {
        "job_name": "prefleet-operator",
        "honor_labels": True,
        "static_configs": [{"targets": [f"{HOST}:{port}"]}],
    }


def _when(source: str, action: str, pattern: str) -> dict[str, Any]:
    return {"source_labels": [f"__meta_kubernetes_{source}"], "action": action, "regex": pattern}


def _label(source: str, label: str) -> dict[str, Any]:
    return {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": label}
