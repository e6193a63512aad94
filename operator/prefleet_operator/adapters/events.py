"""Events about policies, without floods.

An Event says what happened, once; if the same happens again (same policy, reason and words; of a warning, whatever
the numbers), the Event's series counts it, at most once a minute. Good news keeps its numbers apart, since the API
lets no Event change its words: "generation 1, four times" would be no news of generation 4. Names are
deterministic, so that a restarted operator, or another one, counts on in the same Event.

Whatever a fleet does, it gets at most `BURST` new Events of each type at once and one more each `REFILL_S` after that:
since an API server forgets an Event an hour after its last change, no more than `BURST + 12` of a type are there that
do not repeat, and news of a fleet that scales all day takes no Event from a warning. What exceeds that, and what cannot
be written, is logged and given up: conditions, not Events, are the record.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from prefleet_operator.adapters.kube import EVENTS, ConflictError, Kube, KubeError, NotFoundError, Object
from prefleet_operator.api import GROUP, KIND, VERSION
from prefleet_operator.core.events import Event
from prefleet_operator.core.status import wording

logger = logging.getLogger(__name__)

CONTROLLER = f"{GROUP}/operator"
REPEAT_INTERVAL_S = 60.0
MAX_NOTE_BYTES = 1024
"""Of an Event's note in UTF-8; an API server refuses an Event whose note is longer."""
MAX_NAME = 230
"""Of an object's name in that of an Event, which may have 253 characters."""
MAX_REMEMBERED = 10_000
BURST = 20
REFILL_S = 300.0

POLICY_KIND = (f"{GROUP}/{VERSION}", KIND)
CONFIG_MAP_KIND = ("v1", "ConfigMap")


@dataclass(frozen=True, slots=True)
class Subject:
    """What an Event is about."""

    namespace: str
    name: str
    uid: str
    api_version: str
    kind: str


@dataclass(slots=True)
class _Seen:
    count: int
    written_at_s: float


@dataclass(slots=True)
class _Budget:
    """New Events of one type that a policy may still have, as of `at_s`."""

    left: float
    at_s: float

    def take(self, now: float) -> bool:
        """Whether there is one left, which then is taken."""
        self.left = min(float(BURST), self.left + max(0.0, now - self.at_s) / REFILL_S)
        self.at_s = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


class Recorder:
    """Writes Events. `now` gives Unix seconds; `instance` names this process."""

    def __init__(self, kube: Kube, instance: str, now: Callable[[], float]) -> None:
        self._kube = kube
        self._instance = instance
        self._now = now
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._budgets: dict[tuple[str, bool], _Budget] = {}

    async def record(
        self, namespace: str, name: str, uid: str, event: Event, kind: tuple[str, str] = POLICY_KIND
    ) -> None:
        """Say that something happened to a policy, or to another object; `kind` is its apiVersion and kind."""
        subject = Subject(namespace, name, uid, *kind)
        event_id = event_name(name, uid, event)
        seen = self._seen.get((namespace, event_id))
        now = self._now()
        if seen is not None:
            seen.count += 1
            if now - seen.written_at_s < REPEAT_INTERVAL_S:
                return
        elif not self._budget(uid, event.warning, now).take(now):
            logger.info("%s/%s: no event, there were too many: %s", namespace, name, event.message)
            return
        try:
            await self._write(namespace, event_id, self._body(event_id, subject, event, now), seen, now)
        except KubeError as error:
            logger.warning("an event about %s/%s could not be written: %s", namespace, name, error)

    async def _write(self, namespace: str, name: str, body: Object, seen: _Seen | None, now: float) -> None:
        if seen is None:
            try:
                await self._kube.create(EVENTS, namespace, body)
                self._remember(namespace, name, 1, now)
                return
            except ConflictError:
                seen = self._remember(namespace, name, 2, now)
        series = {"count": seen.count, "lastObservedTime": _micro_time(now)}
        try:
            await self._kube.merge_patch(EVENTS, namespace, name, {"series": series})
            seen.written_at_s = now
        except NotFoundError:
            self._seen.pop((namespace, name), None)
            await self._kube.create(EVENTS, namespace, body)
            self._remember(namespace, name, 1, now)

    def _budget(self, uid: str, warning: bool, now: float) -> _Budget:
        if len(self._budgets) >= MAX_REMEMBERED:
            self._budgets.clear()
        return self._budgets.setdefault((uid, warning), _Budget(float(BURST), now))

    def _remember(self, namespace: str, name: str, count: int, now: float) -> _Seen:
        if len(self._seen) >= MAX_REMEMBERED:
            self._seen.clear()
        return self._seen.setdefault((namespace, name), _Seen(count, now))

    def _body(self, name: str, subject: Subject, event: Event, now: float) -> Object:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": subject.namespace},
            "eventTime": _micro_time(now),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": "Reconcile",
            "type": "Warning" if event.warning else "Normal",
            "reason": event.reason.value,
            "note": _note(event.message),
            "regarding": {
                "apiVersion": subject.api_version,
                "kind": subject.kind,
                "namespace": subject.namespace,
                "name": subject.name,
                "uid": subject.uid,
            },
        }


def event_name(about: str, uid: str, event: Event) -> str:
    """The same name for the same happening: of a warning, equal but for the numbers in its message."""
    words = wording(event.message) if event.warning else event.message
    digest = hashlib.sha256(f"{uid}/{event.reason}/{event.warning}/{words}".encode()).hexdigest()
    return f"{about[:MAX_NAME].rstrip('.-')}.{digest[:16]}"


def _note(message: str) -> str:
    """As much of the message as a note may hold, in whole characters."""
    text = message.encode()
    if len(text) <= MAX_NOTE_BYTES:
        return message
    return text[: MAX_NOTE_BYTES - 3].decode(errors="ignore") + "..."


def _micro_time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
