"""What applying a PrefillPolicy would do to the fleet that runs: asked of the API server, and nothing is written.

    1. read the policy, the fleet's objects and its pods
    2. decide as the operator would, without any measurement: tuned values stay as they are
    3. let the API server say by a dry run what each object would be, and compare that with what it is; how far a
       rollout may go at this moment is left out of both

Asks for the rights to read these objects and to patch them. The decision is that of this release of Prefleet: run the
one that is installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from prefleet_operator.adapters.kube import (
    INSTALL_HINTS,
    PODS,
    POLICIES,
    RESOURCES_BY_KIND,
    Kube,
    NotFoundError,
    Object,
    RefusedError,
    Resource,
)
from prefleet_operator.adapters.metrics_source import FleetReading
from prefleet_operator.api import InvalidSpecError, PolicyDocument, PrefillPolicySpec, Role, parse_spec
from prefleet_operator.app.decision import Installation, decide
from prefleet_operator.app.gather import Cluster
from prefleet_operator.app.policies import PolicyRecord
from prefleet_operator.app.records import AutoscalerRecord, ChildRecord, PodRecord
from prefleet_operator.render import (
    FLEET_LABEL,
    ROLE_LABEL,
    UPGRADE_ANNOTATION,
    InstallationDefaults,
    fleet_labels,
    known_prometheus,
)
from prefleet_operator.render.changes import ObjectChange, ObjectKey, compare_objects, key_of
from prefleet_operator.render.gates import without_gate
from prefleet_operator.render.pod import ENGINE_CONTAINER, RUNTIME_CONTAINER
from prefleet_operator.render.revision import TEMPLATE_FIELDS


@dataclass(frozen=True, slots=True)
class Preview:
    """What would become of one fleet. `waits`: what Accepted would say of pods that wait for an upgrade."""

    namespace: str
    name: str
    changes: tuple[ObjectChange, ...]
    waits: str = ""


@dataclass(frozen=True, slots=True)
class Installed:
    """What is known of the installation. `runtime_image`: if None, the one that the fleet runs now counts, and
    `default_image` for a fleet that runs none; `metrics_url`: the address of the policy's metrics source; if None, the
    one that KEDA asks for the fleet now."""

    default_image: str
    runtime_image: str | None = None
    metrics_url: str | None = None


async def preview(
    kube: Kube, document: PolicyDocument, annotations: Object, installed: Installed, now: float
) -> Preview:
    """What applying the document would do. `annotations`: those of the document.

    Raises:
        InvalidSpecError: the spec must not run.
        KubeError: the API server cannot be asked, or would refuse an object.
    """
    policy, before = await _policy(kube, document, annotations)
    live, cluster = await _fleet(kube, policy)
    source = document.spec.metrics_source
    image = installed.runtime_image or _runtime_image(live) or installed.default_image
    url = installed.metrics_url or _metrics_url(live)
    defaults = InstallationDefaults(image, known_prometheus(document.spec, url))
    installation = Installation(defaults, (source,), version("prefleet"))
    decision = decide(policy, document.spec, cluster, FleetReading(), installation, now)
    _refuse_unserved(decision.objects, cluster)
    dry_run = {key_of(each): await _dry_run(kube, policy, each, live, decision.sizes) for each in decision.objects}
    after = {key: without_gate(each, document.spec) for key, each in dry_run.items()}
    steady = {key: without_gate(each, before) for key, each in live.items()}
    kept = {key: each for key, each in steady.items() if _stays(key, each, after)}
    pods = {key: _count(each, cluster, policy) for key, each in live.items()}
    return Preview(policy.namespace, policy.name, compare_objects(steady, kept | after, pods), decision.waits)


async def _policy(kube: Kube, document: PolicyDocument, annotations: Object) -> tuple[PolicyRecord, PrefillPolicySpec]:
    """The policy as it would be once the document is applied, and the spec until then: that of the document where there
    is none, or none that may run."""
    wanted: Object = {"namespace": document.namespace, "name": document.name, "annotations": annotations}
    spec = document.spec.to_resource()
    try:
        live = PolicyRecord.of(await kube.get(POLICIES, document.namespace, document.name))
    except NotFoundError:
        new = PolicyRecord.of({"metadata": wanted | {"uid": "", "resourceVersion": "0"}, "spec": spec})
        return new, document.spec
    before = _spec(live)
    changed = before != document.spec
    upgrade = str(annotations.get(UPGRADE_ANNOTATION, live.upgrade))
    policy = replace(live, spec=spec, generation=live.generation + changed, upgrade=upgrade)
    return policy, before or document.spec


def _spec(live: PolicyRecord) -> PrefillPolicySpec | None:
    try:
        return parse_spec(live.spec)
    except InvalidSpecError:
        return None


async def _fleet(kube: Kube, policy: PolicyRecord) -> tuple[dict[ObjectKey, Object], Cluster]:
    """The fleet's objects by kind and name, and what the operator would keep of them."""
    cluster, live = Cluster(), dict[ObjectKey, Object]()
    for kind in INSTALL_HINTS:
        cluster.set_served(kind, await kube.served(RESOURCES_BY_KIND[kind]))
    for kind in (kind for kind in RESOURCES_BY_KIND if kind not in cluster.unserved):
        for found in await _listed(kube, RESOURCES_BY_KIND[kind], policy):
            whole = {"kind": kind, **found}
            live[key_of(whole)] = whole
            cluster.children[kind].put(ChildRecord.of(whole))
    for kind, store in cluster.autoscalers.items():
        for found in () if kind in cluster.unserved else await _listed(kube, RESOURCES_BY_KIND[kind], policy, ""):
            store.put(AutoscalerRecord.of(found))
    for pod in await _listed(kube, PODS, policy):
        cluster.pods.put(PodRecord.of(pod))
    return live, cluster


