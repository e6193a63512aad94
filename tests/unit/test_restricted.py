"""Pods for namespaces that enforce Pod Security's restricted profile, by the profile's own list of controls.

That the real API server agrees, tests/controlplane/test_pods.py shows.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rendering import SIMULATOR, VLLM, render, template

RESTRICTED: dict[str, Any] = VLLM | {"security": {"profile": "Restricted"}}
GROUPS: dict[str, Any] = RESTRICTED | {"prefill": {"nodesPerReplica": 2}}
ALLOWED_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected"}


def worker() -> Any:
    return render(GROUPS)["LeaderWorkerSet/chat-prefill-group"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]


PODS = (
    pytest.param(lambda: template(RESTRICTED, "prefill"), id="prefill"),
    pytest.param(lambda: template(RESTRICTED, "decode"), id="decode"),
    pytest.param(worker, id="the worker of a group"),
    pytest.param(lambda: template(SIMULATOR, "mixed"), id="a simulated pod, whatever the profile"),
)


@pytest.mark.parametrize("pod", PODS)
def test_every_control_of_the_profile_is_met(pod: Any) -> None:
    spec = pod()["spec"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        rights = container["securityContext"]
        assert rights["runAsNonRoot"] is True
        assert rights["runAsUser"] > 0
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
    for volume in spec["volumes"]:
        assert volume.keys() - {"name"} <= ALLOWED_VOLUMES


@pytest.mark.parametrize("pod", PODS[:3])
def test_a_user_without_a_name_gets_a_name_and_a_home_that_it_may_write(pod: Any) -> None:
    spec = pod()["spec"]
    (engine,) = spec["containers"]
    env = {variable["name"]: variable.get("value") for variable in engine["env"]}
    assert env["USER"] == "prefleet"
    (home,) = (mount for mount in engine["volumeMounts"] if mount["mountPath"] == env["HOME"])
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == home["name"])
    assert volume == {"name": "prefleet-home", "emptyDir": {}}
    assert "readOnly" not in home
    assert "readOnlyRootFilesystem" not in engine["securityContext"]


def test_without_the_profile_an_engine_runs_as_its_image_says() -> None:
    (engine,) = template(VLLM, "prefill")["spec"]["containers"]
    assert not {"runAsNonRoot", "runAsUser", "runAsGroup"} & engine["securityContext"].keys()
    assert "HOME" not in {variable["name"] for variable in engine["env"]}


def test_pod_template_changes_the_user_for_other_images() -> None:
    overlay = {"spec": {"containers": [{"name": "engine", "securityContext": {"runAsUser": 1001, "runAsGroup": None}}]}}
    (engine,) = template(RESTRICTED | {"decode": {"podTemplate": overlay}}, "decode")["spec"]["containers"]
    rights = engine["securityContext"]
    assert (rights["runAsUser"], rights["runAsNonRoot"], "runAsGroup" in rights) == (1001, True, False)


def test_a_roles_own_home_counts() -> None:
    env = [{"name": "HOME", "value": "/cache"}]
    (engine,) = template(RESTRICTED | {"decode": {"env": env}}, "decode")["spec"]["containers"]
    assert {"name": "HOME", "value": "/cache"} in engine["env"]
    assert [variable["name"] for variable in engine["env"]].count("HOME") == 1
