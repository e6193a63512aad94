"""What each router is told: the command line that makes it serve one fleet. Tried with vllm-router 0.1.17 and
sglang-router 0.3.2, which share an ancestor and most flags.

How it finds pods.
- By the Services of the roles: one address for each role, behind which Kubernetes chooses the pod, once for every
  connection. The router must not judge such an address by what one pod did: its circuit breaker is off, and failed
  health checks count for nothing, or one bad pod would take the whole role away.
- By watching pods (`serviceAccountName`): one address for each pod. The router's own balancing, health checks and
  circuit breaker work as they are meant to; a check every five seconds in place of every minute, so that a pod that
  died without a word is left out within fifteen.

Busy retry. Both count tries: N "retries" are N tries, so 1 means none. A positive timeout becomes a constant pause
between tries, and as many tries as fit into it; the time that a try itself takes comes on top, and the pauses vary by
a tenth, so that clients refused together do not come back together. Tried again are 408, 429 and all 5xx, broken
connections too. vllm-router does so only where one pod does prefill and decode.

The user's arguments stand between what is a default and what is the operator's: the last one counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from prefleet_operator.api import PrefillPolicySpec, Role, RouterType
from prefleet_operator.engines import HTTP_PORT
from prefleet_operator.render.names import role_object_name, selector_labels

METRICS_PORT: Final = 29000
STARTUP_LIMIT_S: Final = 3600
"""How long it waits for the first pods: engines load their models for up to 40 minutes, images come on top."""
DRAIN_S: Final = 300
"""How long running answers may take to end once it was told to stop: as long as an engine gives them."""

RETRY_PAUSE_MS: Final = 500
_JITTER: Final = 0.1
_NEVER: Final = str(1_000_000)


@dataclass(frozen=True, slots=True)
class RouterCommand:
    """The command of a router's container."""

    command: tuple[str, ...]
    args: tuple[str, ...]


def router_command(fleet: str, namespace: str, spec: PrefillPolicySpec) -> RouterCommand:
    """How the router of one fleet is started. The spec has one."""
    native = spec.router.type is RouterType.SGLANG_ROUTER
    command = ("python3", "-m", "sglang_router.launch_router") if native else ("vllm-router",)
    own = _native_arguments(spec) if native else _vllm_arguments(spec)
    return RouterCommand(
        command=command,
        args=(
            *_defaults(spec),
            *spec.router.args,
            *("--host", "0.0.0.0", "--port", str(HTTP_PORT)),
            *("--prometheus-host", "0.0.0.0", "--prometheus-port", str(METRICS_PORT)),
            *("--worker-startup-timeout-secs", str(STARTUP_LIMIT_S)),
            *retry_arguments(spec.router.busy_retry_timeout_s),
            *own,
            *(_discovery(fleet, namespace, spec) if _discovers(spec) else _services(fleet, namespace, spec)),
        ),
    )


def router_warnings(spec: PrefillPolicySpec) -> tuple[str, ...]:
    """What a user of several pods, now or by autoscaling, should know of a router that reaches them by Services."""
    most = {role: part.replicas for role, part in spec.roles().items()}
    most |= {role: bounds.max_replicas for role, bounds in spec.sized_roles().items()}
    several = any(count > 1 for count in most.values())
    if spec.router.type is RouterType.NONE or _discovers(spec) or not several:
        return ()
    return (
        "The router reaches pods by the Services of the roles, which choose a pod once for each connection: pods are "
        "not loaded evenly, and one that joins gets no requests until connections are made anew; write "
        "router.serviceAccountName for it to balance between the pods.",
    )


def retry_arguments(timeout_s: float) -> tuple[str, ...]:
    """No second try for 0, else as many as pauses fit into the timeout, at least one."""
    if timeout_s <= 0:
        return ("--disable-retries",)
    timeout_ms = timeout_s * 1000
    pause_ms = max(1, min(RETRY_PAUSE_MS, int(timeout_ms / (1 + _JITTER))))
    pauses = max(1, int(timeout_ms / (pause_ms * (1 + _JITTER))))
    return (
        *("--retry-max-retries", str(pauses + 1)),
        *("--retry-initial-backoff-ms", str(pause_ms)),
        *("--retry-max-backoff-ms", str(pause_ms)),
        *("--retry-backoff-multiplier", "1.0"),
        *("--retry-jitter-factor", str(_JITTER)),
    )


def _discovers(spec: PrefillPolicySpec) -> bool:
    return spec.router.service_account_name is not None


def _defaults(spec: PrefillPolicySpec) -> tuple[str, ...]:
    """What a user may set otherwise. With one address there is nothing to balance, and no cache worth a memory."""
    common = ("--worker-startup-check-interval", "5")
    if _discovers(spec):
        return (*common, "--health-check-interval-secs", "5")
    return (*common, "--policy", "round_robin", "--disable-circuit-breaker", "--health-failure-threshold", _NEVER)


def _vllm_arguments(spec: PrefillPolicySpec) -> tuple[str, ...]:
    return ("--vllm-pd-disaggregation", "--kv-connector", "nixl") if spec.prefill else ()


def _native_arguments(spec: PrefillPolicySpec) -> tuple[str, ...]:
    drain = ("--shutdown-grace-period-secs", str(DRAIN_S))
    return (*drain, "--pd-disaggregation") if spec.prefill else drain


def _services(fleet: str, namespace: str, spec: PrefillPolicySpec) -> tuple[str, ...]:
    flags = {Role.PREFILL: "--prefill", Role.DECODE: "--decode", Role.MIXED: "--worker-urls"}
    urls = {role: f"http://{role_object_name(fleet, role)}.{namespace}.svc:{HTTP_PORT}" for role in spec.roles()}
    return tuple(part for role, url in urls.items() for part in (flags[role], url))


def _discovery(fleet: str, namespace: str, spec: PrefillPolicySpec) -> tuple[str, ...]:
    flags = {Role.PREFILL: "--prefill-selector", Role.DECODE: "--decode-selector", Role.MIXED: "--selector"}
    where = ("--service-discovery-namespace", namespace, "--service-discovery-port", str(HTTP_PORT))
    selectors = (
        part
        for role in spec.roles()
        for part in (flags[role], *(f"{key}={value}" for key, value in selector_labels(fleet, role).items()))
    )
    return ("--service-discovery", *where, *selectors)
