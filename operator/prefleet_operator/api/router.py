"""What a user writes of a router: the program in front of a fleet that clients talk to.

A router finds the fleet's pods in one of two ways. By the Services of the roles, which needs no rights at all; or,
where `serviceAccountName` is given, by watching pods through the Kubernetes API with the rights of that account.
The operator makes no account and no role: it could grant only what it holds itself, and would have to be allowed to
write roles in every namespace.

Which router fits which engine, and what it cannot do, are rules of the whole spec: see `ROUTER_RULES`."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from pydantic import Field

from prefleet_operator.api.base import DurationText, Model, Text, duration_between, matching, parse_duration
from prefleet_operator.api.engine_types import EngineType
from prefleet_operator.api.rule import Rule

if TYPE_CHECKING:
    from prefleet_operator.api.spec import PrefillPolicySpec


class RouterType(StrEnum):
    """Routers that can stand in front of a fleet."""

    NONE = "None"
    VLLM_ROUTER = "VLLMRouter"
    SGLANG_ROUTER = "SGLangRouter"


ENGINES_BEHIND: Final = {
    RouterType.VLLM_ROUTER: (EngineType.VLLM, EngineType.SIMULATOR),
    RouterType.SGLANG_ROUTER: (EngineType.SGLANG,),
}
"""The engine types that each router speaks to."""

ROUTER_ARGUMENTS: Final = (
    "--host",
    "--port",
    "--prometheus-host",
    "--prometheus-port",
    "--worker-urls",
    "--vllm-pd-disaggregation",
    "--pd-disaggregation",
    "--prefill",
    "--decode",
    "--kv-connector",
    "--service-discovery",
    "--service-discovery-port",
    "--service-discovery-namespace",
    "--selector",
    "--prefill-selector",
    "--decode-selector",
    "--worker-startup-timeout-secs",
    "--retry-max-retries",
    "--retry-initial-backoff-ms",
    "--retry-max-backoff-ms",
    "--retry-backoff-multiplier",
    "--retry-jitter-factor",
    "--disable-retries",
    "--shutdown-grace-period-secs",
)
"""Rendered by the operator from the rest of the spec."""

_REFUSED: Final = "^--(" + "|".join(name.removeprefix("--") for name in ROUTER_ARGUMENTS) + ")(=|$)"

NO_ROUTER_ARGUMENTS: Final = Rule(
    cel=f"self.args.all(arg, !arg.matches('{_REFUSED}'))",
    message=f"args: remove what the operator writes itself ({', '.join(ROUTER_ARGUMENTS)})",
    holds=lambda router: not any(re.search(_REFUSED, arg) for arg in router.args),
)

AccountName = Annotated[
    str,
    Field(max_length=253),
    matching("^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "write the name of a ServiceAccount of the policy's namespace"),
]


class RouterSpec(Model):
    """The router in front of the fleet: a Deployment, and a Service named after the policy with -router behind it."""

    type: RouterType = RouterType.NONE
    """None: clients talk to the Services of the roles. VLLMRouter: vllm-router, for engine types VLLM and Simulator.
    SGLangRouter: SGLang's own, for SGLang."""
    image: Text | None = None
    """The image that holds the router."""
    replicas: Annotated[int, Field(ge=1, le=100)] = 1
    """Pods of the router."""
    args: Annotated[list[Annotated[str, Field(max_length=2048)]], Field(max_length=50)] = []
    """Arguments of the router, beside those that the operator writes; such as --policy."""
    busy_retry_timeout: Annotated[DurationText, duration_between("0s", "10m", "5s")] = "0s"
    """How long the router tries again, every half second, when pods are busy or fail, before it passes their answer
    on; 0s: not at all. A request that failed half-way is then computed twice."""
    service_account_name: AccountName | None = None
    """A ServiceAccount that may get, list and watch pods of the namespace: the router then finds the pods itself
    and balances between them. If left out, it sends to the Services of the roles, and needs no rights."""
    pod_template: dict[str, Any] | None = None
    """Laid over the rendered pod as a strategic merge: {metadata: {...}, spec: {...}}. The router's container is
    named router."""

    RULES: ClassVar = (
        NO_ROUTER_ARGUMENTS,
        Rule(
            "self.type == 'None' || has(self.image)",
            "write image: an image that holds the router, with a release tag: the operator assumes none",
            lambda router: router.type is RouterType.NONE or router.image is not None,
        ),
        Rule(
            "self.type != 'None' || !(has(self.image) || has(self.serviceAccountName) || has(self.podTemplate)"
            " || self.args.size() > 0 || self.replicas != 1 || duration(self.busyRetryTimeout) > duration('0s'))",
            "write type, such as VLLMRouter: without it there is no router, and the other fields count for nothing",
            lambda router: router.type is not RouterType.NONE or not router.says_more,
        ),
    )

    @property
    def says_more(self) -> bool:
        """Whether anything but the type is set."""
        given = (self.image, self.service_account_name, self.pod_template)
        return any(value is not None for value in given) or bool(
            self.args or self.replicas != 1 or self.busy_retry_timeout_s
        )

    @property
    def busy_retry_timeout_s(self) -> float:
        """Seconds of waiting between tries; 0 for no retry."""
        return parse_duration(self.busy_retry_timeout)


def _fits(spec: PrefillPolicySpec) -> bool:
    return spec.router.type is RouterType.NONE or spec.engine.type in ENGINES_BEHIND[spec.router.type]


def _pair(router: RouterType, engines: tuple[EngineType, ...]) -> str:
    """The two as CEL."""
    types = ", ".join(repr(engine.value) for engine in engines)
    return f"(self.router.type == '{router.value}' && self.engine.type in [{types}])"


_PAIRS: Final = "; ".join(f"{router.value} for {' or '.join(engines)}" for router, engines in ENGINES_BEHIND.items())
_PAIRS_CEL: Final = " || ".join(_pair(router, engines) for router, engines in ENGINES_BEHIND.items())

ROUTER_RULES: Final = (
    Rule(
        f"self.router.type == 'None' || {_PAIRS_CEL}",
        f"router.type: write a router that speaks to the engine type ({_PAIRS}), or None",
        _fits,
    ),
    Rule(
        "self.router.type == 'None' || !has(self.attach)",
        "router: remove it: attached pods are behind the Services, and the router, of whoever makes them",
        lambda spec: spec.router.type is RouterType.NONE or spec.attach is None,
    ),
    Rule(
        "self.router.type != 'VLLMRouter' || !has(self.prefill)"
        " || duration(self.router.busyRetryTimeout) == duration('0s')",
        "router.busyRetryTimeout: leave it out: where prefill and decode are apart, VLLMRouter never tries again",
        lambda spec: (
            spec.router.type is not RouterType.VLLM_ROUTER
            or spec.prefill is None
            or spec.router.busy_retry_timeout_s == 0
        ),
    ),
    Rule(
        "self.router.type != 'SGLangRouter' || !has(self.prefill) || has(self.router.serviceAccountName)",
        "router.serviceAccountName: write an account that may get, list and watch pods: where prefill and decode are"
        " apart, SGLangRouter tells a decode pod which prefill pod to meet, so a Service will not do",
        lambda spec: (
            spec.router.type is not RouterType.SGLANG_ROUTER
            or spec.prefill is None
            or spec.router.service_account_name is not None
        ),
    ),
)
