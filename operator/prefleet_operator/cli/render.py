"""`prefleet render`: what a PrefillPolicy becomes, without a cluster.

The policy is what a new fleet starts with: pinned values where the spec has them, first come first served where
they are still to be learned. What its engine has to say of it goes to standard error. Objects carry no owner reference,
as the policy has no uid yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from prefleet_operator.api import PolicyDocument, PrefillPolicySpec


def render(
    file: Annotated[Path, typer.Option("--file", "-f", help='A file with PrefillPolicies, or "-".')],
    runtime_image: Annotated[str, typer.Option(help="The runtime image of fleets that name none.")] = "",
    metrics_url: Annotated[str, typer.Option(help="The address of the metrics source, which KEDA asks.")] = "",
) -> None:
    """Print the manifests that a PrefillPolicy becomes, in the order in which they are applied."""
    from prefleet_operator.api import InvalidSpecError
    from prefleet_operator.cli.documents import fail, parse_policies, place, read_policies, to_yaml

    documents = read_policies(file)
    rendered = []
    for number, (_, policy) in enumerate(parse_policies(file, documents)):
        try:
            rendered += render_policy(policy, runtime_image or default_runtime_image(), metrics_url or None)
            for warning in warnings_of(policy.spec):
                typer.echo(f"warning: {warning}", err=True)
        except InvalidSpecError as error:
            fail(f"{place(file, documents, number)}: {error}")
    typer.echo(to_yaml(rendered), nl=False)


def render_policy(policy: PolicyDocument, runtime_image: str, metrics_url: str | None = None) -> list[dict[str, Any]]:
    """The objects of one PrefillPolicy. `metrics_url`: the address of the metrics source that it names.

    Raises:
        InvalidSpecError: it may not run.
    """
    from prefleet_operator.api import PrefillPolicyStatus
    from prefleet_operator.core.observed import FleetMetrics
    from prefleet_operator.core.plan import make_plan
    from prefleet_operator.core.situation import Situation
    from prefleet_operator.render import InstallationDefaults, PolicyObject, known_prometheus, render_fleet

    new = Situation(spec=policy.spec, generation=1, status=PrefillPolicyStatus(), live=None, metrics=FleetMetrics())
    identity = PolicyObject(name=policy.name, namespace=policy.namespace)
    plan = make_plan(new, now=0)
    defaults = InstallationDefaults(runtime_image, known_prometheus(policy.spec, metrics_url))
    return render_fleet(identity, plan.spec, plan.policy, defaults)


def warnings_of(spec: PrefillPolicySpec) -> tuple[str, ...]:
    """What the engine and the router have to say of one that may run."""
    from prefleet_operator.engines import engine_for
    from prefleet_operator.render import router_warnings

    return (*engine_for(spec).warnings(spec), *router_warnings(spec))


def default_runtime_image() -> str:
    """The image that the Helm chart of this version installs."""
    from importlib.metadata import version

    return f"prefleet/prefleet:{version('prefleet')}"
