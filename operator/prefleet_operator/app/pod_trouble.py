"""Why a pod does not serve, as its own status says it: nothing is asked, and nothing is guessed.

A pod that loads its model is not in trouble; one that cannot be scheduled, or whose container cannot be pulled, made
or kept alive, is. What is said must not change while the trouble does not: a container that crashes is now ended,
now waiting, now running anew, and its count rises, so only how it last ended is told. A server that ends is in trouble
whatever its exit code: told to stop for its startup probe, it may well say 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from prefleet_operator.core.observed import PodTrouble
from prefleet_operator.core.reasons import Reason

MAX_WORDS = 240
"""Of what a node or a scheduler says: it is kept for every such pod, and goes into statuses."""

_WAITING = {
    "ErrImagePull": Reason.IMAGE_UNAVAILABLE,
    "ImagePullBackOff": Reason.IMAGE_UNAVAILABLE,
    "ErrImageNeverPull": Reason.IMAGE_UNAVAILABLE,
    "InvalidImageName": Reason.IMAGE_UNAVAILABLE,
    "ImageInspectError": Reason.IMAGE_UNAVAILABLE,
    "RegistryUnavailable": Reason.IMAGE_UNAVAILABLE,
    "CreateContainerConfigError": Reason.CONTAINER_NOT_STARTED,
    "CreateContainerError": Reason.CONTAINER_NOT_STARTED,
    "RunContainerError": Reason.CONTAINER_NOT_STARTED,
}
"""What a kubelet waits for, by its own word, where waiting alone will not help."""

_SAME_AS = {"ErrImagePull": "ImagePullBackOff"}
"""A kubelet alternates between the two while nothing changes."""

_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*": ErrImagePull: ')
"""What newer kubelets put before the cause while they back off."""

_OLD_RUNTIME = re.compile(
    r"No module named '?prefleet_runtime\b|prefleet-runtime: error: unrecognized arguments: --needs"
)
"""What an engine, or the container that brings it the runtime, says under a runtime older than the operator."""

_PREEMPTION = re.compile(r"\.? (no new claims to deallocate, )?preemption: .*", re.DOTALL)
"""What a scheduler says after the cause, of ends that it has tried in vain."""


def pod_trouble(pod: Mapping[str, Any]) -> PodTrouble | None:
    """Why a pod that is not ready will not become so by waiting, if its status says so."""
    status = pod.get("status") or {}
    if _condition(status, "Ready").get("status") == "True":
        return None
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        told = _words(_PREEMPTION.sub("", str(scheduled.get("message") or "")))
        return PodTrouble(Reason.UNSCHEDULABLE, f"no node takes it: {told}")
    return next(filter(None, _container_troubles(status)), None)


def _container_troubles(status: Mapping[str, Any]) -> Iterator[PodTrouble | None]:
    for container in status.get("initContainerStatuses") or ():
        yield _container_trouble(container, may_end=True)
    for container in status.get("containerStatuses") or ():
        yield _container_trouble(container, may_end=False)


def _container_trouble(container: Mapping[str, Any], may_end: bool) -> PodTrouble | None:
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    word = str(waiting.get("reason") or "")
    if word in _WAITING:
        told = _words(_BACK_OFF.sub("", str(waiting.get("message") or ""))) or f"image {container.get('image')}"
        shown = _SAME_AS.get(word, word)
        return PodTrouble(_WAITING[word], f"container {container['name']} waits with {shown}: {told}")
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    code = ended.get("exitCode") or 0
    if container.get("ready") or not ended or (may_end and code == 0):
        return None
    last = _last_line(ended.get("message"))
    how = f"exit code {code}" + (f", {why}" if (why := ended.get("reason")) not in (None, "Error") else "")
    said = f': "{last}"' if last else ": see kubectl logs --previous"
    old = _OLD_RUNTIME.search(str(ended.get("message") or ""))
    fix = "; its runtime image is older than the operator: set spec.runtime.image or Helm's runtimeImage"
    return PodTrouble(Reason.ENGINE_CRASHING, f"container {container['name']} ends ({how}){said}{fix if old else ''}")


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((each for each in status.get("conditions") or () if each["type"] == kind), {})
    return found


def _words(text: object) -> str:
    """A sentence of somebody else's, on one line and bounded, without its full stop."""
    words = " ".join(str(text or "").split())
    return (words if len(words) <= MAX_WORDS else f"{words[: MAX_WORDS - 3]}...").removesuffix(".")


def _last_line(text: object) -> str:
    """The last line of a log's tail: what a program that ends has to say stands there."""
    lines = [line for line in str(text or "").splitlines() if line.strip()]
    return _words(lines[-1]) if lines else ""
