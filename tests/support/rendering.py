"""Fleets rendered for tests, and short ways to what they hold."""

from typing import Any

from prefleet_operator.api import parse_spec
from prefleet_operator.core.native_policy import FleetPolicy
from prefleet_operator.render import InstallationDefaults, PolicyObject, render_fleet
from prefleet_runtime.contract import PolicyName, RuntimePolicy

POLICY = PolicyObject(name="chat", namespace="serving", uid="1234")
DEFAULTS = InstallationDefaults(runtime_image="prefleet/runtime:1")
FCFS = RuntimePolicy(generation=1)
SHORT_FIRST = RuntimePolicy(generation=7, policy=PolicyName.SHORT_REQUEST_FIRST, threshold=512, long_max_wait_ms=4000)

VLLM: dict[str, Any] = {
    "model": {"servedName": "chat", "source": {"hub": {"repo": "owner/model"}}},
    "engine": {"type": "VLLM", "version": "0.32.0"},
    "prefill": {"replicas": 2, "accelerator": {"resource": "nvidia.com/gpu"}},
    "decode": {},
}
VLLM_MIXED: dict[str, Any] = {"model": VLLM["model"], "engine": VLLM["engine"], "mixed": {}}
SIMULATOR: dict[str, Any] = {"model": {"servedName": "chat"}, "engine": {"type": "Simulator"}, "mixed": {}}


def render(spec: dict[str, Any], policy: FleetPolicy = FCFS, defaults: InstallationDefaults = DEFAULTS) -> Any:
    """The fleet's objects by kind and name."""
    rendered = render_fleet(POLICY, parse_spec(spec), policy, defaults)
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in rendered}


def template(spec: dict[str, Any], role: str, policy: FleetPolicy = FCFS) -> Any:
    return render(spec, policy)[f"Deployment/chat-{role}"]["spec"]["template"]


def engine(spec: dict[str, Any], role: str, policy: FleetPolicy = FCFS) -> Any:
    return template(spec, role, policy)["spec"]["containers"][0]


def option(args: list[str], name: str) -> str:
    """The value that counts: the last one."""
    return args[len(args) - 1 - args[::-1].index(name) + 1]
