"""`prefleet diff` against the real API server: it tells what then happens, and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import Fleet, OperatorProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.controlplane

Json = dict[str, Any]

SPEC: Json = {
    "engine": {"type": "VLLM", "version": "0.33.0"},
    "prefill": {"replicas": 2},
    "decode": {"replicas": 1},
    "scheduling": {"threshold": 900, "longMaxWait": "4s"},
}
NEW_THRESHOLD = SPEC | {"scheduling": {"threshold": 800, "longMaxWait": "4s"}}
NEW_ARGS = SPEC | {"prefill": {"replicas": 3, "args": ["--max-model-len", "4096"]}}
MIXED = {"engine": SPEC["engine"], "mixed": {"replicas": 1}}


PAGE = Path(__file__).parents[2] / "docs" / "prefillpolicy.md"
TABLE = PAGE.read_text().split("$ prefleet diff -f policy.yaml\n", 1)[1].split("```", 1)[0].splitlines()[1:]
"""What the page shows, its first line apart, which names the namespace."""


def diff(fleet: Fleet, spec: Json, *flags: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the command about a fleet of that spec."""
    return fleet.diff(json.dumps(fleet.document(**spec)), *flags)


def figures(fleet: Fleet, spec: Json) -> Json:
    code, output, errors = diff(fleet, spec, "--json")
    assert code in (0, 1), errors
    (policy,) = json.loads(output)["policies"]
    assert code == bool(policy["objects"])
    return policy


def objects(policy: Json) -> dict[str, str]:
    return {f"{each['kind']}/{each['name']}": each["change"] for each in policy["objects"]}


def versions(fleet: Fleet) -> dict[str, str]:
    """What rises when anybody writes an object's spec or content, whatever becomes of its status."""
    text = fleet.plane.kubectl("-n", fleet.namespace, "get", "deploy,svc,cm,pp", "-o", "json")
    return {
        f"{each['kind']}/{each['metadata']['name']}": str(
            each["metadata"].get("generation", each["metadata"]["resourceVersion"])
        )
        for each in json.loads(text)["items"]
    }


def await_pods(fleet: Fleet, count: int) -> None:
    def there() -> bool:
        names = fleet.plane.kubectl("-n", fleet.namespace, "get", "pods", "-o", "name").split()
        return len(names) == count and fleet.condition("Accepted").get("status") == "True"

    eventually(there, 30)


def test_it_tells_what_then_happens_and_writes_nothing(operator: OperatorProcess, fleet: Fleet) -> None:
    fresh = figures(fleet, SPEC)
    assert objects(fresh) == {
        "ConfigMap/chat-policy": "create",
        "Deployment/chat-prefill": "create",
        "Service/chat-prefill": "create",
        "PodDisruptionBudget/chat-prefill": "create",
        "Deployment/chat-decode": "create",
        "Service/chat-decode": "create",
    }
    fleet.apply(**SPEC)
    await_pods(fleet, 3)
    before = versions(fleet)
    assert diff(fleet, SPEC)[:2] == (0, f"PrefillPolicy {fleet.namespace}/chat: nothing changes.\n")
    threshold = figures(fleet, NEW_THRESHOLD)
    assert objects(threshold) == {"ConfigMap/chat-policy": "change"}
    assert threshold["restarts"] == {}
    (field,) = [each for each in threshold["objects"][0]["fields"] if each["path"].endswith("policy.json.threshold")]
    assert (field["old"], field["new"]) == (900, 800)
    restart = figures(fleet, NEW_ARGS)
    assert objects(restart) == {"Deployment/chat-prefill": "change"}
    assert restart["restarts"] == {"prefill": 2}
    assert diff(fleet, NEW_ARGS | {"scheduling": NEW_THRESHOLD["scheduling"]})[1].splitlines()[1:] == TABLE
    gone = figures(fleet, MIXED)
    assert gone["removes"] == {"prefill": 2, "decode": 1}
    assert {"Deployment/chat-prefill", "Service/chat-decode"} <= {
        name for name, change in objects(gone).items() if change == "delete"
    }
    assert versions(fleet) == before

    fleet.apply(**NEW_ARGS)

    def told() -> str:
        text = fleet.plane.kubectl("-n", fleet.namespace, "get", "events.events.k8s.io", "-o", "json")
        notes = [each["note"] for each in json.loads(text)["items"] if each.get("reason") == "RestartNeeded"]
        return notes[0] if notes else ""

    assert "2 pods of prefill for spec.containers[engine].args." in eventually(told, 20)
    eventually(lambda: diff(fleet, NEW_ARGS)[0] == 0, 20)


def test_drift_is_told_as_what_will_be_put_right(operator: OperatorProcess, fleet: Fleet) -> None:
    fleet.apply(**SPEC)
    await_pods(fleet, 3)
    assert operator.stop() == 0
    fleet.plane.kubectl("-n", fleet.namespace, "scale", "deployment/chat-prefill", "--replicas=1")
    policy = figures(fleet, SPEC)
    assert objects(policy) == {"Deployment/chat-prefill": "change"}
    assert policy["objects"][0]["fields"] == [{"path": "spec.replicas", "old": 1, "new": 2}]


def test_an_older_rendering_stays_and_is_told_and_the_next_change_moves_both_roles(
    operator: OperatorProcess, fleet: Fleet
) -> None:
    fleet.apply(**SPEC)
    await_pods(fleet, 3)
    code, output, _ = diff(fleet, SPEC, "--runtime-image", "example/runtime:next")
    assert code == 0
    assert "The pods of prefill and decode stay as release" in output
    code, output, _ = diff(fleet, NEW_ARGS, "--runtime-image", "example/runtime:next")
    assert code == 1
    assert "2 pods of prefill restart, 1 pod of decode restart." in output


def test_what_would_be_refused_is_said(operator: OperatorProcess, fleet: Fleet) -> None:
    wrong = SPEC | {"prefill": {"podTemplate": {"spec": {"priorityClassName": "Not A Name"}}}}
    code, output, errors = diff(fleet, {**SPEC, "decode": None})
    assert (code, output) == (2, "")
    assert "or mixed alone" in errors
    fleet.apply(**SPEC)
    await_pods(fleet, 3)
    code, output, errors = diff(fleet, wrong)
    assert (code, output) == (2, "")
    assert "priorityClassName" in errors
