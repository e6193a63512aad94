"""`prefleet diff` without a cluster: what it tells of two files, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefleet_operator.cli.commands import app
from typer.testing import CliRunner

from tests.support.bad_specs import GOOD

run = CliRunner().invoke

Json = dict[str, Any]

OLD: Json = {
    "model": {"source": {"hub": {"repo": "example/model"}}, "servedName": "chat"},
    "engine": {"type": "VLLM", "version": "0.33.0"},
    "prefill": {"replicas": 2},
    "decode": {"replicas": 1},
    "scheduling": {"threshold": 900, "longMaxWait": "4s"},
}
MIXED: Json = {name: part for name, part in OLD.items() if name not in ("prefill", "decode")} | {
    "mixed": {"replicas": 3, "nodesPerReplica": 2}
}
NEW_ARGS: Json = OLD | {"prefill": {"replicas": 3, "args": ["--max-model-len", "4096"]}}


def write(folder: Path, name: str, *specs: Json) -> str:
    metadata = {"apiVersion": "prefleet.dev/v1alpha1", "kind": "PrefillPolicy"}
    documents = [
        metadata | {"metadata": {"name": f"chat{number or ''}"}, "spec": spec} for number, spec in enumerate(specs)
    ]
    (folder / name).write_text(yaml.safe_dump_all(documents))
    return str(folder / name)


def test_the_address_that_keda_asks_is_for_both_files(tmp_path: Path) -> None:
    keda = {"autoscaling": {"actuator": "KEDA", "prefill": {"maxReplicas": 4}}, "metricsSource": "cluster"}
    files = ["-f", write(tmp_path, "new", OLD | keda), "--against", write(tmp_path, "old", OLD)]
    refused = run(app, ["diff", *files])
    assert (refused.exit_code, "--metrics-url" in refused.stderr) == (2, True)
    told = run(app, ["diff", *files, "--metrics-url", "http://prometheus:9090"])
    assert [line.split()[:2] for line in told.stdout.splitlines()[2:]] == [["ScaledObject/chat-prefill", "create"]]


def figures(folder: Path, old: Json, new: Json) -> Json:
    """The one policy of the JSON."""
    result = run(app, ["diff", "-f", write(folder, "new", new), "--against", write(folder, "old", old), "--json"])
    (policy,) = json.loads(result.stdout)["policies"]
    assert result.exit_code == (1 if policy["objects"] else 0)
    return policy


@pytest.mark.parametrize(
    ("old", "new", "changed", "restarts", "removes"),
    [
        pytest.param(OLD, OLD, [], {}, {}, id="the same file changes nothing"),
        pytest.param(
            OLD,
            OLD | {"scheduling": {"threshold": 800, "longMaxWait": "4s"}},
            ["ConfigMap/chat-policy change"],
            {},
            {},
            id="another threshold changes a file and restarts nothing",
        ),
        pytest.param(
            OLD,
            OLD | {"prefill": {"replicas": 5}},
            ["Deployment/chat-prefill change"],
            {},
            {},
            id="more pods restart none",
        ),
        pytest.param(
            OLD,
            NEW_ARGS,
            ["Deployment/chat-prefill change"],
            {"prefill": 2},
            {},
            id="other arguments restart the pods that there are",
        ),
        pytest.param(
            MIXED,
            MIXED | {"mixed": {"replicas": 3, "nodesPerReplica": 4}},
            ["LeaderWorkerSet/chat-mixed-group change"],
            {"mixed": 6},
            {},
            id="of groups every pod is counted",
        ),
        pytest.param(
            OLD,
            MIXED,
            [
                "LeaderWorkerSet/chat-mixed-group create",
                "Service/chat-mixed create",
                "PodDisruptionBudget/chat-mixed create",
                "Deployment/chat-prefill delete",
                "Service/chat-prefill delete",
                "PodDisruptionBudget/chat-prefill delete",
                "Deployment/chat-decode delete",
                "Service/chat-decode delete",
            ],
            {},
            {"prefill": 2, "decode": 1},
            id="roles that go take their pods along",
        ),
    ],
)
def test_the_objects_that_change_and_the_pods_that_restart(
    tmp_path: Path, old: Json, new: Json, changed: list[str], restarts: Json, removes: Json
) -> None:
    policy = figures(tmp_path, old, new)
    assert [f"{each['kind']}/{each['name']} {each['change']}" for each in policy["objects"]] == changed
    assert (policy["restarts"], policy["removes"]) == (restarts, removes)


def test_the_table_has_a_line_for_each_place(tmp_path: Path) -> None:
    new = NEW_ARGS | {"scheduling": {"threshold": 800, "longMaxWait": "4s"}}
    result = run(app, ["diff", "-f", write(tmp_path, "new", new), "--against", write(tmp_path, "old", OLD)])
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "PrefillPolicy default/chat: 2 pods of prefill restart.",
        "OBJECT                    CHANGE   PODS        FIELDS",
        "ConfigMap/chat-policy     change               data.policy.json.threshold 900 -> 800",
        "Deployment/chat-prefill   change   2 restart   spec.replicas 2 -> 3",
        " " * 47 + "spec.template.spec.containers[engine].args + --max-model-len 4096",
    ]


def test_a_policy_that_is_new_creates_everything_and_one_that_is_left_out_is_not_spoken_of(tmp_path: Path) -> None:
    old, new = write(tmp_path, "old", OLD, OLD), write(tmp_path, "new", OLD)
    result = run(app, ["diff", "-f", old, "--against", new])
    assert result.exit_code == 1
    assert "PrefillPolicy default/chat: nothing changes." in result.stdout
    assert "PrefillPolicy default/chat1: no pod restarts." in result.stdout
    assert "Deployment/chat1-prefill" in result.stdout
    assert run(app, ["diff", "-f", new, "--against", old]).exit_code == 0


def test_a_file_without_a_namespace_is_of_the_one_that_is_given(tmp_path: Path) -> None:
    old, new = write(tmp_path, "old", OLD), write(tmp_path, "new", NEW_ARGS)
    result = run(app, ["diff", "-f", new, "--against", old, "-n", "serving"])
    assert result.stdout.startswith("PrefillPolicy serving/chat: 2 pods of prefill restart.")


@pytest.mark.parametrize(
    ("new", "old", "sentence"),
    [
        pytest.param("", yaml.safe_dump({}), "holds no document", id="nothing is asked"),
        pytest.param("kind: Pod", "", "not a PrefillPolicy", id="another kind"),
        pytest.param("a: [", "", "is not YAML", id="no YAML"),
        pytest.param(yaml.safe_dump_all([GOOD, {}]), "", "new, document 2: not a PrefillPolicy", id="one of two"),
        pytest.param(
            yaml.safe_dump_all([GOOD, GOOD]),
            "",
            "new, document 2: default/chat stands in the file already",
            id="one twice",
        ),
    ],
)
def test_bad_input_ends_with_two_and_a_sentence(tmp_path: Path, new: str, old: str, sentence: str) -> None:
    (tmp_path / "new").write_text(new)
    (tmp_path / "old").write_text(old)
    result = run(app, ["diff", "-f", str(tmp_path / "new"), "--against", str(tmp_path / "old")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr


def test_standard_input_is_read_once() -> None:
    result = run(app, ["diff", "-f", "-", "--against", "-"])
    assert (result.exit_code, "standard input can be read once" in result.stderr) == (2, True)


def test_without_a_cluster_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    result = run(app, ["diff", "-f", write(tmp_path, "new", OLD)])
    assert result.exit_code == 2
    absent = tmp_path / "absent"
    assert result.stderr == (
        f"error: no service account, and there is no kubeconfig {absent}: set KUBECONFIG; "
        "to compare two files without a cluster, write --against\n"
    )
