"""Which template the pods of a fleet have: the one that this release renders, or the one that they were made with.

A template that differs in one letter replaces every pod, and each release of the operator, or another default of the
installation's, may render some letter differently. So every workload (a Deployment or a LeaderWorkerSet) carries its
`Revision` as an annotation, which is written together with the template and cannot disagree with it:

    template  what was rendered for its pods, word for word
    release   by which release
    source    a digest of what in the PrefillPolicy the template was made of
    moved     false where the last change of the source left the template as it was: it concerned other roles alone

While the source is the same, the remembered template is applied again as it is, whatever this release would render:
an upgrade restarts no pod, fields stay owned, and what others change is put right. Once the source is another, the
template is what this release renders, and it is a restart only if that differs from the remembered one.

All engine pods of a fleet have one source: prefill and decode pods hand KV to each other, so a change that concerns
one of them moves both to what one release renders. Replicas and `rollout` are no part of it, nor is scheduling; of
an engine that is told at its start the policy's generation is. The annotation `prefleet.dev/upgrade` of the
PrefillPolicy is: whoever gives it another value asks for what this release renders.

The template of a role's pods carries a digest of all else in it (`prefleet.dev/template`), by which a rollout tells
new pods from old ones. It is written together with the template and is no change by itself: pods that an earlier
release made without one keep their template until something else in it changes, whether or not their revision is known.

Values that are a field's default are left out of the digest, so that a release may add fields. A revision that
somebody else has written, that cannot be read or that is too large to be kept is none, and then this release's
rendering counts. All other fields of a workload, and all other objects, are as this release renders them: changing
them replaces no pod.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from prefleet_operator.api import PrefillPolicySpec, Role
from prefleet_operator.core.differences import Difference, differences
from prefleet_operator.core.native_policy import FleetPolicy
from prefleet_operator.render.names import REVISION_ANNOTATION, ROLE_LABEL, ROUTER, TEMPLATE_ANNOTATION

Object = dict[str, Any]

TEMPLATE_FIELDS: Final = {"Deployment": "template", "LeaderWorkerSet": "leaderWorkerTemplate"}
"""By the kind of a workload, the field of its spec of which a change replaces pods."""

MAX_REVISION = 200_000
"""Characters. All annotations of an object together may have 262,144 bytes."""

_UNTIMED = {"replicas", "rollout"}
"""Of a role or router: what changes no pod."""


@dataclass(frozen=True, slots=True)
class Revision:
    """What the pods of one workload were made of."""

    source: str
    release: str
    template: Object
    moved: bool = True

    def to_json(self) -> str:
        """The annotation."""
        document: Object = {"source": self.source, "release": self.release, "template": self.template}
        document |= {} if self.moved else {"moved": False}
        return json.dumps(document, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Revision | None:
        """Read the annotation; None if it is none of ours."""
        try:
            found = json.loads(text)
            revision = cls(found["source"], found["release"], found["template"], found.get("moved", True) is not False)
        except (ValueError, KeyError, TypeError):
            return None
        sound = isinstance(revision.template, dict) and all(
            isinstance(each, str) for each in (revision.source, revision.release)
        )
        return revision if sound else None


@dataclass(frozen=True, slots=True)
class Settled:
    """One workload whose template is chosen. `role`: what its role label says, "router" included; `before`: its
    revision until now; `newest`: the template that this release renders, before its digest is put in."""

    rendered: Object
    role: str
    before: Revision | None
    now: Revision
    newest: Object

    @property
    def restart(self) -> tuple[Difference, ...]:
        """In what the template will be another than until now: each pod is replaced unless that is nothing."""
        return () if self.before is None else differences(self._bare(self.before), self._bare(self.now))

    @property
    def outdated(self) -> tuple[Difference, ...]:
        """In what this release would render the template differently than it is."""
        return differences(self._bare(self.now), self.newest)

    def _bare(self, revision: Revision) -> Object:
        return bare_template(self.rendered["kind"], revision.template)


def bare_template(kind: str, template: Object) -> Object:
    """The template of a workload of that kind without its digest."""
    pod = _leader(kind, template)
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if TEMPLATE_ANNOTATION not in annotations:
        return template
    others = {name: text for name, text in annotations.items() if name != TEMPLATE_ANNOTATION}
    metadata = {name: value for name, value in pod["metadata"].items() if name != "annotations"}
    return _with_leader(kind, template, pod | {"metadata": metadata | ({"annotations": others} if others else {})})


def template_digest(kind: str, template: Object) -> str:
    """The digest that the template of a workload carries; "" if an earlier release made it."""
    annotations = (_leader(kind, template).get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(TEMPLATE_ANNOTATION, ""))


def digest_of(document: Object) -> str:
    """A digest by which two documents are told apart, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _stamped(kind: str, template: Object) -> Object:
    digest = digest_of(template)
    pod = _leader(kind, template)
    annotations = pod["metadata"].get("annotations", {}) | {TEMPLATE_ANNOTATION: digest}
    return _with_leader(kind, template, pod | {"metadata": pod["metadata"] | {"annotations": annotations}})


