"""The pod template of one role: an engine container, the runtime beside it, the policy mounted into both's reach.

What a change of the template costs is a restart of the fleet, so nothing stands here that changes without need:
no scheduling value (those travel in the ConfigMap volume, which is never mounted by subPath, or it would not
follow), no generation, no version of the operator. Engines that are told at their start are the exception: their
policy is part of the template, and the generation stands beside it, where it says with what a pod was started. The
runtime image does stand here; what an upgrade of it, or of this module, does to pods that run is revision.py's to say.

Times. A pod that is told to stop still receives requests until its endpoint has left every proxy and router, so
preStop waits for that; then the engine ends its running requests, for which preStop waits too where the runtime says
how many there are, since an engine that is told to stop aborts what still comes; the grace period is the sum, and a
margin. A grace period of the user's own is what preStop goes by instead: all of it but the margin. A kubelet runs
preStop also before it restarts an engine whose probes fail: one that answers nobody ends no request, however long it is
given, so there the grace is short. The workers of a group are told to stop at the same moment as their leader and wait
for as long as it computes.

Rights. No access to the Kubernetes API. Engine images commonly run as root and write into their home, so
runAsNonRoot is forced on them only where the spec asks for it (restricted.py); everything else of the restricted
profile always is.
"""

from __future__ import annotations

from typing import Any, Final

from prefleet_operator.api import Role, RoleSpec
from prefleet_operator.engines import EXPORTER_PORT, HTTP_PORT, POLICY_FOLDER, RUNTIME_FOLDER, EngineContainer
from prefleet_operator.engines.base import env_field, env_value
from prefleet_operator.render.names import (
    GENERATION_ANNOTATION,
    policy_config_map_name,
    role_labels,
    worker_labels,
)
from prefleet_operator.render.placement import join_group, spread_replicas
from prefleet_operator.render.restricted import GROUP, USER

Object = dict[str, Any]

ENGINE_CONTAINER: Final = "engine"
RUNTIME_CONTAINER: Final = "prefleet-runtime"
POLICY_VOLUME: Final = "prefleet-policy"
RUNTIME_VOLUME: Final = "prefleet-runtime"

_DRAIN = "prefleet_runtime.drain"
_GRACE = "terminationGracePeriodSeconds"
_PROBES = {"startupProbe", "readinessProbe", "livenessProbe"}
_ENDPOINT_REMOVAL_S = 10
_GRACE_MARGIN_S = 10
_HUNG_GRACE_S = 30
_KUBERNETES_GRACE_S = 30
_RUNTIME_USER = 65532

_CONFINED: Final[Object] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_CONFINED_USER: Final[Object] = _CONFINED | {
    "readOnlyRootFilesystem": True,
    "runAsGroup": _RUNTIME_USER,
    "runAsNonRoot": True,
    "runAsUser": _RUNTIME_USER,
}
_CONFINED_ROOTLESS: Final[Object] = _CONFINED | {"runAsGroup": GROUP, "runAsNonRoot": True, "runAsUser": USER}


def render_pod_template(
    fleet: str, role: Role, spec: RoleSpec, engine: EngineContainer, runtime_image: str, started_with: int | None = None
) -> Object:
    """The pod template, before the user's overlay. `started_with`: the generation that the engine is told at start."""
    pod: Object = {
        "automountServiceAccountToken": False,
        # A Service named `vllm` would otherwise set VLLM_PORT to a URL.
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        _GRACE: _usual_grace_s(engine),
    }
    if engine.brings_runtime:
        pod["initContainers"] = [_runtime_container(runtime_image, engine)]
    pod["containers"] = [_engine_container(spec, engine)]
    pod["volumes"] = _volumes(fleet, engine)
    pod |= spread_replicas(fleet, role) if engine.leads else join_group(fleet, role)
    metadata: Object = {"labels": role_labels(fleet, role) if engine.leads else worker_labels(fleet, role)}
    if started_with is not None:
        metadata["annotations"] = {GENERATION_ANNOTATION: str(started_with)}
    return {"metadata": metadata, "spec": pod}


def _engine_container(spec: RoleSpec, engine: EngineContainer) -> Object:
    container: Object = {
        "name": ENGINE_CONTAINER,
        "image": engine.image,
        "command": list(engine.command),
        "args": list(engine.args),
        "env": _environment(spec, engine),
        "ports": [{"name": name, "containerPort": number} for name, number in engine.ports],
        "volumeMounts": _mounts(engine),
        "securityContext": _security_context(engine),
        "lifecycle": {"preStop": {"exec": {"command": _pre_stop(engine, _grace_s(spec, engine))}}},
        # What an engine says when it ends then stands in the pod's status, and from there in the policy's.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **(_probes(engine, _grace_s(spec, engine)) if engine.leads else {}),
    }
    if spec.accelerator is not None:
        amount = {spec.accelerator.resource: str(spec.accelerator.count)}
        container["resources"] = {"limits": amount, "requests": amount}
    return container


