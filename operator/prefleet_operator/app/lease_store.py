"""The Lease of the election as a coordination.k8s.io object."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from prefleet_operator.adapters.kube import LEASES, Kube, NotFoundError, Object
from prefleet_operator.app.leader import Lease


class LeaseStore:
    """`Leases` over the API. Its connection has no fence: a candidate must write to become the leader."""

    def __init__(self, kube: Kube, namespace: str, name: str, now: Callable[[], float]) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._now = now

    async def read(self) -> Lease | None:
        """The Lease, or None if there is none."""
        try:
            return _read(await self._kube.get(LEASES, self._namespace, self._name))
        except NotFoundError:
            return None

    async def write(self, lease: Lease) -> Lease:
        """Create the Lease, or replace the version that was read. The times are for people: nobody decides by them."""
        body = self._body(lease)
        if not lease.version:
            return _read(await self._kube.create(LEASES, self._namespace, body))
        return _read(await self._kube.replace(LEASES, self._namespace, self._name, body))

    def _body(self, lease: Lease) -> Object:
        metadata = {"name": self._name, "namespace": self._namespace}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata | ({"resourceVersion": lease.version} if lease.version else {}),
            "spec": {
                "holderIdentity": lease.holder,
                "leaseDurationSeconds": max(1, round(lease.duration_s)),
                "leaseTransitions": lease.transitions,
                "renewTime": datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }


def _read(found: Object) -> Lease:
    spec = found.get("spec") or {}
    return Lease(
        holder=spec.get("holderIdentity") or "",
        duration_s=float(spec.get("leaseDurationSeconds") or 1),
        transitions=int(spec.get("leaseTransitions") or 0),
        version=found["metadata"]["resourceVersion"],
    )
