"""What the pods of a fleet say that they have done, those included that are gone: whether a request was done twice.

    with PodLedger(plane, namespace, "chat") as ledger: ...
    ledger.require_once(Role.PREFILL, tally.sent)

Every request has a prompt of its own length (`clients`). Each pod's exporter counts the requests that arrived and
sums their lengths; the ledger looks several times a second and keeps the last counts of each pod beyond its end. A
pod ends seconds after its last new request, so nothing is missed but by a machine that stands still. Count and sum
over all pods of a role agree with what was sent only if each request came to one pod once; /recent tells which one
did not, as far as it was seen. A container that starts anew counts from 0, which is added to what it had.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.support.plane.plane import ControlPlane, KubectlFailed
from tests.support.plane.processes import direct_opener

EXPORTER_PORT = 9400
LOOK_EVERY_S = 0.2
LIST_EVERY_S = 1.0

_COUNT, _SUM = "prefleet_request_prompt_tokens_count", "prefleet_request_prompt_tokens_sum"


@dataclass(slots=True)
class PodCounts:
    """One pod's account."""

    name: str
    role: str
    address: str
    requests: int = 0
    tokens: int = 0
    ended: Counter[int] = field(default_factory=Counter)
    _before: tuple[int, int] = (0, 0)
    _here: tuple[int, int] = (0, 0)
    _ended_before: Counter[int] = field(default_factory=Counter)

    def saw(self, requests: int, tokens: int, ended: Counter[int]) -> None:
        """What its exporter says now, since its container started."""
        if requests < self._here[0]:
            self._before, self._ended_before = (self.requests, self.tokens), self.ended
        self._here = (requests, tokens)
        self.requests, self.tokens = self._before[0] + requests, self._before[1] + tokens
        self.ended = self._ended_before + ended


class PodLedger:
    """See the module. A context; `counts` by pod uid."""

    def __init__(self, plane: ControlPlane, namespace: str, fleet: str) -> None:
        self.counts: dict[str, PodCounts] = {}
        self._plane = plane
        self._listing = ("-n", namespace, "get", "pods", "-l", f"prefleet.dev/fleet={fleet}", "-o", "json")
        self._alive: frozenset[str] = frozenset()
        self._looking = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._opener = direct_opener()

    def total(self, role: str) -> tuple[int, int]:
        """Requests that arrived at the pods of a role, and the sum of their lengths."""
        pods = [pod for pod in self.counts.values() if pod.role == role]
        return sum(pod.requests for pod in pods), sum(pod.tokens for pod in pods)

    def require_once(self, role: str, sent: Iterable[int]) -> None:
        """AssertionError unless each request came to one pod of the role, once."""
        self._look()
        names = list(sent)
        ended = sum((pod.ended for pod in self.counts.values() if pod.role == role), Counter[int]())
        twice = sorted(name for name, times in ended.items() if times > 1)
        assert not twice, f"{role} did these more than once: {twice}"
        wanted, found = (len(names), sum(names)), self.total(role)
        told = {pod.name: (pod.requests, pod.tokens) for pod in self.counts.values() if pod.role == role}
        assert found == wanted, f"{role}: {wanted} requests and tokens were sent, {found} came: {told}"

    def __enter__(self) -> Self:
        self._list()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        listed_s = time.monotonic()
        while not self._stop.wait(LOOK_EVERY_S):
            if time.monotonic() - listed_s >= LIST_EVERY_S:
                self._list()
                listed_s = time.monotonic()
            self._look()

    def _list(self) -> None:
        try:
            found = json.loads(self._plane.kubectl(*self._listing))["items"]
        except KubectlFailed:
            return  # the plane is busy: the next listing tells
        pods = [pod for pod in found if pod["status"].get("podIP")]
        for pod in pods:
            role = pod["metadata"]["labels"]["prefleet.dev/role"]
            made = PodCounts(pod["metadata"]["name"], role, pod["status"]["podIP"])
            self.counts.setdefault(pod["metadata"]["uid"], made)
        self._alive = frozenset(pod["metadata"]["uid"] for pod in pods)

    def _look(self) -> None:
        with self._looking:
            for uid in self._alive:
                self._ask(self.counts[uid])

    def _ask(self, pod: PodCounts) -> None:
        try:
            metrics, recent = self._get(pod, "/metrics"), self._get(pod, "/recent")
        except OSError:
            return  # not up yet, or gone: its last counts stay
        counts = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith((_COUNT, _SUM)))
        ended: list[dict[str, Any]] = json.loads(recent)["requests"]
        lengths = Counter(int(request["prompt_tokens"]) for request in ended)
        pod.saw(int(float(counts[_COUNT])), int(float(counts[_SUM])), lengths)

    def _get(self, pod: PodCounts, path: str) -> str:
        with self._opener.open(f"http://{pod.address}:{EXPORTER_PORT}{path}", timeout=2) as answer:
            return str(answer.read().decode())