async def _listed(kube: Kube, resource: Resource, policy: PolicyRecord, selector: str | None = None) -> list[Object]:
    """Everything of one kind that carries the fleet's label, or that the selector finds."""
    selector = f"{FLEET_LABEL}={policy.name}" if selector is None else selector
    found: list[Object] = []
    token = ""
    while True:
        page, _, token = await kube.list_page(resource, policy.namespace, selector, token)
        found += page
        if not token:
            return found


def _refuse_unserved(objects: Sequence[Object], cluster: Cluster) -> None:
    for kind in {each["kind"] for each in objects} & cluster.unserved:
        raise RefusedError(f"this cluster does not serve the kind {kind}: {INSTALL_HINTS[kind]}")


async def _dry_run(
    kube: Kube, policy: PolicyRecord, desired: Object, live: dict[ObjectKey, Object], sizes: Mapping[Role, int]
) -> Object:
    """The object as it would be. One that is new is not asked for: its policy, which owns it, may be new as well.
    `sizes`: the replicas that the operator would set, which other bounds may change."""
    kind, name = key_of(desired)
    if (kind, name) not in live:
        found = await kube.find(RESOURCES_BY_KIND[kind], policy.namespace, name)
        if found is not None:
            raise RefusedError(f"the {kind} {name} exists and is not of this policy: delete it or rename the policy")
        return desired
    if kind in TEMPLATE_FIELDS and "replicas" not in desired["spec"]:
        # The operator has the live count handed over first, which a dry run cannot show.
        count = sizes.get(Role(desired["metadata"]["labels"][ROLE_LABEL]), live[(kind, name)]["spec"]["replicas"])
        desired = desired | {"spec": desired["spec"] | {"replicas": count}}
    return {"kind": kind, **await kube.apply(RESOURCES_BY_KIND[kind], desired, dry_run=True)}


def _stays(key: ObjectKey, found: Object, after: dict[ObjectKey, Object]) -> bool:
    """Whether nothing happens to an object that is not wanted any more: a ConfigMap, or what the operator did not
    make."""
    ours = ChildRecord.of(found).ours and fleet_labels(found["metadata"]["labels"][FLEET_LABEL]).items() <= (
        found["metadata"]["labels"].items()
    )
    return key not in after and (key[0] == "ConfigMap" or not ours)


def _count(workload: Object, cluster: Cluster, policy: PolicyRecord) -> int:
    """How many pods a workload has that are there to stay."""
    if workload["kind"] not in TEMPLATE_FIELDS:
        return 0
    role = ChildRecord.of(workload).role
    if role is None:
        return int((workload.get("status") or {}).get("replicas") or 0)
    size = int(workload["spec"].get("leaderWorkerTemplate", {}).get("size", 1))
    return size * sum(pod.role is role and not pod.terminating for pod in cluster.pods.of(*policy.key))


def _runtime_image(live: dict[ObjectKey, Object]) -> str | None:
    """The runtime image of the pods that run: an init container brings it, or it is the engine itself."""
    for (kind, _), found in live.items():
        if kind not in TEMPLATE_FIELDS or ChildRecord.of(found).role is None:
            continue
        template = found["spec"][TEMPLATE_FIELDS[kind]]
        pod = template.get("leaderTemplate", template)["spec"]
        containers: dict[str, Any] = {
            each["name"]: each for each in (*pod.get("initContainers", ()), *pod["containers"])
        }
        brings = containers.get(RUNTIME_CONTAINER, containers.get(ENGINE_CONTAINER))
        return None if brings is None else str(brings["image"])
    return None


def _metrics_url(live: dict[ObjectKey, Object]) -> str | None:
    """What KEDA is told to ask for the fleet now."""
    for (kind, _), found in live.items():
        if kind == "ScaledObject":
            return str(found["spec"]["triggers"][0]["metadata"]["serverAddress"])
    return None
