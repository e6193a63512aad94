"""Engines that are told at their start, on the real API server: what a change replaces, and what is said of it.

The pods run a stand-in (tests/support/native_image.py) that tells how it was started.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import Fleet, Helm, OperatorProcess
from tests.support.native_image import MINDIE_HOME, make_native_image
from tests.support.node_agent.launch import start_agent
from tests.support.plane.plane import ControlPlane
from tests.support.plane.processes import direct_opener
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]

ROLLED_S = 90
GENERATION = "prefleet.dev/policy-generation"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_native_image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module", autouse=True)
def agent(plane: ControlPlane, image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    handle = start_agent(plane, tmp_path_factory.mktemp("agent"), name="natives", images={"*": image})
    yield
    handle.leave()


@pytest.fixture(scope="module", autouse=True)
def operator(plane: ControlPlane, helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with OperatorProcess(plane, tmp_path_factory.mktemp("operator")) as process:
        yield process.start()


@pytest.fixture
def fleet(plane: ControlPlane, namespace: str) -> Iterator[Fleet]:
    fleet = Fleet(plane, namespace)
    yield fleet
    fleet.delete()


@dataclass(frozen=True)
class Case:
    """One engine: the parts of its spec, a change that it is told, and one that does not reach it.

    `told` is what a pod was started with before and after the change, as text within all that it says of its start.
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


def pods(fleet: Fleet) -> list[Json]:
    found = fleet.plane.kubectl("-n", fleet.namespace, "get", "pods", "-o", "json")
    return [pod for pod in json.loads(found)["items"] if "deletionTimestamp" not in pod["metadata"]]


def started(pod: Json) -> str:
    """What the pod says of its start, with JSON within arguments unescaped."""
    with direct_opener().open(f"http://{pod['status']['podIP']}:8000/started", timeout=5) as answer:
        return str(answer.read().decode()).replace('\\"', '"')


def await_started(fleet: Fleet, generation: int) -> set[str]:
    """Wait until every pod was started with the generation and the policy is active; their uids."""

    def active() -> bool:
        # One reading: of two, the first could be of the generation before.
        status = fleet.status()
        outcomes = {each["type"]: each["status"] for each in status.get("conditions") or ()}
        effective = (status.get("effective") or {}).get("generation")
        return effective == generation and outcomes.get("PolicyActive") == "True"

    eventually(active, ROLLED_S)
    assert fleet.condition("PolicyActive")["reason"] == "StartedWithGeneration"
    eventually(lambda: len(pods(fleet)) == 2, ROLLED_S)
    assert {pod["metadata"]["annotations"][GENERATION] for pod in pods(fleet)} == {str(generation)}
    return {pod["metadata"]["uid"] for pod in pods(fleet)}


def apply(fleet: Fleet, case: Case, spec: Json, image: Path) -> None:
    model = {"servedName": "chat", "source": {"hostPath": str(image)}}
    mixed = {"replicas": 2, "env": [{"name": "MIES_INSTALL_PATH", "value": str(image / MINDIE_HOME)}]}
    fleet.apply(engine=case.engine, model=model, mixed=mixed, **spec)


@pytest.mark.parametrize("kind", CASES)
def test_a_change_that_the_engine_is_told_replaces_its_pods_and_no_other_does(
    fleet: Fleet, image: Path, kind: str
) -> None:
    case = CASES[kind]
    apply(fleet, case, case.spec, image)
    first = await_started(fleet, 1)
    assert all(case.told[0] in started(pod) for pod in pods(fleet))
    assert f"{kind} itself does not report what it runs" in fleet.condition("PolicyActive")["message"]

    apply(fleet, case, case.change, image)
    second = await_started(fleet, 2)
    assert not first & second
    assert all(case.told[1] in started(pod) for pod in pods(fleet))
    assert [move["reason"] for move in fleet.status()["history"]] == ["FleetCreated", "SpecChanged"]

    apply(fleet, case, case.unconcerned, image)
    policy = fleet.get("pp", "chat")
    assert policy is not None
    eventually(lambda: fleet.status()["observedGeneration"] == policy["metadata"]["generation"], 20)
    assert fleet.status()["effective"]["generation"] == 2
    assert {pod["metadata"]["uid"] for pod in pods(fleet)} == second


def test_a_deleted_config_map_comes_back_and_replaces_no_pod(fleet: Fleet, image: Path) -> None:
    case = CASES["SGLang"]
    apply(fleet, case, case.spec, image)
    before = await_started(fleet, 1)
    fleet.plane.kubectl("-n", fleet.namespace, "delete", "configmap", "chat-policy")
    eventually(lambda: fleet.get("configmap", "chat-policy"), 20)
    assert await_started(fleet, 1) == before


def test_a_warning_of_the_engine_reaches_condition_and_events(fleet: Fleet, image: Path) -> None:
    case = CASES["SGLang"]
    apply(fleet, case, case.spec, image)
    accepted = fleet.await_condition("Accepted", "True")
    assert "silently runs HRRN as FCFS" in accepted["message"]
    events = ["-n", fleet.namespace, "get", "events", "--field-selector", "reason=EngineWarning", "-o", "name"]
    eventually(lambda: len(fleet.plane.kubectl(*events).split()) == 1, 20)