def _environment(spec: RoleSpec, engine: EngineContainer) -> list[Object]:
    """The operator's variables, then the user's, which may replace an engine's default such as HF_TOKEN."""
    own = [env_field("POD_NAME", "metadata.name"), env_field("POD_IP", "status.podIP")]
    if engine.brings_runtime:
        own.append(env_value("PYTHONPATH", RUNTIME_FOLDER))
    given = [env_value(variable.name, variable.value) for variable in spec.env]
    named = {variable["name"]: variable for variable in (*own, *engine.env, *given)}
    return list(named.values())


def _security_context(engine: EngineContainer) -> Object:
    if engine.own_user:
        return dict(_CONFINED_USER)
    return dict(_CONFINED_ROOTLESS if engine.rootless else _CONFINED)


def _usual_grace_s(engine: EngineContainer) -> int:
    return _ENDPOINT_REMOVAL_S + engine.drain_s + _GRACE_MARGIN_S


def _grace_s(spec: RoleSpec, engine: EngineContainer) -> int:
    """What the pod will have once the user's overlay is laid over it: null takes the operator's away, and Kubernetes
    then puts its own there. What is neither is refused later."""
    overlaid = (spec.pod_template or {}).get("spec")
    if not isinstance(overlaid, dict) or _GRACE not in overlaid:
        return _usual_grace_s(engine)
    asked = overlaid[_GRACE]
    return asked if type(asked) is int else _KUBERNETES_GRACE_S


def _pre_stop(engine: EngineContainer, grace_s: int) -> list[str]:
    limit_s = max(1, grace_s - _GRACE_MARGIN_S)
    if not engine.leads:
        return ["python3", "-c", _WAIT_FOR_LEADER.format(port=EXPORTER_PORT, limit_s=limit_s)]
    if not engine.tells_unfinished:
        return ["sleep", str(min(_ENDPOINT_REMOVAL_S, limit_s))]
    return [
        *("python3", "-m", _DRAIN),
        *("--http-port", str(HTTP_PORT), "--exporter-port", str(EXPORTER_PORT)),
        *("--settle-s", str(_ENDPOINT_REMOVAL_S), "--limit-s", str(limit_s)),
    ]


# The runtime's exporter lives in the process that schedules: it answers until the last request has ended.
_WAIT_FOR_LEADER: Final = """\
import os, socket, time
for _ in range({limit_s}):
    try:
        socket.create_connection((os.environ["LWS_LEADER_ADDRESS"], {port}), 1).close()
    except OSError:
        break
    time.sleep(1)
"""


def _probes(engine: EngineContainer, grace_s: int) -> Object:
    """Until it has started, only the startup probe counts. A busy server may answer late: that is no reason to
    take it out at once, and less to kill it."""
    ready = {"httpGet": {"path": engine.ready_path, "port": engine.health_port}}
    lives = {"httpGet": {"path": engine.live_path, "port": engine.health_port}}
    kills = {_GRACE: min(_HUNG_GRACE_S, grace_s)}
    failures = engine.startup_limit_s // engine.startup_period_s
    starts = {"periodSeconds": engine.startup_period_s, "timeoutSeconds": 5, "failureThreshold": failures}
    return {
        "startupProbe": ready | starts | kills,
        "readinessProbe": ready | {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": lives | {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6} | kills,
    }


def without_probes(template: Object) -> Object:
    """The template of a pod whose engine does not lead, once the user's overlay is laid over it: it serves nothing that
    a probe could ask, and an overlay that changes one of the leader's would bring it half of one."""
    containers = [
        {key: value for key, value in each.items() if key not in _PROBES} if each["name"] == ENGINE_CONTAINER else each
        for each in template["spec"]["containers"]
    ]
    return template | {"spec": template["spec"] | {"containers": containers}}


def _runtime_container(image: str, engine: EngineContainer) -> Object:
    """Copies the runtime, which is pure Python, to where the engine's interpreter looks for it, if it has all that the
    pod names of it."""
    named = (*engine.runtime_modules, *((_DRAIN,) if engine.tells_unfinished else ()))
    return {
        "name": RUNTIME_CONTAINER,
        "image": image,
        "command": ["python3", "-m", "prefleet_runtime.install", RUNTIME_FOLDER, "--needs", *named],
        "volumeMounts": [{"name": RUNTIME_VOLUME, "mountPath": RUNTIME_FOLDER}],
        "securityContext": dict(_CONFINED_USER),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _mounts(engine: EngineContainer) -> list[Object]:
    mounts: list[Object] = []
    if engine.leads and engine.reads_policy:
        mounts.append({"name": POLICY_VOLUME, "mountPath": POLICY_FOLDER, "readOnly": True})
    if engine.brings_runtime:
        mounts.append({"name": RUNTIME_VOLUME, "mountPath": RUNTIME_FOLDER, "readOnly": True})
    return [*mounts, *engine.mounts]


def _volumes(fleet: str, engine: EngineContainer) -> list[Object]:
    volumes: list[Object] = []
    if engine.leads and engine.reads_policy:
        volumes.append({"name": POLICY_VOLUME, "configMap": {"name": policy_config_map_name(fleet)}})
    if engine.brings_runtime:
        volumes.append({"name": RUNTIME_VOLUME, "emptyDir": {}})
    return [*volumes, *engine.volumes]
