"""An API of another server under the control plane's own address, as a cluster aggregates metrics adapters.

The aggregator reaches a server by way of a Service, and the API refuses loopback addresses as endpoints; a Service of
type ExternalName that says `localhost` it follows, to the port that the APIService names. It checks the server's
certificate under the name SERVICE.NAMESPACE.svc.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.plane.certs import Pair
from tests.support.plane.plane import ControlPlane
from tests.support.waiting import eventually

AVAILABLE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Aggregated:
    """What is served, under which Service. A cluster has each group and version once only."""

    group: str
    version: str
    namespace: str
    service: str

    @property
    def host(self) -> str:
        return f"{self.service}.{self.namespace}.svc"

    @property
    def name(self) -> str:
        return f"{self.version}.{self.group}"

    def objects(self, port: int, authority: bytes) -> dict[str, object]:
        """The Service and the APIService, as one List."""
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.service, "namespace": self.namespace},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }
        registration = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": self.name},
            "spec": {
                "group": self.group,
                "version": self.version,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "service": {"name": self.service, "namespace": self.namespace, "port": port},
                "caBundle": base64.b64encode(authority).decode(),
            },
        }
        return {"apiVersion": "v1", "kind": "List", "items": [service, registration]}


EXTERNAL_METRICS = ("external.metrics.k8s.io", "v1beta1")


def serving_pair(plane: ControlPlane, api: Aggregated) -> Pair:
    """The certificate that the API's server must show."""
    return plane.serving_pair(api.service, [api.host, "localhost"])


@contextmanager
def registered(plane: ControlPlane, api: Aggregated, port: int) -> Iterator[None]:
    """The API, served from this port of localhost and said to be available, for as long as the context lasts."""
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(api.objects(port, plane.ca_file.read_bytes())))
    try:
        eventually(lambda: plane.condition("apiservice", api.name, "Available") == "True", AVAILABLE_TIMEOUT_S)
        yield
    finally:
        plane.kubectl("delete", "apiservice", api.name, "--ignore-not-found")
        plane.kubectl("delete", "service", "-n", api.namespace, api.service, "--ignore-not-found")
