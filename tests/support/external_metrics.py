"""A server of `external.metrics.k8s.io/v1beta1` that answers from a Prometheus. Test equipment, no part of the product.

It stands where a cluster has prometheus-adapter or KEDA: a metric's name is a Prometheus metric's, and the namespace
and the label selector of a request are matchers of its series. What Prometheus has no sample of is an empty list, which
the HPA controller takes as a metric that failed, not as zero.

Left out: who asks (the API server has authorised the request before it proxies it), selectors other than `label=value`,
and listing which metrics there are.
"""

from __future__ import annotations

import json
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.plane.aggregation import EXTERNAL_METRICS, Aggregated, registered, serving_pair
from tests.support.plane.components import HOST
from tests.support.plane.plane import ControlPlane
from tests.support.plane.prometheus import Prometheus

GROUP, VERSION = EXTERNAL_METRICS
ROOT = f"/apis/{GROUP}/{VERSION}"

Json = dict[str, Any]
Ask = Callable[[str], list[Json]]


@contextmanager
def external_metrics(plane: ControlPlane, namespace: str, prometheus: Prometheus) -> Iterator[None]:
    """The API, registered and served; `namespace` is where its Service lives."""
    api = Aggregated(GROUP, VERSION, namespace, "external-metrics")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair = serving_pair(plane, api)
    context.load_cert_chain(pair.cert, pair.key)
    server = ThreadingHTTPServer((HOST, 0), _handler(prometheus.query))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with registered(plane, api, server.server_port):
            yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer(path: str, ask: Ask) -> Json | None:
    """The body for a request's path and query; None for what this server does not have."""
    url = urllib.parse.urlsplit(path)
    if url.path == ROOT:
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}", "resources": []}
    match url.path.removeprefix(f"{ROOT}/").split("/"):
        case ["namespaces", namespace, metric]:
            selector = urllib.parse.parse_qs(url.query).get("labelSelector", [""])[0]
            return values(ask(promql(metric, namespace, selector)))
    return None


def promql(metric: str, namespace: str, selector: str) -> str:
    """The series that a request means. ValueError for a selector that is no list of `label=value`."""
    labels = {"namespace": namespace}
    for term in filter(None, selector.split(",")):
        label, equals, value = term.partition("=")
        if not equals or label.endswith("!") or value.startswith("="):
            raise ValueError(f"the label selector {selector!r} is no list of label=value, which is all that is known")
        labels[label] = value
    matchers = ",".join(f"{label}={json.dumps(value)}" for label, value in labels.items())
    return f"{metric}{{{matchers}}}"


def values(samples: list[Json]) -> Json:
    """An ExternalMetricValueList of what Prometheus answered."""
    items = [_value(sample["metric"], *sample["value"]) for sample in samples]
    return {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": items}


def _value(labels: Mapping[str, str], at: float, value: str) -> Json:
    return {
        "metricName": labels.get("__name__", ""),
        "metricLabels": {name: text for name, text in labels.items() if name != "__name__"},
        "timestamp": datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "value": f"{round(float(value) * 1000)}m",
    }


def _handler(ask: Ask) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                body = answer(self.path, ask)
            except (OSError, ValueError) as error:
                self._send(500, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": str(error)})
                return
            self._send(200 if body is not None else 404, body or {"kind": "Status", "apiVersion": "v1", "code": 404})

        def _send(self, code: int, body: Json) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing: the test's output is pytest's."""

    return Handler
