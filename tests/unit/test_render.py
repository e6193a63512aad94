"""What rendering promises: who owns it, what restarts a fleet and what does not, and times that add up."""

from typing import Any

import pytest
from prefleet_operator.api import InvalidSpecError
from prefleet_operator.render import InstallationDefaults
from prefleet_runtime.contract import DECODE_POLICY_FILE, POLICY_FILE, RuntimePolicy

from tests.support.rendering import FCFS, SHORT_FIRST, SIMULATOR, VLLM, VLLM_MIXED, engine, option, render, template


def test_the_config_map_comes_first_and_each_role_has_its_objects() -> None:
    assert list(render(VLLM)) == [
        "ConfigMap/chat-policy",
        "Deployment/chat-prefill",
        "Service/chat-prefill",
        "PodDisruptionBudget/chat-prefill",
        "Deployment/chat-decode",
        "Service/chat-decode",
    ]


def test_the_policy_owns_everything_without_blocking_its_own_deletion() -> None:
    for item in render(VLLM).values():
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("1234", True, False)
        assert item["metadata"]["namespace"] == "serving"


SCHEDULING_CHANGES = (
    {"scheduling": {"policy": "FCFS"}},
    {"scheduling": {"threshold": 512, "longMaxWait": "4s"}, "tuning": {"mode": "Off"}},
    {"scheduling": {"length": "Prompt", "agedShare": 1.0}},
    {"slo": {"shortTTFT": "1s"}, "tuning": {"band": {"low": 60}}},
    {"metricsSource": "cluster"},
)


@pytest.mark.parametrize("change", SCHEDULING_CHANGES, ids=str)
def test_a_change_of_scheduling_changes_the_config_map_alone(change: dict[str, Any]) -> None:
    before, after = render(VLLM, FCFS), render(VLLM | change, SHORT_FIRST)
    changed = [name for name in before if before[name] != after[name]]
    assert changed == ["ConfigMap/chat-policy"]


def test_a_change_of_replicas_restarts_nothing() -> None:
    before, after = render(VLLM), render(VLLM | {"decode": {"replicas": 3}})
    assert after["Deployment/chat-decode"]["spec"]["replicas"] == 3
    assert before["Deployment/chat-decode"]["spec"]["template"] == after["Deployment/chat-decode"]["spec"]["template"]


def test_a_pinned_runtime_image_makes_a_fleet_independent_of_the_installation() -> None:
    pinned = VLLM | {"runtime": {"image": "mine/runtime:3"}}
    upgraded = InstallationDefaults(runtime_image="prefleet/runtime:2")
    assert render(pinned) == render(pinned, defaults=upgraded)


def test_the_config_map_carries_both_files_under_one_generation() -> None:
    config_map = render(VLLM, SHORT_FIRST)["ConfigMap/chat-policy"]
    assert RuntimePolicy.from_json(config_map["data"][POLICY_FILE]) == SHORT_FIRST
    assert RuntimePolicy.from_json(config_map["data"][DECODE_POLICY_FILE]) == RuntimePolicy(generation=7)
    assert config_map["metadata"]["annotations"]["prefleet.dev/policy-generation"] == "7"


def test_the_policy_volume_is_mounted_whole() -> None:
    (mount,) = (mount for mount in engine(VLLM, "prefill")["volumeMounts"] if mount["name"] == "prefleet-policy")
    assert mount == {"name": "prefleet-policy", "mountPath": "/etc/prefleet/policy", "readOnly": True}


def test_pods_with_accelerators_roll_without_surge_and_others_without_loss() -> None:
    strategies = {
        name: item["spec"]["strategy"]["rollingUpdate"]
        for name, item in render(VLLM).items()
        if item["kind"] == "Deployment"
    }
    assert strategies == {
        "Deployment/chat-prefill": {"maxSurge": 0, "maxUnavailable": 1},
        "Deployment/chat-decode": {"maxSurge": 1, "maxUnavailable": 0},
    }


@pytest.mark.parametrize(
    "rollout",
    [{"maxSurge": 2, "maxUnavailable": 0}, {"maxSurge": "25%", "maxUnavailable": "50%"}],
    ids=["counts", "shares"],
)
@pytest.mark.parametrize("nodes", [1, 2], ids=["pods", "groups"])
def test_a_rollout_that_is_given_counts_whatever_the_pods_ask_for(rollout: dict[str, Any], nodes: int) -> None:
    role = {"rollout": rollout, "nodesPerReplica": nodes, "accelerator": {"resource": "nvidia.com/gpu"}}
    rendered = render(VLLM | {"prefill": role})
    if nodes == 1:
        assert rendered["Deployment/chat-prefill"]["spec"]["strategy"]["rollingUpdate"] == rollout
    else:
        strategy = rendered["LeaderWorkerSet/chat-prefill-group"]["spec"]["rolloutStrategy"]
        assert strategy["rollingUpdateConfiguration"] == {"partition": 0, **rollout}


def test_an_accelerator_is_asked_for_by_its_name() -> None:
    asked = {"nvidia.com/gpu": "1"}
    assert engine(VLLM, "prefill")["resources"] == {"limits": asked, "requests": asked}
    assert "resources" not in engine(VLLM, "decode")


def test_a_model_may_load_for_half_an_hour_before_anything_counts_as_stuck() -> None:
    deployment = render(VLLM)["Deployment/chat-prefill"]["spec"]
    probe = engine(VLLM, "prefill")["startupProbe"]
    startup_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert startup_s >= 30 * 60
    assert deployment["progressDeadlineSeconds"] > startup_s


