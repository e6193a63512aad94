"""What is kept of the objects that are watched: small immutable values, a few hundred bytes each.

A cluster's pods are many and their JSON is large; of each only what a decision looks at is kept. Of a workload, of
which a fleet has two or three, that is what its pods were made of, too: some 4 kB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from prefleet_runtime.contract import DECODE_POLICY_FILE, POLICY_FILE

from prefleet_operator.adapters.kube import Object
from prefleet_operator.adapters.watch import Identity
from prefleet_operator.api import Role
from prefleet_operator.app.pod_trouble import pod_trouble
from prefleet_operator.core.native_policy import NATIVE_POLICY_FILE
from prefleet_operator.core.observed import PodTrouble
from prefleet_operator.render import (
    DELETION_COST_ANNOTATION,
    FIELD_MANAGER,
    FLEET_LABEL,
    GENERATION_ANNOTATION,
    GROUP_INDEX_LABEL,
    GROUP_SET_LABEL,
    KEPT_ANNOTATION,
    REVISION_ANNOTATION,
    ROLE_LABEL,
    ROUTER,
    TEMPLATE_ANNOTATION,
    TEMPLATE_FIELDS,
    Revision,
    digest_of,
    template_digest,
)

MAX_DIGITS = 15
"""Of a generation: what fits into a JSON number on every side."""
MAX_POLICY_CHARACTERS = 16_384
MAX_TOLD_CHARACTERS = 600
"""Of what a Deployment says of its pods."""

_REFUSED_POD = re.compile(r'^pods "[^"]*" is forbidden: ')


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod of a fleet. `generation`, `deletion_cost`: its annotations. `role` is None for pods of others' making.

    `restarted`: a container of it has been started again. `made_for`: the fleet that the operator made it for; "" if
    somebody else made it. `trouble`: why it will not become ready by itself. `group`: of a replica of several nodes,
    which one it is part of; "" elsewhere. `routes`: it is a router's. `template`: the
    digest of the template that it was made of; "" of an earlier release. `ends_by_s`: of one that is told to go and
    still holds what its node gave it, when its grace is over.
    """

    identity: Identity
    role: Role | None
    ip: str | None
    ready: bool
    ready_since_s: float | None
    terminating: bool
    generation: int | None
    made_for: str = ""
    trouble: PodTrouble | None = None
    group: str = ""
    routes: bool = False
    created_s: float | None = None
    restarted: bool = False
    deletion_cost: int | None = None
    template: str = ""
    ends_by_s: float | None = None

    @classmethod
    def of(cls, pod: Object) -> PodRecord:
        """Read a Pod."""
        metadata, status = pod["metadata"], pod.get("status") or {}
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        label = labels.get(ROLE_LABEL)
        ready = next((each for each in status.get("conditions") or () if each["type"] == "Ready"), None)
        is_ready = ready is not None and ready["status"] == "True"
        identity, role = identify(pod), Role(label) if label in set(Role) else None
        made = role is not None or label == ROUTER or GROUP_SET_LABEL in labels
        ended = status.get("phase") in ("Succeeded", "Failed")
        return cls(
            identity=identity,
            role=role,
            ip=status.get("podIP"),
            ready=is_ready,
            ready_since_s=_seconds(ready.get("lastTransitionTime")) if ready is not None and is_ready else None,
            terminating="deletionTimestamp" in metadata or ended,
            generation=_whole(annotations.get(GENERATION_ANNOTATION)),
            made_for=identity.fleet if made else "",
            trouble=pod_trouble(pod),
            group=f"{labels[GROUP_SET_LABEL]}/{labels.get(GROUP_INDEX_LABEL)}" if GROUP_SET_LABEL in labels else "",
            routes=label == ROUTER,
            created_s=_seconds(metadata.get("creationTimestamp")),
            restarted=any(each.get("restartCount") for each in status.get("containerStatuses") or ()),
            deletion_cost=_whole(annotations.get(DELETION_COST_ANNOTATION)),
            template=str(annotations.get(TEMPLATE_ANNOTATION, "")),
            ends_by_s=None if ended else _seconds(metadata.get("deletionTimestamp")),
        )


