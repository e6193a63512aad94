"""A fleet of simulators under streaming clients that count: what is done to it must lose and repeat nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import quote

from tests.support.clients import SHORTEST_PROMPT, StreamingClients, Tally
from tests.support.installation import Fleet
from tests.support.plane.plane import ControlPlane
from tests.support.plane.processes import answers
from tests.support.pod_ledger import PodLedger
from tests.support.pod_watch import is_ready
from tests.support.waiting import eventually

Json = dict[str, Any]

RATE = 6.0
OUTPUT_TOKENS = 60
"""About a second of decode: every pod that goes has some under way."""
GONE_S = 120
"""The most that a pod may take to go, or to come."""
ENOUGH = 20
"""Requests that are to be answered before and after what is done to the fleet."""
POLL_S = 0.5
BURST_RATE = 50.0
BURST_PROMPT = 2000
"""Tokens of the shortest prompt of those that one pod is asked itself: other names than the rest have."""


class LoadedFleet:
    """A fleet, its clients, and the account of its pods.

    `spec`: its roles. With a `router` clients ask that one; else those of prefill and decode hand over themselves.
    """

    def __init__(
        self,
        plane: ControlPlane,
        namespace: str,
        name: str,
        spec: Mapping[str, Json],
        router: Json | None = None,
        keep_alive: bool = False,
    ) -> None:
        self.fleet = Fleet(plane, namespace, name)
        self.spec = dict(spec)
        self.ledger = PodLedger(plane, namespace, name)
        self._router = router
        self._keep_alive = keep_alive
        self._sent: list[int] = []
        self._busy: list[StreamingClients] = []

    @property
    def pod_names(self) -> set[str]:
        """Pods of its roles that are not told to go."""
        return {pod["metadata"]["name"] for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]}

    def pods(self, role: str | None = None) -> list[Json]:
        """All pods of its roles that are there."""
        roles = ",".join(self.spec) if role is None else role
        selector = f"prefleet.dev/fleet={self.fleet.name},prefleet.dev/role in ({roles})"
        path = f"/api/v1/namespaces/{self.fleet.namespace}/pods?labelSelector={quote(selector)}"
        return list(self.fleet.plane.read(path)["items"])

    def apply(self, role: str | None = None, **changed: Any) -> None:
        """The spec, with something of one role, or of all, changed for good."""
        for each in self.spec if role is None else (role,):
            self.spec[each] = self.spec[each] | changed
        self.fleet.apply(**self.spec, **({} if self._router is None else {"router": self._router}))

    def await_ready(self) -> None:
        """Until every pod that is wanted serves, and none is there besides."""

        def ready() -> bool:
            pods = self.pods()
            serving = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and is_ready(pod)]
            wanted = sum(int(role["replicas"]) for role in self.spec.values())
            return len(serving) == len(pods) == wanted

        eventually(ready, GONE_S, POLL_S)

    def await_reached(self) -> None:
        """Until its Services know of pods."""
        for name in self._asked:
            eventually(answers(f"{self._url(name)}/health"), 60)

    def replaced(self, before: set[str]) -> Callable[[], bool]:
        """Whether none of these pods is there any more."""
        return lambda: not before & {pod["metadata"]["name"] for pod in self.pods()}

    def clients(self) -> StreamingClients:
        """New ones, whose requests have names of their own."""
        first, *decode = [self._url(name) for name in self._asked]
        return StreamingClients(
            first,
            decode_url=decode[0] if decode else None,
            rate=RATE,
            output_tokens=OUTPUT_TOKENS,
            keep_alive=self._keep_alive,
            shortest_prompt=SHORTEST_PROMPT + len(self._sent),
        )

    def keep_busy(self, pod: Json, requests: int, output_tokens: int) -> StreamingClients:
        """Ask one pod itself for long answers; they are judged with the others, and have ended by then."""
        busy = StreamingClients(
            f"http://{pod['status']['podIP']}:8000",
            rate=BURST_RATE,
            output_tokens=output_tokens,
            limit=requests,
            shortest_prompt=BURST_PROMPT,
        )
        self._busy.append(busy.start())
        return busy

    def judge(self, tally: Tally) -> None:
        """AssertionError if a request was lost, or came to a pod of its role not once."""
        while self._busy:
            done = self._busy.pop().wait()
            assert not done.failed, f"{self.fleet.name}, asked itself: {done.failed}"
            self._sent += done.sent
        self._sent += tally.sent
        assert not tally.failed, f"{self.fleet.name}: {tally.failed}"
        assert sorted(tally.answered) == tally.sent
        for role in self.spec:
            self.ledger.require_once(role, self._sent)

    @property
    def _asked(self) -> tuple[str, ...]:
        return tuple(self.spec) if self._router is None else ("router",)

    def _url(self, name: str) -> str:
        service = self.fleet.get("service", f"{self.fleet.name}-{name}")
        assert service is not None
        return f"http://{service['spec']['clusterIP']}:8000"


@contextmanager
def ready(fleets: Sequence[LoadedFleet]) -> Iterator[None]:
    """The fleets, made and reached, with their pods' account kept for as long as the context lasts."""
    for each in fleets:
        each.apply()
    with ExitStack() as stack:
        for each in fleets:
            each.await_ready()
            stack.enter_context(each.ledger)
            each.await_reached()
        yield


@contextmanager
def under_load(fleets: Sequence[LoadedFleet]) -> Iterator[None]:
    """Clients before, during and after what is done to the fleets; then judged."""
    with ExitStack() as stack:
        clients = [stack.enter_context(each.clients()) for each in fleets]
        _answered(clients, ENOUGH)
        yield
        for each in fleets:
            each.await_ready()
        _answered(clients, max(len(each.tally.answered) for each in clients) + ENOUGH)
    for fleet, done in zip(fleets, clients, strict=True):
        fleet.judge(done.tally)


def _answered(clients: Sequence[StreamingClients], count: int) -> None:
    """Until each has so many answers, or has seen a failure, which is judged later."""
    for each in clients:
        eventually(lambda tally=each.tally: len(tally.answered) >= count or tally.failures, 60)  # type: ignore[misc]
