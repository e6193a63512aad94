"""Container and pod status as a kubelet reports it. Pure: facts and the time in, JSON of the API out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Json = dict[str, Any]

_OURS = ("Initialized", "ContainersReady", "Ready")


def timestamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def running(started_at: str) -> Json:
    return {"running": {"startedAt": started_at}}


def terminated(exit_code: int, started_at: str, finished_at: str, reason: str = "", message: str = "") -> Json:
    facts: Json = {
        "exitCode": exit_code,
        "reason": reason or ("Error" if exit_code else "Completed"),
        "startedAt": started_at,
        "finishedAt": finished_at,
    }
    if 128 < exit_code < 160:
        facts["signal"] = exit_code - 128
    if message:
        facts["message"] = message
    return {"terminated": facts}


def restarts(policy: str, exit_code: int) -> bool:
    """Whether a container that ended with this code is started again."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


@dataclass(frozen=True)
class PodFacts:
    """What the agent knows of a pod; the statuses are those of the API."""

    init: Sequence[Json]
    main: Sequence[Json]
    restart_policy: str
    address: str
    node_address: str
    started_at: str
    initialized: bool = False
    init_failed: bool = False
    ending: bool = False
    """Nothing is started any more."""


def phase(facts: PodFacts) -> str:
    codes = [_exit_code(status) for status in facts.main]
    if facts.init_failed:
        return "Failed"
    if all(code is not None and _over(facts, code) for code in codes):
        return "Failed" if any(codes) else "Succeeded"
    if facts.ending and all("running" not in status["state"] for status in (*facts.init, *facts.main)):
        return "Failed"
    if not facts.initialized or any(_never_ran(status) for status in facts.main):
        return "Pending"
    return "Running"


def _exit_code(status: Json) -> int | None:
    ended = status["state"].get("terminated")
    return int(ended["exitCode"]) if ended else None


def _over(facts: PodFacts, code: int) -> bool:
    return facts.ending or not restarts(facts.restart_policy, code)


def _never_ran(status: Json) -> bool:
    return "waiting" in status["state"] and not status["lastState"]


def pod_status(facts: PodFacts, present: Json, now: datetime) -> Json:
    """The parts of a pod's status that the node owns; conditions of others stay as they are."""
    current = phase(facts)
    done = current in ("Succeeded", "Failed")
    ready = not done and facts.initialized and all(status["ready"] for status in facts.main)
    unready = ("PodCompleted", "") if done else ("ContainersNotReady", _unready(facts.main))
    verdicts = {
        "Initialized": (facts.initialized, "ContainersNotInitialized", _unready(facts.init)),
        "ContainersReady": (ready, *unready),
        "Ready": (ready, *unready),
    }
    foreign = [item for item in present.get("conditions", []) if item["type"] not in _OURS]
    before = {item["type"]: item for item in present.get("conditions", [])}
    return {
        "phase": current,
        "conditions": foreign + [_condition(kind, *verdicts[kind], before.get(kind, {}), now) for kind in _OURS],
        "initContainerStatuses": list(facts.init),
        "containerStatuses": list(facts.main),
        "hostIP": facts.node_address,
        "hostIPs": [{"ip": facts.node_address}],
        "podIP": facts.address,
        "podIPs": [{"ip": facts.address}],
        "startTime": facts.started_at,
    }


def _unready(statuses: Sequence[Json]) -> str:
    names = [status["name"] for status in statuses if not status["ready"]]
    return f"containers with unready status: [{' '.join(names)}]"


def _condition(kind: str, holds: bool, reason: str, message: str, before: Mapping[str, str], now: datetime) -> Json:
    status = "True" if holds else "False"
    unchanged = before.get("status") == status
    condition: Json = {
        "type": kind,
        "status": status,
        "lastProbeTime": None,
        "lastTransitionTime": before["lastTransitionTime"] if unchanged else timestamp(now),
    }
    if not holds:
        condition |= {"reason": reason, **({"message": message} if message else {})}
    return condition
