"""Nobody loses a request, and no pod does one twice, while pods go: in a rollout, a scale-down, a drain, an eviction.

Two fleets on two nodes, under clients that count: prefill and decode with a client that hands over as a proxy does, and
mixed pods with clients that keep their connections. The tests are steps of one story over both, in their order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import StreamingClients, Tally
from tests.support.installation import Fleet, Helm, OperatorProcess
from tests.support.node_agent.launch import start_agent
from tests.support.plane.plane import ControlPlane
from tests.support.plane.processes import answers
from tests.support.pod_ledger import PodLedger
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]

NAMESPACE = "draining"
NODES = ("drain-a", "drain-b")
RATE = 6.0
OUTPUT_TOKENS = 60
"""About a second of decode: every pod that goes has some under way."""
SERVICE_LAG_S = 3.0
"""Services go on to send to a pod that has been told to go, as kube-proxy does for a while."""
GONE_S = 120
ENOUGH = 20
"""Requests that are to be answered before and after what is done to the fleet."""


class LoadedFleet:
    """A fleet, its clients, and the account of its pods."""

    def __init__(self, plane: ControlPlane, name: str, keep_alive: bool, spec: Mapping[str, Json]) -> None:
        self.fleet = Fleet(plane, NAMESPACE, name)
        self.spec = dict(spec)
        self.ledger = PodLedger(plane, NAMESPACE, name)
        self._keep_alive = keep_alive
        self._sent: list[int] = []

    @property
    def pod_names(self) -> set[str]:
        """Those that are not told to go."""
        return {pod["metadata"]["name"] for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]}

    def pods(self, role: str = "") -> list[Json]:
        """All that are there."""
        selector = f"prefleet.dev/fleet={self.fleet.name}" + (f",prefleet.dev/role={role}" if role else "")
        found = self.fleet.plane.kubectl("-n", NAMESPACE, "get", "pods", "-l", selector, "-o", "json")
        return list(json.loads(found)["items"])

    def apply(self, role: str | None = None, **changed: Any) -> None:
        """The spec, with something of one role, or of all, changed for good."""
        for each in self.spec if role is None else (role,):
            self.spec[each] = self.spec[each] | changed
        self.fleet.apply(**self.spec)

    def await_ready(self) -> None:
        """Until every pod that is wanted serves, and none is there besides."""

        def ready() -> bool:
            pods = self.pods()
            serving = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and is_ready(pod)]
            return len(serving) == len(pods) == sum(role["replicas"] for role in self.spec.values())

        eventually(ready, GONE_S, poll_s=0.5)

    def await_reached(self) -> None:
        """Until its Services know of pods."""
        for role in self.spec:
            eventually(answers(f"{self._url(role)}/health"), 30)

    def clients(self) -> StreamingClients:
        """New ones, whose requests have names of their own."""
        prefill, *decode = [self._url(role) for role in self.spec]
        return StreamingClients(
            prefill,
            decode_url=decode[0] if decode else None,
            rate=RATE,
            model="chat",
            output_tokens=OUTPUT_TOKENS,
            keep_alive=self._keep_alive,
            shortest_prompt=20 + len(self._sent),
        )

    def judge(self, tally: Tally) -> None:
        """AssertionError if a request was lost, or came to a pod of its role not once."""
        self._sent += tally.sent
        assert not tally.failed, f"{self.fleet.name}: {tally.failed}"
        assert sorted(tally.answered) == tally.sent
        for role in self.spec:
            self.ledger.require_once(role, self._sent)

    def _url(self, role: str) -> str:
        service = self.fleet.get("service", f"{self.fleet.name}-{role}")
        assert service is not None
        return f"http://{service['spec']['clusterIP']}:8000"


def is_ready(pod: Json) -> bool:
    """Whether it serves."""
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


class Fleets:
    """Both fleets."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        replicas = {"replicas": 2}
        self.pair = LoadedFleet(plane, "pair", keep_alive=False, spec={"prefill": replicas, "decode": replicas})
        self.mixed = LoadedFleet(plane, "mixed", keep_alive=True, spec={"mixed": replicas})
        self.all = (self.pair, self.mixed)

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """Clients before, during and after what is done to the fleets; then judged."""
        with ExitStack() as stack:
            clients = [stack.enter_context(each.clients()) for each in self.all]
            answered(clients, ENOUGH)
            yield
            for each in self.all:
                each.await_ready()
            answered(clients, max(len(each.tally.answered) for each in clients) + ENOUGH)
        for fleet, done in zip(self.all, clients, strict=True):
            fleet.judge(done.tally)


def answered(clients: list[StreamingClients], count: int) -> None:
    """Until each has so many answers, or has seen a failure, which is judged later."""
    for each in clients:
        eventually(lambda each=each: len(each.tally.answered) >= count or each.tally.failures, 60)  # type: ignore[misc]


@pytest.fixture(scope="module", autouse=True)
def agents(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with ExitStack() as stack:
        for name in NODES:
            folder = tmp_path_factory.mktemp(name)
            handle = start_agent(
                plane,
                folder,
                name=name,
                default_image=Path(sys.prefix),
                forward_services=name == NODES[0],
                flags=(f"--service-lag={SERVICE_LAG_S}",),
            )
            stack.callback(handle.leave)
        yield


@pytest.fixture(scope="module")
def fleets(plane: ControlPlane, helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleets]:
    plane.create_namespace(NAMESPACE)
    with OperatorProcess(plane, tmp_path_factory.mktemp("operator")) as operator:
        operator.start()
        found = Fleets(plane)
        for each in found.all:
            each.apply()
        with found.pair.ledger, found.mixed.ledger:
            for each in found.all:
                each.await_ready()
                each.await_reached()
            yield found
    plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def replaced(fleet: LoadedFleet, before: set[str]) -> Callable[[], bool]:
    """Whether none of the pods is there any more."""
    return lambda: not before & {pod["metadata"]["name"] for pod in fleet.pods()}


def test_a_rollout_loses_nothing_and_does_nothing_twice(fleets: Fleets) -> None:
    before = {each: each.pod_names for each in fleets.all}
    with fleets.under_load():
        for each in fleets.all:
            each.apply(args=["--max-num-seqs", "200"])
        for each in fleets.all:
            eventually(replaced(each, before[each]), GONE_S, poll_s=0.5)


def test_a_node_that_is_drained_loses_nothing(fleets: Fleets) -> None:
    away = NODES[1]
    assert any(pod["spec"]["nodeName"] == away for each in fleets.all for pod in each.pods())
    with fleets.under_load():
        fleets.plane.kubectl("drain", away, f"--timeout={GONE_S}s", timeout_s=GONE_S + 10)
        assert not any(pod["spec"].get("nodeName") == away for each in fleets.all for pod in each.pods())
    fleets.plane.kubectl("uncordon", away)


def test_pods_that_are_evicted_lose_nothing(fleets: Fleets) -> None:
    with fleets.under_load():
        evicted = [each.pods(role)[0]["metadata"]["name"] for each in fleets.all for role in each.spec]
        for name in evicted:
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
            fleets.plane.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
        for each in fleets.all:
            eventually(replaced(each, set(evicted)), GONE_S, poll_s=0.5)


def test_a_scale_down_loses_nothing(fleets: Fleets) -> None:
    with fleets.under_load():
        for each in fleets.all:
            each.apply(replicas=1)
        for each in fleets.all:
            each.await_ready()
