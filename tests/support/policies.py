"""Specs of PrefillPolicies for tests, as small as the API server admits them."""

from typing import Any

from prefleet_operator.api import PrefillPolicySpec, parse_spec


def make_spec(
    scheduling: dict[str, Any] | None = None, tuning: dict[str, Any] | None = None, slo: dict[str, Any] | None = None
) -> PrefillPolicySpec:
    """A fleet of simulated pods with these parts of the spec; the defaults otherwise."""
    return parse_spec(
        {
            "model": {"source": {"hub": {"repo": "example/model"}}, "servedName": "model"},
            "engine": {"type": "Simulator"},
            "prefill": {"replicas": 2},
            "decode": {"replicas": 1},
            "scheduling": scheduling or {},
            "tuning": tuning or {},
            "slo": slo or {},
        }
    )


def make_attached_spec(attach: dict[str, Any] | None = None, **spec: Any) -> PrefillPolicySpec:
    """A fleet of simulated pods that somebody else makes: mixed ones with the label app=chat, unless said otherwise."""
    mixed = {"mixed": {"podSelector": {"matchLabels": {"app": "chat"}}}}
    base = {"model": {"servedName": "model"}, "engine": {"type": "Simulator"}, "attach": attach or mixed}
    return parse_spec(base | spec)