def _leader(kind: str, template: Object) -> Object:
    """The template of the pods that are counted: of groups those that lead."""
    leader: Object = template.get("leaderTemplate") or {} if kind == "LeaderWorkerSet" else template
    return leader


def _with_leader(kind: str, template: Object, pod: Object) -> Object:
    return template | {"leaderTemplate": pod} if kind == "LeaderWorkerSet" else pod


def settle_revisions(
    objects: Sequence[Object],
    spec: PrefillPolicySpec,
    policy: FleetPolicy,
    release: str,
    upgrade: str,
    remembered: Callable[[str, str], Revision | None],
    undigested: Callable[[str, str], bool] = lambda _kind, _name: False,
) -> tuple[list[Object], tuple[Settled, ...]]:
    """`objects` with the templates that their pods are to have, and the workloads among them.

    `upgrade`: the annotation of the PrefillPolicy. `remembered`: the live revision by kind and name; `undigested`:
    whether a workload is there whose template carries no digest.
    """
    sources = {
        number: _source(each, spec, policy, upgrade)
        for number, each in enumerate(objects)
        if each["kind"] in TEMPLATE_FIELDS
    }
    others_move = spec.engine.told_at_start and any(
        (before := remembered(objects[number]["kind"], objects[number]["metadata"]["name"])) and before.source != source
        for number, source in sources.items()
        if objects[number]["metadata"]["labels"][ROLE_LABEL] != ROUTER
    )
    settled = {
        number: _settle(objects[number], source, release, remembered, undigested, others_move)
        for number, source in sources.items()
    }
    chosen = [settled[number].rendered if number in settled else each for number, each in enumerate(objects)]
    return chosen, tuple(settled.values())


def _settle(
    rendered: Object,
    source: str,
    release: str,
    remembered: Callable[[str, str], Revision | None],
    undigested: Callable[[str, str], bool],
    others_move: bool,
) -> Settled:
    """`others_move`: another generation moves roles of an engine that is told at its start, decode not among them."""
    kind, metadata = rendered["kind"], rendered["metadata"]
    field, role = TEMPLATE_FIELDS[kind], metadata["labels"][ROLE_LABEL]
    newest, before = rendered["spec"][field], remembered(kind, metadata["name"])
    if before is not None and before.source == source:
        now = replace(before, moved=before.moved and not (others_move and role == Role.DECODE))
    elif before is not None and bare_template(kind, before.template) == newest:
        now = Revision(source, release, before.template, moved=False)
    elif role == ROUTER or (before is None and undigested(kind, metadata["name"])):
        now = Revision(source, release, newest)
    else:
        now = Revision(source, release, _stamped(kind, newest))
    annotation = now.to_json()
    if len(annotation) <= MAX_REVISION:
        annotations = metadata.get("annotations", {}) | {REVISION_ANNOTATION: annotation}
        metadata = metadata | {"annotations": annotations}
    chosen = rendered | {"metadata": metadata, "spec": rendered["spec"] | {field: now.template}}
    return Settled(chosen, role, before, now, newest)


def _source(rendered: Object, spec: PrefillPolicySpec, policy: FleetPolicy, upgrade: str) -> str:
    role = rendered["metadata"]["labels"][ROLE_LABEL]
    made_of: Object = {"upgrade": upgrade} if upgrade else {}
    if role == ROUTER:
        made_of |= {"router": _given(spec.router), "roles": list(spec.roles())}
    else:
        made_of |= {name: _given(part) for name, part in _parts(spec).items()}
        if spec.engine.told_at_start and role != Role.DECODE:
            made_of["generation"] = policy.generation
    return digest_of(made_of)


def made_of(spec: PrefillPolicySpec, role: Role, upgrade: str) -> str:
    """A digest of all in the PrefillPolicy that the pods of one role are made of, but for the policy in force."""
    others = {other.value for other in spec.roles() if other is not role}
    parts = {name: _given(part) for name, part in _parts(spec).items() if name not in others}
    return digest_of(parts | {"upgrade": upgrade})


def _parts(spec: PrefillPolicySpec) -> dict[str, Any]:
    """The parts of the spec that pod templates of engines are made of."""
    shared = {"model": spec.model, "engine": spec.engine, "runtime": spec.runtime, "security": spec.security}
    return shared | {role.value: part for role, part in spec.roles().items()}


def _given(part: Any) -> Object:
    """What the user has written of it, as far as it may change a pod."""
    written: Object = part.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=_UNTIMED)
    return written
