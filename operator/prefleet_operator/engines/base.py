"""What an engine says of itself: how its container is started, and how long it takes to start and to end.

An engine turns a spec and a role into an `EngineContainer`; rendering lays the pod around it. Engines know
nothing of Kubernetes beyond the few plain objects (environment, volumes, mounts) that their container needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from prefleet_runtime.contract import DECODE_POLICY_FILE, DEFAULT_EXPORTER_PORT, POLICY_FILE

from prefleet_operator.api import PrefillPolicySpec, Role
from prefleet_operator.core.engine_metrics import EngineMetrics
from prefleet_operator.core.native_policy import FleetPolicy, NativePolicy

HTTP_PORT: Final = 8000
"""Where every engine serves the OpenAI API and /health."""

EXPORTER_PORT: Final = DEFAULT_EXPORTER_PORT
"""Where the runtime serves its own metrics; further data-parallel ranks follow upwards."""

POLICY_FOLDER: Final = "/etc/prefleet/policy"
RUNTIME_FOLDER: Final = "/opt/prefleet/runtime"

MODEL_START_S: Final = 2400
"""Large models take half an hour to load from slow storage."""

DRAIN_S: Final = 300
"""What the running requests of a large model may take to end."""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What one kind of pod is to be: the fleet's spec, the role, the runtime image in force, and the policy.

    An engine that is told by a file looks at no policy, so that none changes its pods.
    """

    spec: PrefillPolicySpec
    role: Role
    runtime_image: str
    policy: FleetPolicy

    @property
    def native(self) -> NativePolicy:
        """The policy, for an engine that is told at its start."""
        assert isinstance(self.policy, NativePolicy)
        return self.policy

    @property
    def args(self) -> list[str]:
        """The user's arguments."""
        return self.spec.roles()[self.role].args


@dataclass(frozen=True, slots=True)
class EngineContainer:
    """One engine container.

    `ports`: number by name. `volumes` and `mounts` are those that the engine itself needs. `brings_runtime`: the
    image lacks the scheduling runtime, so an init container has to bring it, with the `runtime_modules` that its
    arguments name. `startup_period_s` and
    `startup_limit_s`: how often to ask whether it has started, and when to give up. `drain_s`: how long its
    running requests may take to end once it was told to stop. `own_user`: the image is made to run as a user
    other than root, on a read-only file system. `rootless`: it has been made fit for a user other than root, on a
    file system that it may write. `reads_policy`: it reads the policy's file while it serves. `tells_unfinished`: the
    runtime in it says what it has not finished, and can be run as its preStop. `health_port`,
    `ready_path` and `live_path`: where it says that it serves, and that it lives. `leads`: the scheduler lives in it;
    one that does not lead only computes, and has no policy, ports or probes. `worker`: the container of the further
    pods of a group, where nodesPerReplica is above 1; it leads nothing.
    """

    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    ports: tuple[tuple[str, int], ...]
    startup_period_s: int = 5
    startup_limit_s: int = MODEL_START_S
    drain_s: int = DRAIN_S
    env: tuple[Object, ...] = ()
    volumes: tuple[Object, ...] = ()
    mounts: tuple[Object, ...] = ()
    brings_runtime: bool = False
    runtime_modules: tuple[str, ...] = ()
    own_user: bool = False
    rootless: bool = False
    reads_policy: bool = True
    tells_unfinished: bool = False
    health_port: str = "http"
    ready_path: str = "/health"
    live_path: str = "/health"
    leads: bool = True
    worker: EngineContainer | None = None


class Engine(Protocol):
    """How one type of engine is run."""

    @property
    def metrics(self) -> EngineMetrics | None:
        """How it names its own metrics; None where those of the runtime's exporter are read."""
        ...

    def warnings(self, spec: PrefillPolicySpec) -> tuple[str, ...]:
        """What a user should know of a spec that may run, a sentence each."""
        ...

    def container(self, pod: PodRequest) -> EngineContainer:
        """The engine's container for one role.

        Raises:
            InvalidSpecError: an argument of the user's cannot be combined with the operator's.
        """
        ...


def policy_path(role: Role) -> str:
    """The policy file that the pods of a role read."""
    return f"{POLICY_FOLDER}/{DECODE_POLICY_FILE if role is Role.DECODE else POLICY_FILE}"


def env_value(name: str, value: str) -> Object:
    """An environment variable with a plain value."""
    return {"name": name, "value": value}


def env_field(name: str, path: str) -> Object:
    """An environment variable that Kubernetes fills in from the pod itself."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