@dataclass(frozen=True, slots=True)
class ChildRecord:
    """One object that the operator applied.

    `owned_fields`: a digest of the fields that the API server says are ours. It changes when somebody else
    changes one of them, and only then: the cheapest sign that the object must be applied again. `ours`: the
    operator made it. `policy`: the policy document of a ConfigMap, cut off where it is none of ours any more.
    `owns_policy`: nobody else has written the policy documents in it. `native`: it is of an engine that is told at its
    start. `kept`: a ConfigMap that outlives its policy. `stuck`: why a rollout makes no progress. `refused`: why its
    pods cannot even be made. `untaken_since_s`: when a LeaderWorkerSet was made of which no controller has written a
    word yet; a Deployment's controller is part of every cluster. `ready_pods`: of the router's
    Deployment; those of a role are counted pod by pod. `wanted_pods`: the replicas that a workload is to have.
    `holds_replicas`: they are what the operator's last apply says, and would fall to one if the next left them out.
    `deleting`: it goes already, as soon as whoever has put a finalizer on it is done.
    `revision_text`: of a workload, the annotation that says what
    its pods were made of, as long as nobody else has written it; `template`: the digest that its template carries.
    `paused`: somebody has paused it; `held`: a gate has.
    """

    identity: Identity
    role: Role | None
    owned_fields: str
    ours: bool = False
    owns_policy: bool = False
    native: bool = False
    policy: str = ""
    annotated_generation: int | None = None
    stuck: str | None = None
    untaken_since_s: float | None = None
    kept: bool = False
    ready_pods: int = 0
    wanted_pods: int = 0
    holds_replicas: bool = False
    deleting: bool = False
    refused: str | None = None
    revision_text: str = ""
    template: str = ""
    paused: bool = False
    held: bool = False

    @property
    def revision(self) -> Revision | None:
        """What the pods of a workload were made of, if that is known."""
        return Revision.from_json(self.revision_text)

    @classmethod
    def of(cls, child: Object) -> ChildRecord:
        """Read any object of a fleet but its pods."""
        metadata = child["metadata"]
        label = (metadata.get("labels") or {}).get(ROLE_LABEL)
        fields = owned_fields(child)
        data_fields = set(fields.get("f:data") or ())
        native = f"f:{NATIVE_POLICY_FILE}" in data_fields
        paused, gated = (child.get("spec") or {}).get("paused") is True, "f:paused" in (fields.get("f:spec") or {})
        return cls(
            identity=identify(child),
            role=Role(label) if label in set(Role) else None,
            owned_fields=digest_of(fields),
            ours=bool(fields),
            owns_policy=native or {f"f:{POLICY_FILE}", f"f:{DECODE_POLICY_FILE}"} <= data_fields,
            native=native,
            policy=str((child.get("data") or {}).get(NATIVE_POLICY_FILE if native else POLICY_FILE, ""))[
                :MAX_POLICY_CHARACTERS
            ],
            annotated_generation=_whole((metadata.get("annotations") or {}).get(GENERATION_ANNOTATION)),
            stuck=_stuck(child),
            refused=_condition_message(child, "ReplicaFailure", "True"),
            untaken_since_s=_untaken_since(child),
            kept=KEPT_ANNOTATION in (metadata.get("annotations") or {}) and not metadata.get("ownerReferences"),
            ready_pods=int((child.get("status") or {}).get("readyReplicas") or 0) if label == ROUTER else 0,
            revision_text=_revision_text(metadata, fields),
            wanted_pods=int((child.get("spec") or {}).get("replicas") or 0),
            deleting="deletionTimestamp" in metadata,
            holds_replicas="f:replicas" in (fields.get("f:spec") or {}),
            template=_template(child),
            paused=paused and not gated,
            held=paused and gated,
        )


@dataclass(frozen=True, slots=True)
class AutoscalerRecord:
    """What sets the replicas of a workload: a HorizontalPodAutoscaler or a ScaledObject, whoever made it.

    `identity.fleet` is the name of that workload, since a store finds by it; `target_kind`: its kind. `independent`:
    the operator did not make it, and neither did KEDA, whose ScaledObjects stand for themselves.
    """

    identity: Identity
    target_kind: str
    independent: bool

    @classmethod
    def of(cls, found: Object) -> AutoscalerRecord:
        """Read either kind; KEDA lets the kind of the workload be left out."""
        target, owners = found["spec"]["scaleTargetRef"], found["metadata"].get("ownerReferences") or ()
        return cls(
            identity=replace(identify(found), fleet=target["name"]),
            target_kind=target.get("kind") or "Deployment",
            independent=not owned_fields(found) and all(owner["kind"] != "ScaledObject" for owner in owners),
        )


def identify(found: Object) -> Identity:
    """Read the metadata of an object."""
    metadata = found["metadata"]
    return Identity(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        version=int(metadata["resourceVersion"]),
        fleet=(metadata.get("labels") or {}).get(FLEET_LABEL, ""),
    )


def owned_fields(child: Object) -> dict[str, Any]:
    """The fields that the operator's last apply owns, as `managedFields` lists them."""
    for entry in child["metadata"].get("managedFields") or ():
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply":
            return dict(entry.get("fieldsV1") or {})
    return {}


def _revision_text(metadata: Object, fields: Object) -> str:
    owned = (fields.get("f:metadata") or {}).get("f:annotations") or {}
    return str(metadata["annotations"][REVISION_ANNOTATION]) if f"f:{REVISION_ANNOTATION}" in owned else ""


def _template(child: Object) -> str:
    """The digest in the template of a workload. Items of a list do not say their kind."""
    spec = child.get("spec") or {}
    return next((template_digest(kind, spec[field]) for kind, field in TEMPLATE_FIELDS.items() if field in spec), "")


def _stuck(child: Object) -> str | None:
    """What a Deployment says once its deadline is over. A LeaderWorkerSet knows none: there Progressing turns False
    when all groups are available. One that is paused goes on saying what it said before."""
    waits = child.get("kind") == "LeaderWorkerSet" or (child.get("spec") or {}).get("paused")
    return None if waits else _condition_message(child, "Progressing", "False")


def _condition_message(child: Object, kind: str, status: str) -> str | None:
    """What a Deployment says in that condition, if it has that status; of a pod that is refused, not its name, which
    is another at each attempt."""
    for condition in (child.get("status") or {}).get("conditions") or ():
        if (condition["type"], condition["status"]) == (kind, status):
            told = str(condition.get("message") or condition.get("reason"))
            return _REFUSED_POD.sub("", told)[:MAX_TOLD_CHARACTERS]
    return None


def _untaken_since(child: Object) -> float | None:
    if child.get("kind") != "LeaderWorkerSet" or (child.get("status") or {}).get("conditions"):
        return None
    return _seconds(child["metadata"].get("creationTimestamp"))


def _seconds(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


def _whole(text: str | None) -> int | None:
    """A generation as we write it; anybody may write something else there."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= MAX_DIGITS else None
