"""Which template pods have: an upgrade changes none, a change of the spec takes what the present release renders."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from prefleet_operator.api import Role, parse_spec
from prefleet_operator.core.native_policy import FleetPolicy, NativePolicy
from prefleet_operator.render import (
    REVISION_ANNOTATION,
    InstallationDefaults,
    Revision,
    Settled,
    made_of,
    render_fleet,
    settle_revisions,
)
from prefleet_operator.render.revision import MAX_REVISION, TEMPLATE_FIELDS
from prefleet_runtime.contract import RuntimePolicy

from tests.support.rendering import FCFS, POLICY, SHORT_FIRST, SIMULATOR, VLLM, VLLM_MIXED

Json = dict[str, Any]
Live = dict[tuple[str, str], Revision | None]

GROUPS: Json = VLLM_MIXED | {"mixed": {"nodesPerReplica": 2}}
ROUTED: Json = VLLM | {"router": {"type": "VLLMRouter", "image": "router:1"}}


def settle(
    spec: Json,
    live: Live | None = None,
    release: str = "1.0",
    image: str = "runtime:1",
    upgrade: str = "",
    policy: FleetPolicy = FCFS,
) -> tuple[list[Json], dict[str, Settled]]:
    parsed = parse_spec(spec)
    objects = render_fleet(POLICY, parsed, policy, InstallationDefaults(image))
    before = copy.deepcopy(objects)
    known = live or {}
    chosen, settled = settle_revisions(
        objects, parsed, policy, release, upgrade, lambda kind, name: known.get((kind, name))
    )
    assert objects == before, "what was rendered is left as it is"
    return chosen, {each.role: each for each in settled}


def applied(objects: list[Json]) -> Live:
    """What a server that took the objects says of them."""
    found: Live = {}
    for each in objects:
        annotation = each["metadata"].get("annotations", {}).get(REVISION_ANNOTATION)
        if annotation is not None:
            found[each["kind"], each["metadata"]["name"]] = Revision.from_json(annotation)
    return found


@pytest.mark.parametrize(
    "spec", [VLLM, VLLM_MIXED, SIMULATOR, GROUPS, ROUTED], ids=["p/d", "mixed", "sim", "lws", "rt"]
)
def test_an_upgrade_changes_no_workload_and_says_what_waits(spec: Json) -> None:
    first, _ = settle(spec)
    second, settled = settle(spec, applied(first), release="2.0", image="runtime:2")
    assert second == first
    assert not any(each.restart for each in settled.values())
    told = {role: [str(path) for path in each.outdated] for role, each in settled.items()}
    assert all(each.now.release == "1.0" for each in settled.values())
    for role, paths in told.items():
        waits = role != "router" and spec is not SIMULATOR
        assert any("[prefleet-runtime].image runtime:1 -> runtime:2" in path for path in paths) is waits


@pytest.mark.parametrize("spec", [VLLM, SIMULATOR, GROUPS, ROUTED], ids=["p/d", "sim", "lws", "rt"])
def test_whatever_a_later_release_renders_differently_waits(spec: Json) -> None:
    first, _ = settle(spec)
    parsed, live = parse_spec(spec), applied(first)
    later = render_fleet(POLICY, parsed, FCFS, InstallationDefaults("runtime:1"))
    workloads = [each for each in later if each["kind"] in TEMPLATE_FIELDS]
    for each in workloads:
        template = each["spec"][TEMPLATE_FIELDS[each["kind"]]]
        for pod in (template,) if "spec" in template else (template["leaderTemplate"], template["workerTemplate"]):
            pod["metadata"]["labels"]["new"] = "label"
            pod["spec"]["terminationGracePeriodSeconds"] += 1
            del pod["spec"]["enableServiceLinks"]
    chosen, settled = settle_revisions(later, parsed, FCFS, "2.0", "", lambda kind, name: live.get((kind, name)))
    assert chosen == first
    assert all(not each.restart and each.outdated for each in settled)
    assert len(settled) == len(workloads)


def change(spec: Json, role: str, **fields: Any) -> Json:
    return spec | {role: spec[role] | fields}


@pytest.mark.parametrize(
    ("after", "restarted"),
    [
        pytest.param(change(VLLM, "prefill", args=["--x"]), {"prefill", "decode"}, id="args of a role move both roles"),
        pytest.param(VLLM | {"runtime": {"image": "runtime:3"}}, {"prefill", "decode"}, id="an image that is given"),
        pytest.param(VLLM | {"engine": {"type": "VLLM", "version": "0.33.0"}}, {"prefill", "decode"}, id="the engine"),
        pytest.param(change(VLLM, "prefill", replicas=9), set(), id="replicas replace nothing"),
        pytest.param(
            change(VLLM, "prefill", rollout={"maxSurge": 1, "maxUnavailable": 0}), set(), id="how to roll is no roll"
        ),
        pytest.param(change(VLLM, "decode", nodesPerReplica=1), set(), id="a default written out is no change"),
        pytest.param(VLLM | {"slo": {"shortTTFT": "1s"}}, set(), id="a promise is kept without a restart"),
        pytest.param(
            VLLM | {"scheduling": {"threshold": 9, "longMaxWait": "4s"}}, set(), id="scheduling is told by file"
        ),
        pytest.param(VLLM | {"router": ROUTED["router"]}, set(), id="a router beside them"),
    ],
)
def test_after_an_upgrade_only_what_concerns_pods_brings_the_new_rendering(after: Json, restarted: set[str]) -> None:
    live = applied(settle(VLLM)[0])
    _, settled = settle(after, live, release="2.0", image="runtime:2")
    assert {role for role, each in settled.items() if each.restart} == restarted
    assert all(each.now.release == "2.0" for role, each in settled.items() if role in restarted)
    assert not any(each.outdated for role, each in settled.items() if role in restarted)


def test_without_an_upgrade_a_role_that_does_not_change_is_not_restarted() -> None:
    live = applied(settle(VLLM)[0])
    _, settled = settle(change(VLLM, "prefill", args=["--x"]), live)
    assert [role for role, each in settled.items() if each.restart] == ["prefill"]
    (difference,) = settled["prefill"].restart
    assert difference.path == "spec.containers[engine].args"


def test_another_value_of_the_annotation_brings_the_new_rendering_once() -> None:
    live = applied(settle(ROUTED)[0])
    upgraded, settled = settle(ROUTED, live, release="2.0", image="runtime:2", upgrade="2.0")
    assert {role for role, each in settled.items() if each.restart} == {"prefill", "decode"}
    again, settled = settle(ROUTED, applied(upgraded), release="2.0", image="runtime:2", upgrade="2.0")
    assert again == upgraded
    assert not any(each.restart or each.outdated for each in settled.values())


def test_a_downgrade_restarts_nothing_either() -> None:
    first, _ = settle(VLLM, release="2.0", image="runtime:2")
    back, settled = settle(VLLM, applied(first), release="1.0", image="runtime:1")
    assert back == first
    assert settled["prefill"].outdated


def test_replicas_and_the_rollout_follow_although_the_template_is_kept() -> None:
    live = applied(settle(VLLM)[0])
    spec = change(VLLM, "prefill", replicas=9, rollout={"maxSurge": 1, "maxUnavailable": 0})
    objects, _ = settle(spec, live, release="2.0", image="runtime:2")
    (deployment,) = [
        each for each in objects if each["metadata"]["name"] == "chat-prefill" and "replicas" in each["spec"]
    ]
    assert deployment["spec"]["replicas"] == 9
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert deployment["spec"]["template"]["spec"]["initContainers"][0]["image"] == "runtime:1"


def test_a_file_that_changes_replaces_no_pod_and_a_policy_told_at_start_does() -> None:
    _, settled = settle(VLLM, applied(settle(VLLM)[0]), policy=SHORT_FIRST)
    assert not any(each.restart for each in settled.values())
    spec = {
        "model": {"servedName": "chat", "source": {"hostPath": "/models/chat"}},
        "engine": {"type": "LightLLM", "image": "lightllm:1"},
        "mixed": {},
        "scheduling": {"policy": "HRRN"},
    }
    live = applied(settle(spec, policy=NativePolicy(generation=1, policy="HRRN"))[0])
    _, settled = settle(spec, live, release="2.0", policy=NativePolicy(generation=2, policy="HRRN"))
    assert settled["mixed"].restart


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "7", '{"source": "x"}', '{"source":"x","release":"1","template":[]}',
             '{"source":1,"release":"1","template":{}}'],
)  # fmt: skip
def test_what_is_no_revision_is_none(text: str) -> None:
    assert Revision.from_json(text) is None


@pytest.mark.parametrize("moved", [True, False])
def test_a_revision_survives_being_written(moved: bool) -> None:
    revision = Revision("abc", "1.0", {"spec": {"a": [1, None, "ü"]}}, moved)
    assert Revision.from_json(revision.to_json()) == revision


def test_of_a_role_that_a_change_does_not_concern_the_revision_says_so_until_one_does() -> None:
    live = applied(settle(VLLM)[0])
    steps = (
        (change(VLLM, "prefill", args=["--max-num-seqs", "8"]), False),
        (change(VLLM, "prefill", args=["--max-num-seqs", "8"]), False),
        (change(VLLM, "decode", args=["--max-num-seqs", "8"]), True),
    )
    for spec, moved in steps:
        objects, settled = settle(spec, live)
        assert settled["decode"].now.moved is moved
        live = applied(objects)


def test_another_generation_of_an_engine_that_is_told_at_its_start_does_not_concern_decode() -> None:
    spec = VLLM | {"engine": {"type": "SGLang", "version": "0.5.23"}, "scheduling": {"policy": "HRRN"}}
    live = applied(settle(spec, policy=NativePolicy(generation=1, policy="HRRN"))[0])
    for generation in (1, 2, 2):
        objects, settled = settle(spec, live, policy=NativePolicy(generation=generation, policy="HRRN"))
        assert settled["decode"].now.moved is (generation == 1)
        assert settled["prefill"].now.moved
        live = applied(objects)
    _, settled = settle(change(spec, "decode", args=["--x"]), live, policy=NativePolicy(generation=2, policy="HRRN"))
    assert settled["decode"].now.moved


def test_a_template_that_is_too_large_to_be_remembered_still_runs() -> None:
    big = {"metadata": {"annotations": {"note": "x" * MAX_REVISION}}}
    objects, settled = settle(change(VLLM, "prefill", podTemplate=big))
    assert settled["prefill"].now.template["metadata"]["annotations"]["note"]
    names = {name for _, name in applied(objects)}
    assert names == {"chat-decode"}


def test_a_runtime_policy_is_no_part_of_what_templates_are_made_of() -> None:
    assert settle(VLLM, policy=RuntimePolicy(generation=1))[0][1:] == settle(VLLM, policy=SHORT_FIRST)[0][1:]


@pytest.mark.parametrize(
    ("after", "same"),
    [
        pytest.param(change(VLLM, "prefill", args=["--x"]), False, id="args of the role"),
        pytest.param(VLLM | {"engine": {"type": "VLLM", "version": "0.33.0"}}, False, id="the engine"),
        pytest.param(change(VLLM, "prefill", replicas=9), True, id="how many there are"),
        pytest.param(change(VLLM, "decode", args=["--x"]), True, id="args of another role"),
        pytest.param(VLLM | {"scheduling": {"threshold": 9, "longMaxWait": "4s"}}, True, id="the policy in force"),
    ],
)
def test_what_a_pod_can_do_depends_on_what_it_is_made_of(after: Json, same: bool) -> None:
    digest = made_of(parse_spec(VLLM), Role.PREFILL, "")
    assert (made_of(parse_spec(after), Role.PREFILL, "") == digest) is same
    assert made_of(parse_spec(after), Role.PREFILL, "2026") != digest