@pytest.mark.parametrize("spec", [VLLM_MIXED, SIMULATOR], ids=["vllm", "simulator"])
def test_the_grace_period_holds_the_wait_for_endpoints_and_the_drain(spec: dict[str, Any]) -> None:
    pod = template(spec, "mixed")["spec"]
    container = pod["containers"][0]
    hook = container["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[:3] == ["python3", "-m", "prefleet_runtime.drain"]
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert (option(hook, "--http-port"), option(hook, "--exporter-port")) == (ports["http"], ports["prefleet"])
    settles, limit, args = int(option(hook, "--settle-s")), int(option(hook, "--limit-s")), container["args"]
    drained = int(option(args, "--shutdown-timeout")) if "--shutdown-timeout" in args else 0
    assert settles < limit < pod["terminationGracePeriodSeconds"]
    assert pod["terminationGracePeriodSeconds"] > settles + drained


def test_pods_reach_no_kubernetes_api_and_gain_no_rights() -> None:
    pod = template(VLLM, "prefill")["spec"]
    assert pod["automountServiceAccountToken"] is False
    for container in [*pod["containers"], *pod["initContainers"]]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_nothing_in_a_pod_names_the_operators_version() -> None:
    from importlib.metadata import version

    assert version("prefleet") not in str(template(SIMULATOR, "mixed"))


KV_ROLES = (("prefill", "kv_producer", "policy.json"), ("decode", "kv_consumer", "decode.json"))


@pytest.mark.parametrize(("role", "kv_role", "policy_file"), KV_ROLES)
def test_each_vllm_role_has_its_side_of_the_handover(role: str, kv_role: str, policy_file: str) -> None:
    container = engine(VLLM, role)
    assert f'"kv_role": "{kv_role}"' in option(container["args"], "--kv-transfer-config")
    assert f"/etc/prefleet/policy/{policy_file}" in option(container["args"], "--additional-config")
    side_channel = {variable["name"]: variable for variable in container["env"]}["VLLM_NIXL_SIDE_CHANNEL_HOST"]
    assert side_channel["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


def test_a_mixed_vllm_pod_hands_nothing_over() -> None:
    container = engine(VLLM_MIXED, "mixed")
    assert "--kv-transfer-config" not in container["args"]
    assert [port["name"] for port in container["ports"]] == ["http", "prefleet"]


def test_the_operators_arguments_come_after_the_users() -> None:
    args = engine(VLLM | {"prefill": {"args": ["--max-model-len", "4096"]}}, "prefill")["args"]
    assert args[:2] == ["--max-model-len", "4096"]
    assert option(args, "--scheduler-cls") == "prefleet_runtime.vllm.scheduler.make_scheduler"


MODELS = (
    ({"hub": {"repo": "owner/model", "revision": "v2"}}, "owner/model", None),
    ({"pvc": {"claimName": "models"}}, "/models", {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}),
    (
        {"pvc": {"claimName": "models", "path": "a/b/"}},
        "/models/a/b",
        {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
    ),
    ({"hostPath": "/data/llama"}, "/models", {"hostPath": {"path": "/data/llama", "type": "Directory"}}),
)


@pytest.mark.parametrize(("source", "model", "volume"), MODELS, ids=["hub", "volume", "folder of a volume", "node"])
def test_the_model_comes_from_its_source(source: dict[str, Any], model: str, volume: dict[str, Any] | None) -> None:
    spec = VLLM | {"model": {"servedName": "chat", "source": source}}
    assert option(engine(spec, "prefill")["args"], "--model") == model
    volumes = [each for each in template(spec, "prefill")["spec"]["volumes"] if each["name"] == "model"]
    assert volumes == ([] if volume is None else [{"name": "model", **volume}])


ADDITIONAL: tuple[tuple[list[str], str], ...] = (
    (["--additional-config", '{"a": 1}'], '"a": 1'),
    (['--additional_config={"b": 2}'], '"b": 2'),
    ([], '"prefleet"'),
)


@pytest.mark.parametrize(("args", "kept"), ADDITIONAL, ids=["two words", "one word", "none"])
def test_additional_config_is_merged(args: list[str], kept: str) -> None:
    rendered = engine(VLLM | {"prefill": {"args": args}}, "prefill")["args"]
    assert rendered.count("--additional-config") == 1
    merged = option(rendered, "--additional-config")
    assert kept in merged
    assert "/etc/prefleet/policy/policy.json" in merged


BAD_ADDITIONAL = (["--additional-config"], ["--additional-config", "[1]"], ["--additional-config={"])


@pytest.mark.parametrize("args", BAD_ADDITIONAL, ids=["no value", "a list", "torn"])
def test_additional_config_that_is_no_json_object_is_refused(args: list[str]) -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.prefill\.args: --additional-config is .*write one JSON object"):
        render(VLLM | {"prefill": {"args": args}})


def test_escaped_runtime_settings_in_additional_config_are_refused_too() -> None:
    with pytest.raises(InvalidSpecError, match='remove "prefleet"'):
        render(VLLM | {"prefill": {"args": ["--additional-config", '{"\\u0070refleet": {}}']}})


def test_the_simulator_runs_in_the_runtime_image_without_an_init_container() -> None:
    pod = template(SIMULATOR, "mixed")["spec"]
    assert "initContainers" not in pod
    assert pod["containers"][0]["image"] == "prefleet/runtime:1"
    assert option(pod["containers"][0]["args"], "--role") == "mixed"
