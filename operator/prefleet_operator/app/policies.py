"""The policies that the operator knows: what kopf's watch has told, and what our own writes have answered."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from prefleet_operator.adapters.kube import Object
from prefleet_operator.api import PrefillPolicyStatus
from prefleet_operator.app.workqueue import Key
from prefleet_operator.render import UPGRADE_ANNOTATION

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """One PrefillPolicy. `raw_status` is what stands there; `status` is empty if this operator cannot read it.

    `created`: its creationTimestamp, RFC 3339 in UTC. `upgrade`: the annotation by which a user asks for pods as the
    present release renders them.
    """

    namespace: str
    name: str
    uid: str
    version: int
    generation: int
    deleting: bool
    spec: Mapping[str, Any]
    raw_status: Mapping[str, Any]
    status: PrefillPolicyStatus
    created: str = ""
    upgrade: str = ""

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    @classmethod
    def of(cls, found: Object) -> PolicyRecord:
        """Read a PrefillPolicy."""
        metadata, raw_status = found["metadata"], found.get("status") or {}
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            version=int(metadata["resourceVersion"]),
            generation=int(metadata.get("generation", 1)),
            deleting="deletionTimestamp" in metadata,
            spec=found.get("spec") or {},
            raw_status=raw_status,
            status=_parse_status(raw_status),
            created=metadata.get("creationTimestamp") or "",
            upgrade=(metadata.get("annotations") or {}).get(UPGRADE_ANNOTATION, ""),
        )


def _parse_status(raw: Mapping[str, Any]) -> PrefillPolicyStatus:
    """A status that another release wrote may not be readable: then it is lost, and the ConfigMap is adopted."""
    try:
        return PrefillPolicyStatus.model_validate(raw)
    except ValidationError as error:
        logger.warning("a status cannot be read, and is written anew: %s", error.errors(include_url=False)[0]["msg"])
        return PrefillPolicyStatus()


class PolicyIndex:
    """The newest record of every policy."""

    def __init__(self) -> None:
        self._records: dict[Key, PolicyRecord] = {}

    def __iter__(self) -> Iterator[PolicyRecord]:
        return iter(list(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: Key) -> PolicyRecord | None:
        """The policy of that name, if it is known."""
        return self._records.get(key)

    def put(self, record: PolicyRecord) -> bool:
        """Keep a record unless a newer one is there; whether the spec, or the object itself, is another."""
        known = self._records.get(record.key)
        if known is not None and known.version > record.version:
            return False
        self._records[record.key] = record
        return known is None or (known.uid, known.generation) != (record.uid, record.generation)

    def drop(self, key: Key, uid: str) -> None:
        """Forget a policy that is gone."""
        known = self._records.get(key)
        if known is not None and known.uid == uid:
            del self._records[key]
