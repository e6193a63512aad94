"""Engines that are told at their start, on the real API server: what a change replaces, and what is said of it.

The pods run the stand-ins of tests/support/native, which take each engine's own arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import Fleet
from tests.support.native.images import make_native_images
from tests.support.node_agent.launch import start_agent
from tests.support.plane.plane import ControlPlane
from tests.support.waiting import eventually

pytestmark = [pytest.mark.controlplane, pytest.mark.usefixtures("module_operator")]

Json = dict[str, Any]

ROLLED_S = 90
GENERATION = "prefleet.dev/policy-generation"


@pytest.fixture(scope="module", autouse=True)
def agent(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    images = make_native_images(tmp_path_factory.mktemp("images"))
    handle = start_agent(plane, tmp_path_factory.mktemp("agent"), name="natives", images=images)
    yield
    handle.leave()


@pytest.fixture
def fleet(plane: ControlPlane, namespace: str) -> Iterator[Fleet]:
    fleet = Fleet(plane, namespace)
    yield fleet
    fleet.delete()


@dataclass(frozen=True)
class Case:
    """One engine: the parts of its spec, a change that it is told, and one that does not reach it.

    `told` is what a pod is started with before and after the change, as text within its arguments.
    """

    engine: Json
    spec: Json
    change: Json
    unconcerned: Json
    told: tuple[str, str]


PINNED: Json = {"threshold": 900, "longMaxWait": "4s"}
CASES = {
    "VLLMAscend": Case(
        {"type": "VLLMAscend", "version": "0.25.1rc1"},
        {"scheduling": PINNED},
        {"scheduling": PINNED | {"threshold": 1200}},
        {"scheduling": PINNED | {"threshold": 1200, "agedShare": 0.5}},
        ('"threshold": 900', '"threshold": 1200'),
    ),
    "LightLLM": Case(
        {"type": "LightLLM", "image": "lightllm:1"},
        {"scheduling": {"policy": "HRRN"}},
        {"scheduling": {"policy": "PromoteShortest"}},
        {"scheduling": {"policy": "PromoteShortest", "threshold": 900}},
        ("hrrn", "promote_shortest"),
    ),
    "SGLang": Case(
        {"type": "SGLang", "version": "0.5.23"},
        {"scheduling": {"policy": "HRRN"}},
        {"scheduling": {"policy": "ShortestPrefillFirst"}},
        {"scheduling": {"policy": "ShortestPrefillFirst", "trustClientPriority": True}},
        ("hrrn", "shortest-prefill-first"),
    ),
    "MindIE": Case(
        {"type": "MindIE", "image": "mindie:1"},
        {"scheduling": {"policy": "FCFS", "stage": {"type": "TPT"}}},
        {"scheduling": {"policy": "FCFS", "stage": {"type": "TPT"}}, "slo": {"interTokenGap": "2s"}},
        {"scheduling": {"policy": "FCFS", "stage": {"type": "TPT"}}, "slo": {"interTokenGap": "2s", "shortTTFT": "1s"}},
        ('"prefillTimeMsPerReq": 991', '"prefillTimeMsPerReq": 997'),
    ),
}


def started(pod: Json) -> str:
    """What the pod's engine was started with."""
    return " ".join(pod["spec"]["containers"][0]["args"])


def await_started(fleet: Fleet, generation: int) -> set[str]:
    """Wait until every pod was started with the generation and the policy is active; their uids."""

    def reason() -> str | None:
        status = fleet.status()
        active = (each for each in status.get("conditions") or () if each["type"] == "PolicyActive")
        condition = next(active, {"status": "Unknown"})
        effective = (status.get("effective") or {}).get("generation")
        return condition["reason"] if effective == generation and condition["status"] == "True" else None

    assert eventually(reason, ROLLED_S) == "StartedWithGeneration"
    eventually(lambda: len(fleet.pods()) == 2, ROLLED_S)
    assert {pod["metadata"]["annotations"][GENERATION] for pod in fleet.pods()} == {str(generation)}
    return {pod["metadata"]["uid"] for pod in fleet.pods()}


def apply(fleet: Fleet, case: Case, spec: Json, folder: Path) -> None:
    model = {"servedName": "chat", "source": {"hostPath": str(folder)}}
    fleet.apply(engine=case.engine, model=model, mixed={"replicas": 2}, **spec)


@pytest.mark.parametrize("kind", CASES)
def test_a_change_that_the_engine_is_told_replaces_its_pods_and_no_other_does(
    fleet: Fleet, tmp_path: Path, kind: str
) -> None:
    case = CASES[kind]
    apply(fleet, case, case.spec, tmp_path)
    first = await_started(fleet, 1)
    assert all(case.told[0] in started(pod) for pod in fleet.pods())
    assert f"{kind} itself does not report what it runs" in fleet.condition("PolicyActive")["message"]

    apply(fleet, case, case.change, tmp_path)
    second = await_started(fleet, 2)
    assert not first & second
    assert all(case.told[1] in started(pod) for pod in fleet.pods())
    assert [move["reason"] for move in fleet.status()["history"]] == ["FleetCreated", "SpecChanged"]

    apply(fleet, case, case.unconcerned, tmp_path)
    policy = fleet.get("pp", "chat")
    assert policy is not None
    eventually(lambda: fleet.status()["observedGeneration"] == policy["metadata"]["generation"], 20)
    assert fleet.status()["effective"]["generation"] == 2
    assert {pod["metadata"]["uid"] for pod in fleet.pods()} == second


def test_a_deleted_config_map_comes_back_and_replaces_no_pod(fleet: Fleet, tmp_path: Path) -> None:
    case = CASES["SGLang"]
    apply(fleet, case, case.spec, tmp_path)
    before = await_started(fleet, 1)
    fleet.plane.kubectl("-n", fleet.namespace, "delete", "configmap", "chat-policy")
    eventually(lambda: fleet.get("configmap", "chat-policy"), 20)
    assert await_started(fleet, 1) == before


def test_a_warning_of_the_engine_reaches_condition_and_events(fleet: Fleet, tmp_path: Path) -> None:
    case = CASES["SGLang"]
    apply(fleet, case, case.spec, tmp_path)
    accepted = fleet.await_condition("Accepted", "True")
    assert "silently runs HRRN as FCFS" in accepted["message"]
    events = ["-n", fleet.namespace, "get", "events", "--field-selector", "reason=EngineWarning", "-o", "name"]
    eventually(lambda: len(fleet.plane.kubectl(*events).split()) == 1, 20)
